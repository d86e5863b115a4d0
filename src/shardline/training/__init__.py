"""Training, evaluation and prediction on one rank."""

"""Training checkpoints: the state from which an interrupted training resumes."""

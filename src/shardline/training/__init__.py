"""One rank's training and evaluation."""

"""Training checkpoints: the state to resume an interrupted training from."""

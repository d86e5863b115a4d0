"""Training checkpoints: what a killed training goes on from."""

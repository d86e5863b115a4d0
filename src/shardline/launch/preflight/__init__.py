"""The check of ranks, devices and paths before a training."""

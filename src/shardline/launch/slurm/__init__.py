"""Slurm: its allocation, the time limit, job states and cancelling."""

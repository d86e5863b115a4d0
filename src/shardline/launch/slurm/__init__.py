"""What Slurm tells of a job, and what it is asked."""

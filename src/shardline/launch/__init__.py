"""Start the ranks, and resolve the place of each rank in the job."""

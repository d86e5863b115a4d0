"""Write the stages' conda environments from the lock, and solve them."""

from shardline.pipeline import job, lock_envs

with job(snakemake.log[0]):
    lock_envs(snakemake.config)

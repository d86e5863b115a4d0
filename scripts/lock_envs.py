"""Write the stages' conda environments from the lock, and solve them."""

from shardline.pipeline.environment_jobs import lock_envs
from shardline.pipeline.job_frame import job

with job(snakemake.log[0], snakemake.config):
    lock_envs(snakemake.params.plan)

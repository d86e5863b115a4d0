"""Write the stages' conda environments from the lock, and solve them."""

from shardline.pipeline.common import job
from shardline.pipeline.envs import lock_envs

with job(snakemake.log[0], snakemake.config):
    lock_envs(snakemake.params.plan)

"""Make or pull an environment of training scripts."""

from shardline.pipeline.common import job
from shardline.pipeline.envs import build_environment

with job(snakemake.log[0], snakemake.config):
    build_environment(
        snakemake.params.plan,
        snakemake.wildcards.environment,
        snakemake.output.environment,
    )

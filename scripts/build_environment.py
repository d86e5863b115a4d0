"""Build or pull an environment of training scripts."""

from shardline.pipeline.environment_jobs import build_environment
from shardline.pipeline.job_frame import job

with job(snakemake.log[0], snakemake.config):
    build_environment(
        snakemake.params.plan,
        snakemake.wildcards.environment,
        snakemake.output.environment,
    )

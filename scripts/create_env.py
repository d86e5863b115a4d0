"""Create a stage's conda environment from its pin file."""

from shardline.pipeline.environment_jobs import create_env
from shardline.pipeline.job_frame import job

with job(snakemake.log[0], snakemake.config):
    create_env(snakemake.params.plan, snakemake.wildcards.env, snakemake.output.environment)

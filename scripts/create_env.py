"""Make a stage's conda environment from its pin file."""

from shardline.config.job_plan import read_plan
from shardline.pipeline.common import job
from shardline.pipeline.envs import create_env

with job(snakemake.log[0], snakemake.config):
    create_env(
        read_plan(snakemake.params.plan), snakemake.wildcards.env, snakemake.output.environment
    )

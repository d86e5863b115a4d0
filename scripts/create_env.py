"""Make a stage's conda environment from its pin file."""

from shardline.pipeline.common import job
from shardline.pipeline.envs import create_env

with job(snakemake.log[0], snakemake.config):
    create_env(snakemake.params.plan, snakemake.wildcards.env, snakemake.output.environment)

"""Make a stage's conda environment from its pin file."""

from shardline.pipeline import create_env, job

with job(snakemake.log[0]):
    create_env(snakemake.config, snakemake.wildcards.env, snakemake.output.environment)

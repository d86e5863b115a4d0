"""Seal a finished study."""

from shardline.pipeline.job_frame import job
from shardline.pipeline.sweep_jobs import seal_study

with job(snakemake.log[0], snakemake.config):
    seal_study(
        snakemake.params.plan, snakemake.wildcards.study, snakemake.output.study, snakemake.input
    )

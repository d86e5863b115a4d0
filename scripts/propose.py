"""Propose the settings of a trial."""

from shardline.config.rungs import slot_of
from shardline.pipeline.job_frame import job
from shardline.pipeline.sweep_jobs import propose

with job(snakemake.log[0], snakemake.config):
    propose(
        snakemake.params.plan,
        snakemake.wildcards.study,
        slot_of(snakemake.wildcards.trial),
        snakemake.output.proposal,
        snakemake.input,
    )

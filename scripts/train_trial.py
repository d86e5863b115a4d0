"""Train one run of a trial, and write the trial's result."""

from shardline.config.rungs import slot_of
from shardline.pipeline.job_frame import job
from shardline.pipeline.sweep_jobs import train_trial

with job(snakemake.log[0], snakemake.config) as log:
    train_trial(
        snakemake.params.plan,
        snakemake.wildcards.study,
        slot_of(snakemake.wildcards.trial),
        int(snakemake.wildcards.repeat),
        log,
        snakemake.output.result,
        dict(snakemake.input.items()),
        attempt=snakemake.resources.attempt,
        packed=snakemake.output.get("runs"),
    )

"""Train a run again beside its result."""

from shardline.pipeline.job_frame import job
from shardline.pipeline.side_trainings import train_again

with job(snakemake.log[0], snakemake.config) as log:
    train_again(
        snakemake.params.plan,
        int(snakemake.wildcards.number),
        log,
        snakemake.output.model,
        dict(snakemake.input.items()),
    )

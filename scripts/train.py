"""Start a run's ranks, and wait until they have sealed the run."""

from shardline.pipeline.job_frame import job
from shardline.pipeline.training import train

with job(snakemake.log[0], snakemake.config) as log:
    train(
        snakemake.params.plan,
        log,
        snakemake.output.model,
        dict(snakemake.input.items()),
        attempt=snakemake.resources.attempt,
    )

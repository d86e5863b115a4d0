"""Train a run's first steps, and write the metrics of each step."""

from shardline.pipeline.job_frame import job
from shardline.pipeline.side_trainings import train_first_steps

with job(snakemake.log[0], snakemake.config) as log:
    train_first_steps(
        snakemake.params.plan,
        int(snakemake.wildcards.steps),
        log,
        snakemake.output.metrics,
        dict(snakemake.input.items()),
    )

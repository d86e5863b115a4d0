"""Check the membership of a run's ranks and every network path between them."""

from shardline.pipeline.job_frame import job
from shardline.pipeline.side_trainings import run_preflight

with job(snakemake.log[0], snakemake.config) as log:
    run_preflight(
        snakemake.params.plan,
        log,
        snakemake.output[0],
        dict(snakemake.input.items()),
    )

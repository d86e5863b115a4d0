"""Evaluate a sealed model on held-out data."""

from shardline.pipeline.job_frame import job
from shardline.pipeline.run_jobs import evaluate

with job(snakemake.log[0], snakemake.config) as log:
    evaluate(
        snakemake.params.plan,
        snakemake.output.evaluation,
        dict(snakemake.input.items()),
        log=log,
    )

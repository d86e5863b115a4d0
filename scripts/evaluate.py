"""Evaluate a sealed model on held-out data."""

from shardline.pipeline.common import job
from shardline.pipeline.runs import evaluate

with job(snakemake.log[0], snakemake.config) as log:
    evaluate(
        snakemake.params.plan,
        snakemake.output.evaluation,
        dict(snakemake.input.items()),
        log=log,
    )

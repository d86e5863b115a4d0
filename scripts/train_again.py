"""Train a run once more beside its result."""

from shardline.config.job_plan import read_plan
from shardline.pipeline.common import job
from shardline.pipeline.training import train_again

with job(snakemake.log[0], snakemake.config) as log:
    train_again(
        read_plan(snakemake.params.plan),
        int(snakemake.wildcards.number),
        log,
        snakemake.output.model,
        dict(snakemake.input.items()),
    )

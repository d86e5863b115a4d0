"""Write a run's resolved settings and identity document."""

from shardline.config.job_plan import read_plan
from shardline.pipeline.common import job
from shardline.pipeline.runs import resolve_run

with job(snakemake.log[0], snakemake.config):
    resolve_run(
        read_plan(snakemake.params.plan),
        snakemake.output.spec,
        snakemake.output.identity,
    )

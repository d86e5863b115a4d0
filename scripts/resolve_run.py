"""Write a run's resolved settings and identity document."""

from shardline.pipeline.job_frame import job
from shardline.pipeline.run_jobs import resolve_run

with job(snakemake.log[0], snakemake.config):
    resolve_run(
        snakemake.params.plan,
        snakemake.output.spec,
        snakemake.output.identity,
    )

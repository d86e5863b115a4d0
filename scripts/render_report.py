"""Write the report that compares all runs, and the crate with their provenance."""

from shardline.pipeline.invocation import recorded_project
from shardline.pipeline.job_frame import job
from shardline.pipeline.report_job import report

with job(snakemake.log[0], snakemake.config):
    report(
        recorded_project(),
        snakemake.output.page,
        snakemake.output.crate,
        dict(snakemake.input.items()),
    )

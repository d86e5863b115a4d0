"""Call `prepare_data` of a dataset's data module."""

from shardline.pipeline.job_frame import job
from shardline.pipeline.python_data import prepare_data

with job(snakemake.log[0], snakemake.config):
    prepare_data(snakemake.params.plan, snakemake.output.prepared)

"""Read all rows of a dataset, and write the plan of its splits."""

from shardline.pipeline.dataset_jobs import plan_splits
from shardline.pipeline.job_frame import job

with job(snakemake.log[0], snakemake.config):
    plan_splits(snakemake.params.plan, snakemake.output.plan)

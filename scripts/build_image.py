"""Build the container image that the ranks may run in."""

from shardline.pipeline.environment_jobs import build_image
from shardline.pipeline.job_frame import job

with job(snakemake.log[0], snakemake.config) as log:
    build_image(snakemake.params.plan, log, snakemake.output.image)

"""Build the container image that the ranks may run in."""

from shardline.pipeline.common import job
from shardline.pipeline.envs import build_image

with job(snakemake.log[0], snakemake.config) as log:
    build_image(snakemake.params.plan, log, snakemake.output.image)

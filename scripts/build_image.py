"""Build the container image that the ranks may run in."""

from shardline.pipeline import build_image, job

with job(snakemake.log[0]) as log:
    build_image(snakemake.config, log, snakemake.output.image)

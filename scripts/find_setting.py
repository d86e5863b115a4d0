"""Try settings of a run on a few steps, and write what was found."""

from shardline.pipeline.finding import find_setting
from shardline.pipeline.job_frame import job

with job(snakemake.log[0], snakemake.config) as log:
    find_setting(
        snakemake.params.plan,
        snakemake.wildcards.setting,
        log,
        snakemake.output.found,
        dict(snakemake.input.items()),
    )

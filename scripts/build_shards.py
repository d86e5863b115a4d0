"""Write the shards of one part of a dataset and the part's description."""

from shardline.pipeline.dataset_jobs import build_shards
from shardline.pipeline.job_frame import job

with job(snakemake.log[0], snakemake.config):
    build_shards(
        snakemake.params.plan,
        snakemake.wildcards.part,
        snakemake.output.part,
        snakemake.input.read_as,
        snakemake.input.splits,
        snakemake.threads,
    )

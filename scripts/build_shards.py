"""Write the shards of one part and the part's list of them."""

from shardline.pipeline.common import job
from shardline.pipeline.datasets import build_shards

with job(snakemake.log[0], snakemake.config):
    build_shards(
        snakemake.params.plan,
        snakemake.wildcards.part,
        snakemake.output.part,
        snakemake.input.read_as,
    )

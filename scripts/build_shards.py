"""Write the shards of one part and the part's list of them."""

from shardline.pipeline import build_shards, job

with job(snakemake.log[0]):
    build_shards(
        snakemake.config,
        snakemake.wildcards.dataset,
        snakemake.wildcards.part,
        snakemake.output.part,
    )

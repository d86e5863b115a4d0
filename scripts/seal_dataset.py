"""Merge a dataset's parts into its manifest."""

from shardline.pipeline.common import job
from shardline.pipeline.datasets import seal_dataset

with job(snakemake.log[0], snakemake.config):
    seal_dataset(
        snakemake.params.plan,
        snakemake.output.manifest,
        snakemake.output.provenance,
        snakemake.input.parts,
        snakemake.input.read_as,
    )

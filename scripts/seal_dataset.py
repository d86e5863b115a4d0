"""Merge a dataset's parts into its manifest."""

from shardline.pipeline.dataset_jobs import seal_dataset
from shardline.pipeline.job_frame import job

with job(snakemake.log[0], snakemake.config):
    seal_dataset(
        snakemake.params.plan,
        snakemake.output.manifest,
        snakemake.output.provenance,
        snakemake.input.parts,
        snakemake.input.read_as,
        snakemake.input.splits,
        snakemake.input.prepared,
    )

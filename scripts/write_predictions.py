"""Merge a prediction's parts into one Parquet file."""

from shardline.pipeline.job_frame import job
from shardline.pipeline.prediction_files import write_predictions

with job(snakemake.log[0]):
    write_predictions(
        snakemake.params.plan,
        snakemake.input.record,
        snakemake.output.predictions,
        snakemake.output.described,
    )

"""Write a prediction's parts as one Parquet file."""

from shardline.config.job_plan import read_plan
from shardline.pipeline.common import job
from shardline.pipeline.prediction_files import write_predictions

with job(snakemake.log[0]):
    write_predictions(
        read_plan(snakemake.params.plan),
        snakemake.input.record,
        snakemake.output.predictions,
        snakemake.output.described,
    )

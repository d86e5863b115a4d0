"""Start a run's ranks to predict rows with its sealed model."""

from shardline.pipeline.job_frame import job
from shardline.pipeline.predicting import predict

with job(snakemake.log[0]) as log:
    predict(
        snakemake.params.plan,
        snakemake.output.record,
        dict(snakemake.input.items()),
        log,
    )

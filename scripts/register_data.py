"""Register a sealed dataset as a data asset of the workspace that jobs run in."""

from pathlib import Path

from snakemake.exceptions import WorkflowError

from shardline.core.errors import DataError
from shardline.core.files import write_json
from shardline.pipeline.dataset_jobs import describe_asset
from shardline.pipeline.job_frame import job

with job(snakemake.log[0], snakemake.config):
    try:
        from snakemake_executor_plugin_azureml.assets import register_folder
    except ModuleNotFoundError:
        raise DataError(
            "azureml.register_data=true needs the executor plugin for Azure ML, which is not installed here; run "
            "`make env-azureml` in a clone of Shardline, or set azureml.register_data=false"
        ) from None

    asset = describe_asset(snakemake.params.plan, snakemake.input.manifest)
    try:
        registered = register_folder(mount="SHARDLINE_STORE", **asset)
    except WorkflowError as error:
        raise DataError(str(error)) from None
    write_json(Path(snakemake.output.asset), registered)

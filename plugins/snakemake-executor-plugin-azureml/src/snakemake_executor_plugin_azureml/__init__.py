"""Snakemake executor plugin: jobs on Azure Machine Learning, on one node or on several.

Snakemake imports every plugin at every start, and the nodes of a job import
this package only for its `node` part. So this module imports nothing: the three
names that Snakemake reads are imported on access, and an Azure SDK when the
first job is submitted.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snakemake_executor_plugin_azureml.executor import Executor
    from snakemake_executor_plugin_azureml.settings import ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]


def __getattr__(name: str) -> Any:
    if name in ("ExecutorSettings", "common_settings"):
        from snakemake_executor_plugin_azureml import settings

        return getattr(settings, name)
    if name == "Executor":
        from snakemake_executor_plugin_azureml.executor import Executor

        return Executor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

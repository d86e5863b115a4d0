"""Snakemake's own tests for executor plugins, on a workspace of Azure ML or on an emulated workspace.

The environment names the workspace: SNAKEMAKE_AZUREML_SUBSCRIPTION, _RESOURCE_GROUP, _WORKSPACE, _COMPUTE and
_IMAGE, and the container of a storage account for declared files: SNAKEMAKE_AZUREML_TEST_CONTAINER and
SNAKEMAKE_STORAGE_AZURE_ACCOUNT_NAME.
"""

import os
import uuid
from collections.abc import Mapping

from snakemake.common.tests import TestWorkflowsBase
from snakemake_interface_common.plugin_registry.plugin import TaggedSettings
from snakemake_interface_executor_plugins.settings import ExecutorSettingsBase
from snakemake_storage_plugin_azure import StorageProviderSettings

from snakemake_executor_plugin_azureml import ExecutorSettings

NAMES = ("subscription", "resource_group", "workspace", "compute", "image")


class TestWorkflowsAzureML(TestWorkflowsBase):
    """A simple workflow and one with groups of jobs."""

    __test__ = True

    def get_executor(self) -> str:
        return "azureml"

    def get_executor_settings(self) -> ExecutorSettingsBase:
        return ExecutorSettings(**{n: os.environ[f"SNAKEMAKE_AZUREML_{n.upper()}"] for n in NAMES})

    def get_assume_shared_fs(self) -> bool:
        return False

    def get_default_storage_provider(self) -> str:
        return "azure"

    def get_default_storage_prefix(self) -> str:
        return f"az://{os.environ['SNAKEMAKE_AZUREML_TEST_CONTAINER']}/{uuid.uuid4().hex}"

    def get_default_storage_provider_settings(self) -> Mapping[str, TaggedSettings]:
        account = os.environ["SNAKEMAKE_STORAGE_AZURE_ACCOUNT_NAME"]
        tagged = TaggedSettings()
        tagged.register_settings(StorageProviderSettings(account_name=account))
        return {"azure": tagged}

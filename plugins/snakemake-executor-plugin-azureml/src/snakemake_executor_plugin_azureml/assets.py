"""Data assets: a workflow's rule may register a datastore's folder as a data asset.

The executor passes its workspace and its mounts to local jobs: the workspace in the
service's own variables, and the address of each mount `NAME=DATASTORE:PATH` in
`NAME_URI`. Asset versions are immutable: registering the same folder again has no
effect, and registering another folder with the same version is an error.
"""

import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from snakemake_executor_plugin_azureml.client import make_credential
from snakemake_executor_plugin_azureml.errors import AzureMLError, redact, text_of
from snakemake_executor_plugin_azureml.options import Mount
from snakemake_executor_plugin_azureml.service_retries import retry
from snakemake_executor_plugin_azureml.settings import ExecutorSettings

# The variables that the service sets in its jobs.
_WORKSPACE = {
    "subscription": "AZUREML_ARM_SUBSCRIPTION",
    "resource_group": "AZUREML_ARM_RESOURCEGROUP",
    "workspace": "AZUREML_ARM_WORKSPACE_NAME",
}
_MINUTES = 5.0


def variables_of(settings: ExecutorSettings, mounts: Iterable[Mount]) -> dict[str, str]:
    """Return the variables from which local jobs read the workspace and its mounts."""
    workspace = {variable: str(getattr(settings, name)) for name, variable in _WORKSPACE.items()}
    return workspace | {f"{mount.variable}_URI": mount.uri for mount in mounts}


def register_folder(
    *, mount: str, path: str, name: str, version: str, description: str, tags: Mapping[str, str]
) -> dict[str, str]:
    """Register a folder below a mount as a data asset, once for each name and version.

    Args:
        mount: the mount's variable, as in `azureml-mounts`.
        path: path of the folder, relative to the mount's folder.
        name: name of the asset: letters, digits, dashes and underscores.
        tags: tags of a new asset.

    Returns:
        `id` (the asset's ID in Azure), `name`, `version` and `path` of the asset.

    Raises:
        AzureMLError: this is no workflow of this executor, the service rejects the request, or the
            version exists with another folder.
    """
    try:
        workspace = [os.environ[variable] for variable in _WORKSPACE.values()]
        folder = f"{os.environ[f'{mount}_URI']}{path.strip('/')}/"
    except KeyError as error:
        raise AzureMLError(
            f"{error.args[0]} is not set, so the data asset {name} cannot be registered; run the "
            f"workflow with --executor azureml and {mount} among azureml-mounts"
        ) from None
    try:
        from azure.ai.ml import MLClient
        from azure.ai.ml.constants import AssetTypes
        from azure.ai.ml.entities import Data
        from azure.core.exceptions import ResourceNotFoundError
    except ModuleNotFoundError as error:
        raise AzureMLError(
            f"a data asset needs azure-ai-ml, of which {error.name} cannot be imported; install azure-ai-ml"
        ) from None
    client = MLClient(make_credential(), *workspace, enable_telemetry=False, show_progress=False)
    wanted = Data(
        name=name, version=version, type=AssetTypes.URI_FOLDER, path=folder,
        description=description, tags=dict(tags),
    )  # fmt: skip

    def register() -> Any:
        try:
            return client.data.get(name, version=version)
        except ResourceNotFoundError:
            return client.data.create_or_update(wanted)

    try:
        asset = retry(
            register, minutes=_MINUTES, stop=threading.Event(), renew=lambda: None,
            notice=lambda error, wait_s: None,
        )  # fmt: skip
    except Exception as error:
        raise AzureMLError(
            f"data asset {name}:{version} could not be registered ({redact(text_of(error))}); check "
            "that you have the role AzureML Data Scientist in the workspace"
        ) from None
    there = str(asset.path)
    # the service puts the workspace before the path
    if _within_workspace(there) != _within_workspace(folder):
        raise AzureMLError(
            f"data asset {name}:{version} exists with the folder {there}, not {folder}; archive it (az ml data "
            "archive) and choose another name or version, or use its datastore again"
        )
    return {"id": str(asset.id), "name": name, "version": version, "path": there}


def _within_workspace(uri: str) -> str:
    return uri[uri.find("/datastores/") :].rstrip("/")

"""The user's settings, each as a flag, a profile key and an environment variable."""

from dataclasses import dataclass, field

# The interface reads annotations at run time and crashes `snakemake --help` on `X | None`.
# ruff: noqa: UP045
from typing import Any, Optional

from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=True,
    job_deploy_sources=False,  # sources are in the job's code snapshot
    auto_deploy_default_storage_provider=False,  # the image contains the storage plugin
    pass_envvar_declarations_to_cmd=False,  # permitted variables are in the job's environment
    init_seconds_before_status_checks=1,
)


def _setting(help: str, default: Any = None, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": help, "env_var": True, **metadata})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Settings of the executor, `--azureml-...`; a rule's resources override them per job."""

    subscription: Optional[str] = _setting("ID of the Azure subscription.", required=True)
    resource_group: Optional[str] = _setting("Resource group of the workspace.", required=True)
    workspace: Optional[str] = _setting("Name of the Azure ML workspace.", required=True)
    compute: Optional[str] = _setting(
        "Compute cluster for jobs whose rule sets no resource azureml_compute; 'serverless' with "
        "the resource azureml_instance_type needs no cluster."
    )
    image: Optional[str] = _setting(
        "Docker image of the jobs. It is registered as an Azure ML environment, named by the "
        "digest of image, conda file and lock, and reused while these stay the same."
    )
    environment: Optional[str] = _setting(
        "Registered Azure ML environment instead of an image: name:version, or name for its "
        "latest version."
    )
    conda_file: Optional[str] = _setting(
        "Conda environment file that Azure ML builds on top of the image."
    )
    lock: Optional[str] = _setting(
        "Lock file of the image's packages; its content becomes part of the environment's name."
    )
    experiment: str = _setting("Azure ML experiment of the jobs.", "snakemake")
    sdk: str = _setting("SDK to use: v2 (azure-ai-ml) or v1 (azureml-core).", "v2")
    datastore: str = _setting("Datastore of mounts that do not name one.", "workspaceblobstore")
    mounts: Optional[str] = _setting(
        "Folders of datastores to mount on every node for reading and writing, as "
        "NAME=PATH or NAME=DATASTORE:PATH, separated by spaces. The environment variable NAME "
        "contains the folder's path on the node."
    )
    tags: Optional[str] = _setting("Tags of every job: KEY=VALUE, separated by spaces.")
    identity: Optional[str] = _setting(
        "Identity of the jobs: user (the user who submits), managed, or managed:CLIENT_ID; if "
        "unset, the identity of the compute."
    )
    follower_command: Optional[str] = _setting(
        "Shell command that all nodes but the first run beside the job."
    )
    node_wait_s: int = _setting("Seconds in which all nodes of a job must join.", 900)
    pass_envvars: Optional[str] = _setting(
        "Environment variables to pass to jobs: names, separated by spaces, of variables that the "
        "workflow declares with envvars, or all. Azure ML stores them in clear "
        "text, so no variable is passed unless it is listed here."
    )
    max_requests_per_second: float = _setting("Upper limit of status requests, per second.", 1.0)
    request_timeout_s: int = _setting(
        "Seconds to wait for an answer of Azure ML before the request is repeated.", 60
    )
    retry_minutes: float = _setting(
        "Minutes for which a request is repeated while the service is busy or does not answer.",
        15.0,
    )

"""The user's settings and resources, parsed and checked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from snakemake_executor_plugin_azureml.errors import AzureMLError
from snakemake_executor_plugin_azureml.settings import ExecutorSettings

SERVERLESS = "serverless"
_DISTRIBUTIONS = ("mpi", "pytorch")
SDKS = {"v1": "azureml-core", "v2": "azure-ai-ml"}
_PRIORITIES = ("low", "medium", "high")
_URI = re.compile(r"azureml://datastores/(?P<datastore>[^/]+)/paths/(?P<path>.+)")
_CLIENT_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder of a datastore that every node mounts, and the variable that contains its path.

    Attributes:
        path: folder within the datastore, without slashes at its ends.
    """

    variable: str
    datastore: str
    path: str

    @property
    def key(self) -> str:
        """Name of the mount within the job; Azure ML requires lower case."""
        return self.variable.lower()

    @property
    def uri(self) -> str:
        """The folder, as azure-ai-ml names it."""
        return f"azureml://datastores/{self.datastore}/paths/{self.path}/"

    def argument(self, sdk: str) -> str:
        """NAME=PATH for the node's program, with PATH as the service fills it in."""
        if sdk == "v1":
            return f'{self.variable}="$AZUREML_DATAREFERENCE_{self.key}"'
        return f"{self.variable}=${{{{outputs.{self.key}}}}}"


@dataclass(frozen=True, kw_only=True)
class JobIdentity:
    """The identity whose permissions a job has: `user`, or `managed` with an optional client ID."""

    kind: str
    client_id: str = ""


@dataclass(frozen=True, kw_only=True)
class JobResources:
    """Resources that a job requests; for empty text and 0, Azure ML decides.

    Attributes:
        distribution: mpi, pytorch, or empty for one plain process.
        processes_per_node: processes that Azure ML starts on each node.
    """

    compute: str
    instance_type: str
    nodes: int
    processes_per_node: int
    distribution: str
    mounts: tuple[Mount, ...]
    identity: JobIdentity | None
    variables: Mapping[str, str] = field(repr=False)
    tags: Mapping[str, str]
    shm_size: str
    docker_args: str
    priority: str
    time_limit_s: int


def check_settings(settings: ExecutorSettings) -> None:
    """Reject settings that contradict each other, before any job is submitted.

    Raises:
        AzureMLError: the message names the setting, its value and what to do.
    """
    if settings.sdk not in SDKS:
        raise AzureMLError(f"azureml-sdk={settings.sdk!r} is unknown; set it to v2 or v1")
    if bool(settings.image) == bool(settings.environment):
        found = "both are" if settings.image else "neither is"
        raise AzureMLError(
            "exactly one of azureml-image and azureml-environment must be set, "
            f"but {found}; set the one that the jobs use"
        )
    for name in ("conda_file", "lock"):
        if getattr(settings, name) and settings.environment:
            raise AzureMLError(
                f"azureml-{name.replace('_', '-')}={getattr(settings, name)!r} has no effect on the "
                f"registered azureml-environment={settings.environment!r}; set azureml-image "
                "instead, or remove it"
            )
    for name in (
        "max_requests_per_second", "request_timeout_s", "retry_minutes", "node_wait_s",
    ):  # fmt: skip
        if getattr(settings, name) <= 0:
            raise AzureMLError(
                f"azureml-{name.replace('_', '-')}={getattr(settings, name)} must be above 0; "
                "correct it"
            )
    read_mounts(settings)
    read_tags(settings.tags)
    read_identity(settings.identity)


def read_mounts(settings: ExecutorSettings) -> tuple[Mount, ...]:
    """Return the mounts in `azureml-mounts`."""
    mounts = []
    for entry in _entries(settings.mounts):
        variable, equals, place = entry.partition("=")
        uri = _URI.fullmatch(place)
        datastore, path = "", place
        if uri:
            datastore, path = uri["datastore"], uri["path"]
        elif ":" in place:
            datastore, _, path = place.partition(":")
        path = path.strip("/")
        if not (equals and path and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable)):
            raise AzureMLError(
                f"azureml-mounts has {entry!r} where NAME=PATH or NAME=DATASTORE:PATH is expected; "
                "NAME is an environment variable, PATH a folder within the datastore"
            )
        mounts.append(
            Mount(variable=variable, datastore=datastore or settings.datastore, path=path)
        )
    return tuple(mounts)


def read_tags(text: str | None) -> dict[str, str]:
    """Return the tags in `azureml-tags`."""
    tags = {}
    for entry in _entries(text):
        key, equals, value = entry.partition("=")
        if not (key and equals) or key.startswith("snakemake_"):
            raise AzureMLError(
                f"azureml-tags has {entry!r} where KEY=VALUE is expected, with a KEY that does not "
                "begin with snakemake_; correct it"
            )
        tags[key] = value
    return tags


def read_identity(text: str | None) -> JobIdentity | None:
    """Return the identity in `azureml-identity`."""
    if not text:
        return None
    kind, _, client_id = text.partition(":")
    is_one = not client_id or (kind == "managed" and _CLIENT_ID.fullmatch(client_id))
    if kind not in ("user", "managed") or not is_one:
        raise AzureMLError(
            f"azureml-identity={text!r} is not user, managed or managed:CLIENT_ID with an ID of "
            "the form 00000000-0000-0000-0000-000000000000; correct it, or remove it to use the "
            "compute's own identity"
        )
    return JobIdentity(kind=kind, client_id=client_id)


def read_resources(
    settings: ExecutorSettings, resources: Mapping[str, object], *, rule: str
) -> JobResources:
    """Return the resources that a job requests, with the settings as defaults."""
    identity = read_identity(settings.identity)
    client_id = identity.client_id if identity else ""
    nodes = _count(resources, "nodes", 1, rule)
    processes = _count(resources, "azureml_processes_per_node", 1, rule)
    is_parallel = nodes * processes > 1
    mounts = read_mounts(settings)
    if nodes > 1 and not mounts:
        raise AzureMLError(
            f"rule {rule} has the resource nodes={nodes}, but azureml-mounts is not set; processes on "
            "several nodes authenticate with a secret in a mounted folder; set "
            "azureml-mounts to NAME=PATH"
        )
    instance_type = str(resources.get("azureml_instance_type") or "")
    fallback = SERVERLESS if instance_type else settings.compute
    compute = str(resources.get("azureml_compute") or fallback or "")
    if not compute:
        raise AzureMLError(
            f"rule {rule} has no compute; set azureml-compute for all rules, or the resource "
            "azureml_compute, or azureml_instance_type for serverless compute"
        )
    if (compute == SERVERLESS) != bool(instance_type):
        raise AzureMLError(
            f"rule {rule} has azureml_compute={compute!r} with "
            f"azureml_instance_type={instance_type!r}; set an instance type for the compute "
            f"{SERVERLESS!r}, and for no other"
        )
    if compute == SERVERLESS and settings.sdk == "v1":
        raise AzureMLError(
            f"rule {rule} requests serverless compute, which azureml-core does not support; set "
            "azureml-sdk to v2 or set azureml_compute to a cluster"
        )
    return JobResources(
        compute=compute,
        instance_type=instance_type,
        nodes=nodes,
        processes_per_node=processes,
        distribution=_distribution(resources, rule, is_parallel),
        mounts=mounts,
        identity=identity,
        # With several identities, the client libraries on the node use the one with this ID.
        variables={"AZURE_CLIENT_ID": client_id} if client_id else {},
        tags=read_tags(settings.tags),
        shm_size=_shm_size(resources, rule),
        docker_args=str(resources.get("docker_args") or ""),
        priority=_priority(settings.sdk, resources, rule),
        time_limit_s=60 * _count(resources, "runtime", 0, rule),
    )


def _entries(text: str | None) -> list[str]:
    return re.split(r"[\s,]+", text.strip()) if text and text.strip() else []


def _count(resources: Mapping[str, Any], name: str, default: int, rule: str) -> int:
    value = resources.get(name)
    if value is None:
        return default
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise _wrong(rule, name, value, "a whole number above 0 is expected")
    return count


def _distribution(resources: Mapping[str, object], rule: str, is_parallel: bool) -> str:
    value = resources.get("azureml_distribution")
    if value is None:
        return "pytorch" if is_parallel else ""
    if value not in _DISTRIBUTIONS:
        raise _wrong(rule, "azureml_distribution", value, "mpi or pytorch is expected")
    return str(value)


def _shm_size(resources: Mapping[str, object], rule: str) -> str:
    value = str(resources.get("shm_size") or "")
    if value and not re.fullmatch(r"[1-9][0-9]*[bkmg]", value):
        expected = "a number with the unit b, k, m or g is expected, such as 16g"
        raise _wrong(rule, "shm_size", value, expected)
    return value


def _priority(sdk: str, resources: Mapping[str, object], rule: str) -> str:
    value = str(resources.get("azureml_priority") or "").lower()
    is_known = value.isdigit() if sdk == "v1" else value in _PRIORITIES
    if value and not is_known:
        expected = "a whole number" if sdk == "v1" else "low, medium or high"
        raise _wrong(rule, "azureml_priority", value, f"azureml-sdk={sdk} expects {expected}")
    return value


def _wrong(rule: str, name: str, value: Any, expected: str) -> AzureMLError:
    return AzureMLError(
        f"rule {rule} has the resource {name}={value!r} where {expected}; correct it"
    )

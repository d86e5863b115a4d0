"""Command jobs of the v2 interface: what a submission asks for, and what may change later."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.azureml.emulator.blobs import read_tree
from tests.azureml.emulator.constants import DATASTORE, SERVERLESS
from tests.azureml.emulator.jobs import Job, JobSpec, Mount
from tests.azureml.emulator.workspace import ServiceError, Workspace

DATASTORE_URI = re.compile(r"azureml://(?:.*/)?datastores/(?P<name>[^/]+)/paths/(?P<path>.*)")
DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)S)?)?"
)
# What of a job may still change once it is submitted.
MUTABLE = {"description", "displayName", "tags", "isArchived", "status", "services", "properties"}


def update(job: Job, properties: Mapping[str, Any]) -> Job:
    """Accept what may change of a job that exists.

    Raises:
        ServiceError: 400, something else differs: the name is taken.
    """
    kept = job.spec.definition
    for key in sorted((set(kept) | set(properties)) - MUTABLE):
        if kept.get(key) != properties.get(key):
            raise ServiceError(
                400,
                "A job with this name already exists. If you are trying to create a new job, use "
                "a different name. If you are trying to update an existing job, the existing "
                f"job's {key} cannot be changed. Only description, displayName, tags, and "
                "isArchived can be updated.",
            )
    job.tags.clear()
    job.tags.update(properties.get("tags") or {})
    return job


def make_spec(workspace: Workspace, name: str, properties: Mapping[str, Any]) -> JobSpec:
    """Return what a command job asks for."""
    resources = properties.get("resources") or {}
    distribution = properties.get("distribution") or {}
    limits = properties.get("limits") or {}
    environment = properties["environmentId"].removeprefix("azureml:").split("/")
    if ("environments", environment[-3], environment[-1]) not in workspace.assets:
        raise ServiceError(404, f"Could not find environment {properties['environmentId']}")
    mounts = [_mount(name, key, i, "INPUT") for key, i in (properties.get("inputs") or {}).items()]
    mounts += [
        _mount(name, key, o, "OUTPUT") for key, o in (properties.get("outputs") or {}).items()
    ]
    command = properties["command"]
    for key, value in (properties.get("inputs") or {}).items():
        if value["jobInputType"] == "literal":
            command = command.replace(f"${{{{inputs.{key}}}}}", value["value"])
    return JobSpec(
        name=name,
        sdk="v2",
        experiment=properties.get("experimentName") or "Default",
        display_name=properties.get("displayName") or name,
        command=command,
        compute=(properties.get("computeId") or SERVERLESS).rpartition("/")[2],
        nodes=resources.get("instanceCount") or 1,
        processes_per_node=distribution.get("processCountPerInstance") or 1,
        distribution=distribution.get("distributionType"),
        environment=properties.get("environmentVariables") or {},
        mounts=tuple(mount for mount in mounts if mount is not None),
        code=_code(workspace, properties.get("codeId")),
        timeout_s=_seconds(limits["timeout"]) if limits.get("timeout") else None,
        priority=(properties.get("queueSettings") or {}).get("priority") or 0,
        shm_size=resources.get("shmSize") or "2g",
        definition=dict(properties),
    )


def _mount(job: str, key: str, asked: Mapping[str, Any], kind: str) -> Mount | None:
    """Return what an input or output asks for; None for a literal."""
    put = kind == "OUTPUT"
    data_type = asked["jobOutputType" if put else "jobInputType"]
    if data_type == "literal":
        return None
    uri = asked.get("uri") or f"azureml://datastores/{DATASTORE}/paths/azureml/{job}/{key}/"
    match = DATASTORE_URI.fullmatch(uri)
    if match is None:
        raise ServiceError(400, f"The uri {uri} of {key} is no path of a datastore")
    return Mount(
        name=key,
        datastore=match["name"],
        path=match["path"].strip("/"),
        mode=asked.get("mode") or ("ReadWriteMount" if put else "ReadOnlyMount"),
        variable=f"AZURE_ML_{kind}_{key}",
        reference=f"${{{{{kind.lower()}s.{key}}}}}",
        is_file=data_type == "uri_file",
    )


def _code(workspace: Workspace, code_id: str | None) -> dict[str, Path]:
    if not code_id:
        return {}
    words = code_id.split("/")
    asset = workspace.assets.get(("codes", words[-3], words[-1]))
    if asset is None:
        raise ServiceError(404, f"Could not find code {code_id}")
    path = urlsplit(asset["properties"]["codeUri"]).path.strip("/")
    return read_tree(workspace.blobs / path)


def _seconds(duration: str) -> float:
    """Return the seconds of a duration such as PT1H30M."""
    match = DURATION.fullmatch(duration)
    if match is None:
        raise ServiceError(400, f"limits.timeout={duration} is no ISO 8601 duration")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

"""The v1 interface: what azureml-core asks of the workspace's own hosts, beside run history."""

import re
import shlex
import uuid
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from flask import Blueprint, Response, jsonify, request

from tests.azureml.emulator.constants import (
    ACCOUNT,
    API,
    BLOBS,
    DATASTORE,
    SIGNATURE,
    WORKSPACE_ID,
)
from tests.azureml.emulator.jobs import JobSpec, Mount, now
from tests.azureml.emulator.workspace import ServiceError, Workspace

EMPTY_SNAPSHOT = "00000000-0000-0000-0000-000000000000"
ENVIRONMENTS = "/environment/v1.0/workspace/environments"
SERVICES = (
    "api", "experimentation", "history", "hyperdrive", "modelmanagement", "pipelines", "catalog", "rawlog",
)  # fmt: skip
RUN_ID = re.compile(r"[a-zA-Z0-9][\w-]{0,254}")


def make_classic(workspace: Workspace) -> Blueprint:
    """Return the routes that only azureml-core asks for."""
    routes = Blueprint("classic", __name__)

    @routes.get("/discovery")
    def discover() -> Response:
        return jsonify({**dict.fromkeys(SERVICES, API), "studio": "https://ml.azure.com"})

    @routes.get("/rp/workspaces/workspace/computes/<name>")
    def get_compute(name: str) -> Response:
        properties = workspace.compute_document(name)
        identifier = f"{WORKSPACE_ID}/computes/{name}"
        kind = "Microsoft.MachineLearningServices/workspaces/computes"
        place = {"location": properties["computeLocation"], "tags": {}}
        return jsonify(id=identifier, name=name, type=kind, properties=properties, **place)

    @routes.get("/datastore/v1.0/workspace/datastores/<name>")
    @routes.get("/datastore/v1.0/workspace/default")
    def get_datastore(name: str = DATASTORE) -> Response:
        return jsonify(_datastore(name, workspace.require_datastore(name)))

    @routes.put(f"{ENVIRONMENTS}/<name>")
    @routes.put(f"{ENVIRONMENTS}/<name>/versions/<version>")
    def put_environment(name: str, version: str = "1") -> Response:
        with workspace.lock:
            # The SDK writes some keys with a capital, and reads none so.
            sent = {key[0].lower() + key[1:]: value for key, value in request.get_json().items()}
            document = {**sent, "name": name, "version": version}
            workspace.environments[name] = document
        return jsonify(document)

    @routes.get(f"{ENVIRONMENTS}/<name>")
    @routes.get(f"{ENVIRONMENTS}/<name>/versions/<version>")
    def get_environment(name: str, version: str = "") -> Response:
        document = workspace.environments.get(name)
        if document is None or version not in ("", document["version"]):
            raise ServiceError(404, f"No environment exists for name: {name}, version: {version}")
        return jsonify(document)

    @routes.get("/content/v1.0/workspace/snapshots/latest/metadata")
    def latest_snapshot() -> Response:
        root = {"name": "", "hash": "", "type": "Directory", "timestamp": now(), "children": {}}
        return jsonify(id=EMPTY_SNAPSHOT, root=root)

    @routes.post("/content/v2.0/workspace/snapshots/getblob")
    def get_upload_addresses() -> Response:
        names = request.get_json()["FileNames"]
        uris = [f"{BLOBS}/snapshots/{uuid.uuid4()}?{SIGNATURE}" for _ in names]
        nodes = [{"fullName": name, "blobUri": uri} for name, uri in zip(names, uris, strict=True)]
        return jsonify(fileNodes=nodes)

    @routes.post("/content/v2.0/workspace/snapshots/<identifier>")
    def put_snapshot(identifier: str) -> Response:
        document = request.get_json()
        with workspace.lock:
            files = dict(workspace.snapshots.get(document.get("ParentSnapshotId") or "", {}))
            for node in document["FileRevisionList"]["FileNodes"]:
                path = urlsplit(node["BlobUri"]).path.lstrip("/")
                files[node["FullName"]] = workspace.blobs / path
            workspace.snapshots[identifier] = files
        return jsonify(id=identifier)

    @routes.post("/execution/v1.0/workspace/experiments/<experiment>/snapshotrun")
    def submit(experiment: str) -> Response:
        document, name = request.get_json(), request.args["runId"]
        if RUN_ID.fullmatch(name) is None:
            raise ServiceError(400, f"runId={name} may hold letters, digits, - and _ alone")
        with workspace.lock:
            if name in workspace.jobs:
                # The client chose the id so that asking again does no harm.
                if workspace.jobs[name].spec.definition != document["Configuration"]:
                    raise ServiceError(409, f"A run with id {name} already exists")
                return jsonify(runId=name)
            spec = _spec(workspace, name, experiment, document)
            tags = document["Configuration"].get("tags") or {}
            workspace.submit(spec, tags=tags, properties={})
        return jsonify(runId=name)

    @routes.post(
        "/execution/v1.0/workspace/experiments/<_>/<any(run, runs, runId):__>/<name>/cancel"
    )
    @routes.post(
        "/execution/v1.0/workspace/experimentids/<_>/<any(run, runs, runId):__>/<name>/cancel"
    )
    def cancel(name: str, **_: str) -> Response:
        workspace.scheduler.cancel(workspace.job(name))
        return jsonify({})

    return routes


def _datastore(name: str, container: str) -> dict[str, Any]:
    storage = {
        "accountName": ACCOUNT,
        "containerName": container,
        "endpoint": "core.windows.net",
        "protocol": "https",
        "credentialType": "Sas",
        "credential": SIGNATURE,
        "isSas": True,
        "sasToken": SIGNATURE,
        "areWorkspaceManagedIdentitiesAllowed": False,
    }
    known = {"hasBeenValidated": True, "tags": {}, "isDefault": name == DATASTORE}
    return {"name": name, "dataStoreType": "AzureBlob", "azureStorageSection": storage, **known}


def _spec(workspace: Workspace, name: str, experiment: str, document: Mapping[str, Any]) -> JobSpec:
    """Return what a run configuration asks for."""
    configuration = document["Configuration"]
    snapshot = workspace.snapshots.get(document["SnapshotId"])
    if snapshot is None:
        raise ServiceError(404, f"Could not find snapshot {document['SnapshotId']}")
    nodes = configuration.get("nodeCount") or 1
    distribution, per_node = _distribution(configuration, nodes)
    environment = configuration.get("environment") or {}
    return JobSpec(
        name=name,
        sdk="v1",
        experiment=experiment,
        display_name=name,
        command=_command(configuration),
        compute=configuration["target"],
        nodes=nodes,
        processes_per_node=per_node,
        distribution=distribution,
        environment={
            **(environment.get("environmentVariables") or {}),
            **(configuration.get("environmentVariables") or {}),
        },
        mounts=tuple(
            _mount(key, reference)
            for key, reference in (configuration.get("dataReferences") or {}).items()
        ),
        code=snapshot,
        timeout_s=configuration.get("maxRunDurationSeconds"),
        priority=configuration.get("priority") or 0,
        shm_size=(configuration.get("docker") or {}).get("shmSize") or "2g",
        definition=configuration,
    )


def _distribution(
    configuration: Mapping[str, Any], nodes: int
) -> tuple[Literal["Mpi", "PyTorch"] | None, int]:
    """Return the kind of distributed job and its processes per node."""
    if configuration.get("framework") == "PyTorch":
        total = (configuration.get("pytorch") or {}).get("processCount") or nodes
        if total % nodes:
            raise ServiceError(
                400, f"pytorch.processCount={total} is no multiple of nodeCount={nodes}"
            )
        return "PyTorch", total // nodes
    if configuration.get("communicator") in ("IntelMpi", "OpenMpi", "Mpi"):
        return "Mpi", (configuration.get("mpi") or {}).get("processCountPerNode") or 1
    return None, 1


def _command(configuration: Mapping[str, Any]) -> str:
    command = configuration.get("command") or ""
    if isinstance(command, list):
        return " ".join(command)
    if command:
        return str(command)
    words = [shlex.quote(str(word)) for word in configuration.get("arguments") or []]
    return " ".join(["python", shlex.quote(configuration["script"]), *words])


def _mount(key: str, reference: Mapping[str, Any]) -> Mount:
    """Return what a data reference asks for."""
    modes: dict[str, Literal["ReadWriteMount", "Download", "Upload"]] = {
        "mount": "ReadWriteMount",
        "download": "Download",
        "upload": "Upload",
    }
    return Mount(
        name=key,
        datastore=reference["dataStoreName"],
        path=(reference.get("pathOnDataStore") or "").strip("/"),
        mode=modes[str(reference.get("mode", "mount")).lower()],
        variable=f"AZUREML_DATAREFERENCE_{key}",
        reference=f"$AZUREML_DATAREFERENCE_{key}",
    )

"""The v2 interface: management.azure.com, as Azure's public description has it."""

import re
import uuid
from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, jsonify, request

from tests.azureml.emulator.command_jobs import make_spec, update
from tests.azureml.emulator.constants import (
    ACCOUNT,
    API,
    BLOBS,
    DATASTORE,
    LOCATION,
    RESOURCE_GROUP,
    SIGNATURE,
    SUBSCRIPTION,
    TENANT,
    WORKSPACE,
    WORKSPACE_GUID,
    WORKSPACE_ID,
)
from tests.azureml.emulator.definitions import check
from tests.azureml.emulator.jobs import Job, now
from tests.azureml.emulator.workspace import ServiceError, Workspace

MACHINE_LEARNING = "Microsoft.MachineLearningServices"
STORAGE_ID = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}"
    f"/providers/Microsoft.Storage/storageAccounts/{ACCOUNT}"
)
PAGE = 50
JOB_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9\-_]{0,254}")
ASSETS = {"codes": "CodeVersion", "environments": "EnvironmentVersion", "data": "DataVersionBase"}


def make_management(workspace: Workspace) -> Blueprint:
    """Return the routes of management.azure.com."""
    routes = Blueprint("management", __name__)

    def datastore_document(name: str) -> dict[str, Any]:
        properties = {
            "datastoreType": "AzureBlob",
            "accountName": ACCOUNT,
            "containerName": workspace.require_datastore(name),
            "endpoint": "core.windows.net",
            "protocol": "https",
            "isDefault": name == DATASTORE,
            "credentials": {"credentialsType": "Sas"},
            "subscriptionId": SUBSCRIPTION,
            "resourceGroup": RESOURCE_GROUP,
            "tags": {},
            "properties": {},
        }
        return _resource("datastores", name, properties)

    @routes.get("/subscriptions")
    def list_subscriptions() -> Response:
        mine = {"id": f"/subscriptions/{SUBSCRIPTION}", "subscriptionId": SUBSCRIPTION}
        return jsonify(
            value=[{**mine, "displayName": "emulated", "state": "Enabled", "tenantId": TENANT}]
        )

    @routes.get("/workspace")
    def get_workspace() -> Response:
        return jsonify(workspace_document())

    @routes.get("/workspace/computes/<name>")
    def get_compute(name: str) -> Response:
        return jsonify(_resource("computes", name, workspace.compute_document(name)))

    @routes.get("/workspace/datastores/<name>")
    def get_datastore(name: str) -> Response:
        return jsonify(datastore_document(name))

    @routes.get("/workspace/datastores")
    def list_datastores() -> Response:
        return jsonify(value=[datastore_document(name) for name in sorted(workspace.datastores)])

    @routes.post("/workspace/datastores/<name>/listSecrets")
    def list_secrets(name: str) -> Response:
        return jsonify(secretsType="Sas", sasToken=SIGNATURE)

    @routes.get("/workspace/<any(codes, environments, data):kind>/<name>")
    def get_container(kind: str, name: str) -> Response:
        versions = [version for (k, n, version) in workspace.assets if (k, n) == (kind, name)]
        if not versions:
            raise ServiceError(404, f"{kind} {name} was not found")
        container = {"latestVersion": versions[-1], "nextVersion": str(len(versions) + 1)}
        return jsonify(_resource(kind, name, {**container, "isArchived": False}))

    @routes.get("/workspace/<any(codes, environments, data):kind>/<name>/versions")
    def list_versions(kind: str, name: str) -> Response:
        digest = request.args.get("hash")
        with workspace.lock:
            found = [
                asset
                for (k, n, _), asset in workspace.assets.items()
                if (k, n) == (kind, name) and digest in (None, _digest(asset))
            ]
        return jsonify(value=found)

    @routes.get("/workspace/<any(codes, environments, data):kind>/<name>/versions/<version>")
    def get_version(kind: str, name: str, version: str) -> Response:
        asset = workspace.assets.get((kind, name, version))
        if asset is None:
            raise ServiceError(404, f"Could not find asset {name}:{version} in {kind}")
        return jsonify(asset)

    @routes.put("/workspace/<any(codes, environments, data):kind>/<name>/versions/<version>")
    def put_version(kind: str, name: str, version: str) -> tuple[Response, int]:
        document = check(ASSETS[kind], request.get_json())
        properties = document["properties"]
        if kind == "data":
            properties |= {"dataUri": _whole_uri(properties["dataUri"])}
        asset = _resource(f"{kind}/{name}/versions", version, properties)
        with workspace.lock:
            is_new = (kind, name, version) not in workspace.assets
            workspace.assets[kind, name, version] = asset
        return jsonify(asset), 201 if is_new else 200

    @routes.post("/workspace/codes/<name>/versions/<version>/startPendingUpload")
    def start_upload(name: str, version: str) -> Response:
        check("PendingUploadRequestDto", request.get_json())
        uri = f"{BLOBS}/code-{name}-{version}"
        credential = {"credentialType": "SAS", "sasUri": f"{uri}?{SIGNATURE}"}
        return jsonify(
            pendingUploadId=str(uuid.uuid4()),
            pendingUploadType="TemporaryBlobReference",
            blobReferenceForConsumption={
                "blobUri": uri,
                "storageAccountArmId": STORAGE_ID,
                "credential": credential,
            },
        )

    @routes.put("/workspace/jobs/<name>")
    def put_job(name: str) -> tuple[Response, int]:
        properties = check("JobBase", request.get_json())["properties"]
        if not JOB_NAME.fullmatch(name):
            raise ServiceError(400, f"The job name {name} has not the form {JOB_NAME.pattern}")
        with workspace.lock:
            if name in workspace.jobs:
                return jsonify(_job(update(workspace.jobs[name], properties))), 200
            job = workspace.submit(
                make_spec(workspace, name, properties),
                tags=properties.get("tags") or {},
                properties=properties.get("properties") or {},
            )
        return jsonify(_job(job)), 201

    @routes.get("/workspace/jobs/<name>")
    def get_job(name: str) -> Response:
        return jsonify(_job(workspace.job(name)))

    @routes.get("/workspace/jobs")
    def list_jobs() -> Response:
        with workspace.lock:
            jobs = [job for job in reversed(workspace.jobs.values()) if job.spec.sdk == "v2"]
        tag = request.args.get("tag", "")
        if tag:
            name, _, value = tag.partition("=")
            jobs = [job for job in jobs if job.tags.get(name) == (value or job.tags.get(name, ""))]
        skip = int(request.args.get("$skip", "0"))
        page: dict[str, Any] = {"value": [_job(job) for job in jobs[skip : skip + PAGE]]}
        if len(jobs) > skip + PAGE:
            version = request.args.get("api-version", "")
            query = f"api-version={version}&tag={tag}&$skip={skip + PAGE}"
            page["nextLink"] = f"https://management.azure.com{WORKSPACE_ID}/jobs?{query}"
        return jsonify(page)

    @routes.post("/workspace/jobs/<name>/cancel")
    def cancel_job(name: str) -> tuple[Response, int, dict[str, str]]:
        workspace.scheduler.cancel(workspace.job(name))
        return Response(), 202, _operation(name)

    operations = f"/subscriptions/<_>/providers/{MACHINE_LEARNING}/locations/<__>"

    @routes.get(f"{operations}/mfeOperationResults/<name>")
    def get_operation(_: str, __: str, name: str) -> tuple[Response, int, dict[str, str]]:
        if workspace.job(name).is_over:
            return Response(), 200, {}
        return Response(), 202, _operation(name)

    return routes


def workspace_document() -> dict[str, Any]:
    """Return what Resource Manager says of the workspace."""
    return {
        "id": WORKSPACE_ID,
        "name": WORKSPACE,
        "location": LOCATION,
        "type": f"{MACHINE_LEARNING}/workspaces",
        "sku": {"name": "Basic", "tier": "Basic"},
        "identity": {"type": "SystemAssigned", "principalId": TENANT, "tenantId": TENANT},
        "properties": {
            "workspaceId": WORKSPACE_GUID,
            "friendlyName": WORKSPACE,
            "discoveryUrl": f"{API}/discovery",
            "provisioningState": "Succeeded",
            "storageAccount": STORAGE_ID,
            "mlFlowTrackingUri": f"azureml://{LOCATION}.api.azureml.ms/mlflow/v1.0{WORKSPACE_ID}",
        },
    }


def _resource(kind: str, name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the envelope that Resource Manager puts around everything."""
    types = "/".join(kind.split("/")[::2])
    return {
        "id": f"{WORKSPACE_ID}/{kind}/{name}",
        "name": name,
        "type": f"{MACHINE_LEARNING}/workspaces/{types}",
        "properties": dict(properties),
        "systemData": {"createdAt": now(), "createdBy": "tester", "createdByType": "User"},
    }


def _whole_uri(uri: str) -> str:
    """Return the address of what lies in a datastore as the service gives it back."""
    workspace = f"{RESOURCE_GROUP}/workspaces/{WORKSPACE}"
    whole = f"azureml://subscriptions/{SUBSCRIPTION}/resourcegroups/{workspace}/datastores/"
    return uri.replace("azureml://datastores/", whole)


def _digest(asset: Mapping[str, Any]) -> str | None:
    return (asset["properties"].get("properties") or {}).get("hash_sha256")


def _operation(name: str) -> dict[str, str]:
    """Return the headers that lead to a long-running operation's result."""
    path = f"/subscriptions/{SUBSCRIPTION}/providers/{MACHINE_LEARNING}/locations/{LOCATION}"
    version = request.args.get("api-version", "")
    location = f"https://management.azure.com{path}/mfeOperationResults/{name}"
    return {"Location": f"{location}?api-version={version}", "Retry-After": "1"}


def _job(job: Job) -> dict[str, Any]:
    """Return a job as this interface shows it; one of v1 shows as much as is known."""
    # Clients add their tenant to it.
    studio = f"https://ml.azure.com/runs/{job.name}?wsid={WORKSPACE_ID}"
    services = {"Tracking": f"azureml://{LOCATION}.api.azureml.ms", "Studio": studio}
    properties = {
        **job.spec.definition,
        "status": job.status,
        "tags": job.tags,
        "properties": job.properties,
        "services": {
            kind: {"jobServiceType": kind, "endpoint": endpoint}
            for kind, endpoint in services.items()
        },
    }
    return _resource("jobs", job.name, properties)

"""Run history and artifacts: what both SDKs ask when they follow a run or fetch its logs."""

import re
from typing import Any

from flask import Blueprint, Response, jsonify, request

from tests.azureml.emulator.constants import (
    API,
    ARTIFACT_DATASTORE,
    ARTIFACTS,
    BLOBS,
    SIGNATURE,
    WORKSPACE_ID,
)
from tests.azureml.emulator.jobs import Job
from tests.azureml.emulator.workspace import ServiceError, Workspace

ORIGIN = "ExperimentRun"
COMPARISON = re.compile(r"([\w/.-]+) (eq|ne) (\"[^\"]*\"|'[^']*'|\w+)")
RUN = "/history/v1.0/workspace/runs/<name>"
RUN_OF_EXPERIMENT = "/history/v1.0/workspace/<any(experiments, experimentids):_>/<__>/runs/<name>"
ARTIFACT = "/artifact/v2.0/workspace/artifacts"


def make_history(workspace: Workspace) -> Blueprint:
    """Return the routes of run history and of the artifact store."""
    routes = Blueprint("history", __name__)

    @routes.get("/history/v1.0/workspace/experiments/<name>")
    def get_experiment(name: str) -> Response:
        if name not in workspace.experiments:
            raise ServiceError(404, f"Experiment {name} was not found")
        return jsonify(workspace.experiments[name])

    @routes.post("/history/v1.0/workspace/experiments/<name>")
    def make_experiment(name: str) -> Response:
        with workspace.lock:
            return jsonify(workspace.experiment(name))

    @routes.get("/history/v1.0/workspace/experimentids/<identifier>")
    def get_experiment_by_id(identifier: str) -> Response:
        for experiment in workspace.experiments.values():
            if experiment["experimentId"] == identifier:
                return jsonify(experiment)
        raise ServiceError(404, f"Experiment {identifier} was not found")

    @routes.get(RUN)
    @routes.get(RUN_OF_EXPERIMENT)
    def get_run(name: str, **_: str) -> Response:
        return jsonify(_run(workspace, workspace.job(name)))

    @routes.patch(RUN)
    @routes.patch(RUN_OF_EXPERIMENT)
    def patch_run(name: str, **_: str) -> Response:
        job, changes = workspace.job(name), request.get_json()
        with workspace.lock:
            job.tags.update(changes.get("tags") or {})
            job.properties.update(changes.get("properties") or {})
        return jsonify(_run(workspace, job))

    @routes.get(f"{RUN}/details")
    @routes.get(f"{RUN_OF_EXPERIMENT}/details")
    def get_details(name: str, **_: str) -> Response:
        return jsonify(_details(workspace.job(name)))

    @routes.get(f"{RUN}/children")
    @routes.get(f"{RUN_OF_EXPERIMENT}/children")
    def get_children(name: str, **_: str) -> Response:
        workspace.job(name)
        return jsonify(value=[])

    @routes.get(f"{RUN_OF_EXPERIMENT}/metricsingest/wait")
    def wait_for_metrics(name: str, **_: str) -> Response:
        return jsonify({})

    @routes.post("/history/v1.0/workspace/rundata")
    def get_run_data() -> Response:
        job = workspace.job(request.get_json()["runId"])
        return jsonify(runMetadata=_run(workspace, job), runDefinition=None, jobSpecification=None)

    @routes.post("/history/v1.0/workspace/<any(experiments, experimentids):_>/<name>/runs:query")
    def query_runs(name: str, **_: str) -> Response:
        query = request.get_json()
        with workspace.lock:
            jobs = [job for job in reversed(workspace.jobs.values()) if job.spec.experiment == name]
        found = [job for job in jobs if _matches(job, query.get("filter") or "")]
        return jsonify(value=[_run(workspace, job) for job in found[: query.get("top") or None]])

    @routes.get(f"{RUN_OF_EXPERIMENT}/artifacts")
    def list_run_artifacts(name: str, **_: str) -> Response:
        return jsonify(value=_artifacts(workspace.job(name)))

    @routes.get(f"{ARTIFACT}/{ORIGIN}/dcid.<name>")
    def list_artifacts(name: str) -> Response:
        return jsonify(value=_artifacts(workspace.job(name)))

    @routes.get(f"{ARTIFACT}/prefix/contentinfo/{ORIGIN}/dcid.<name>")
    @routes.get(f"{ARTIFACT}/prefix/contentinfo/{ORIGIN}/dcid.<name>/<path:prefix>")
    def list_by_prefix(name: str, prefix: str = "") -> Response:
        found = _artifacts(workspace.job(name))
        return jsonify(
            value=[artifact for artifact in found if artifact["path"].startswith(prefix)]
        )

    @routes.get(f"{ARTIFACT}/contentinfo/{ORIGIN}/dcid.<name>/<path:path>")
    def get_artifact(name: str, path: str) -> Response:
        for artifact in _artifacts(workspace.job(name)):
            if artifact["path"] == path:
                return jsonify(artifact)
        raise ServiceError(404, f"Artifact {path} of run {name} was not found")

    return routes


def _uri(job: Job, path: str) -> str:
    return f"{BLOBS}/{ARTIFACTS}/{ORIGIN}/dcid.{job.name}/{path}?{SIGNATURE}"


def _artifacts(job: Job) -> list[dict[str, Any]]:
    container = f"dcid.{job.name}"
    return [
        {
            "artifactId": f"{ORIGIN}/{container}/{path}",
            "origin": ORIGIN,
            "container": container,
            "path": path,
            "createdTime": job.created,
            "contentUri": _uri(job, path),
        }
        for path in job.artifact_paths()
    ]


def _matches(job: Job, condition: str) -> bool:
    """Return whether a query's condition, comparisons joined by `and`, holds for a run.

    Raises:
        ServiceError: 400, it is more than that.
    """
    if re.search(r"\bor\b|\bnot\b|\b[gl][et]\b", re.sub(r"\"[^\"]*\"", "", condition)):
        raise ServiceError(400, f"the emulator does not know the filter {condition}")
    tables = {"tags": job.tags, "properties": job.properties}
    fields = {"runid": job.name, "status": job.status, "target": job.spec.compute}
    for key, comparison, value in COMPARISON.findall(condition):
        kind, _, name = key.partition("/")
        table = tables.get(kind.lower())
        found = fields.get(key.lower()) if table is None else table.get(name)
        wanted = None if value == "null" else value.strip("\"'")
        if (found == wanted) != (comparison == "eq"):
            return False
    return True


def _error(job: Job) -> dict[str, Any] | None:
    if not job.error:
        return None
    error: dict[str, Any] = {
        "code": "UserError",
        "message": job.error,
        "details": [],
        "innerError": None,
    }
    return {"error": error, "correlation": None, "time": job.ended}


def _run(workspace: Workspace, job: Job) -> dict[str, Any]:
    """Return a run as run history keeps it."""
    outputs = {
        "assetId": f"azureml://datastores/{ARTIFACT_DATASTORE}/paths/{ORIGIN}/dcid.{job.name}/",
        "type": "UriFolder",
    }
    return {
        "runId": job.name,
        "runNumber": 1 + list(workspace.jobs).index(job.name),
        "rootRunId": job.name,
        "experimentId": workspace.experiment(job.spec.experiment)["experimentId"],
        "experimentName": job.spec.experiment,
        "displayName": job.spec.display_name,
        "status": job.status,
        "createdUtc": job.created,
        "startTimeUtc": job.started,
        "endTimeUtc": job.ended,
        "dataContainerId": f"dcid.{job.name}",
        "runType": "azureml.scriptrun" if job.spec.sdk == "v1" else "azureml.commandjob",
        "target": job.spec.compute,
        "properties": job.properties,
        "tags": job.tags,
        "cancelUri": f"{API}/execution/v1.0{WORKSPACE_ID}/experiments/{job.spec.experiment}"
        f"/runId/{job.name}/cancel",
        "error": _error(job),
        "warnings": _warnings(job),
        "outputs": {"default": outputs},
    }


def _warnings(job: Job) -> list[dict[str, str]]:
    return [{"source": "Execution", "message": job.warning}] if job.warning else []


def _details(job: Job) -> dict[str, Any]:
    """Return a run's state and the addresses of its logs."""
    return {
        "runId": job.name,
        "target": job.spec.compute,
        "status": job.status,
        "startTimeUtc": job.started,
        "endTimeUtc": job.ended,
        "properties": job.properties,
        "error": _error(job),
        "warnings": _warnings(job),
        "runDefinition": dict(job.spec.definition),
        "logFiles": {
            path: _uri(job, path)
            for path in job.artifact_paths()
            if path.startswith(("user_logs/", "system_logs/"))
        },
        "inputDatasets": [],
        "outputDatasets": [],
    }

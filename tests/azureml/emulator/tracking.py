"""Runs as MLflow sees them, and their files, as far as azureml-mlflow asks for them.

Answers are those of https://mlflow.org/docs/latest/rest-api.html; limits are MLflow's, or Azure
ML's documented ones where they are lower.
"""

import math
import re
from typing import Any

from flask import Blueprint, Response, jsonify, request

from tests.azureml.emulator.constants import ARTIFACTS, BLOBS, SIGNATURE, experiment_id
from tests.azureml.emulator.credential import make_token
from tests.azureml.emulator.history import ORIGIN, RUN_OF_EXPERIMENT
from tests.azureml.emulator.jobs import Job, Measurement
from tests.azureml.emulator.workspace import ServiceError, Workspace

MLFLOW = "/mlflow/v2.0/workspace/api/2.0/mlflow"
STATUSES = {"Completed": "FINISHED", "Failed": "FAILED", "Canceled": "KILLED"}
NAME = re.compile(r"[\w\-. /]{1,250}")
MOST = {"metrics": 250, "params": 100, "tags": 100}  # at once
MOST_TAGS, TAG_LENGTH, PARAM_LENGTH, MOST_METRICS = 50, 1000, 6000, 50  # of a run
TOKEN_S = 3600.0


def make_tracking(workspace: Workspace) -> Blueprint:
    """Return the routes of MLflow and of what its plugin asks besides."""
    routes = Blueprint("tracking", __name__)

    @routes.get(f"{MLFLOW}/runs/get")
    def get_run() -> Response:
        return jsonify(run=_run(workspace.job(request.args["run_id"])))

    @routes.post(f"{MLFLOW}/runs/log-batch")
    def log_batch() -> Response:
        body = request.get_json()
        unknown = body.keys() - {"run_id", "metrics", "params", "tags"}
        if unknown:
            raise ServiceError(400, f"log-batch does not know {', '.join(sorted(unknown))}")
        job = workspace.job(body["run_id"])
        with workspace.lock:
            _check(job, body)
            job.metrics += [_measurement(metric) for metric in body.get("metrics", [])]
            job.params.update({param["key"]: param["value"] for param in body.get("params", [])})
            job.tags.update({tag["key"]: tag["value"] for tag in body.get("tags", [])})
        return jsonify({})

    @routes.get(f"{RUN_OF_EXPERIMENT}/token")
    def get_token(name: str, **_: str) -> Response:
        token = make_token(TOKEN_S, run=workspace.job(name).name)
        return jsonify(token=token.token, expiryTimeUtc=token.expires_at)

    @routes.post(f"{RUN_OF_EXPERIMENT}/artifacts/batch/metadata")
    def make_artifacts(name: str, **_: str) -> Response:
        job, made, refused = workspace.job(name), {}, {}
        for path in (artifact["path"] for artifact in request.get_json()["paths"]):
            identifier = f"{ORIGIN}/dcid.{job.name}/{path}"
            with workspace.lock:
                if path in job.claimed:
                    words = f"Resource Conflict: ArtifactId {identifier} already exists."
                    refused[path] = {"error": {"code": "UserError", "message": words}}
                    continue
                job.claimed.add(path)
            place = {"origin": ORIGIN, "container": f"dcid.{job.name}", "path": path}
            uri = f"{BLOBS}/{ARTIFACTS}/{identifier}?{SIGNATURE}"
            made[path] = {**place, "contentUri": uri}
        return jsonify(artifacts={}, artifactContentInformation=made, errors=refused)

    return routes


def _check(job: Job, body: dict[str, Any]) -> None:
    """Refuse what is not well-formed, too much, or another value of a parameter.

    Raises:
        ServiceError: 400; says what.
    """
    for kind, most in MOST.items():
        entries = body.get(kind, [])
        if len(entries) > most:
            raise ServiceError(400, f"{len(entries)} {kind} in one request; at most {most}")
        for entry in entries:
            if not NAME.fullmatch(entry["key"]):
                raise ServiceError(400, f"Invalid name of {kind}: {entry['key']}")
    for param in body.get("params", []):
        if job.params.get(param["key"], param["value"]) != param["value"]:
            raise ServiceError(400, f"Changing param {param['key']} is not allowed.")
        if len(param["value"]) > PARAM_LENGTH:
            raise ServiceError(400, f"Param {param['key']} is too long")
    tags = body.get("tags", [])
    if any(len(tag["value"]) > TAG_LENGTH for tag in tags):
        raise ServiceError(400, "a tag is too long")
    if len(job.tags.keys() | {tag["key"] for tag in tags}) > MOST_TAGS:
        raise ServiceError(400, f"more than {MOST_TAGS} tags")
    metrics = body.get("metrics", [])
    if not all(math.isfinite(float(metric["value"])) for metric in metrics):
        raise ServiceError(400, "a metric is not finite")
    names = {metric.key for metric in job.metrics} | {metric["key"] for metric in metrics}
    if len(names) > MOST_METRICS:
        raise ServiceError(400, f"more than {MOST_METRICS} metrics")


def _measurement(metric: dict[str, Any]) -> Measurement:
    # Protocol Buffers write 64-bit numbers as text, and leave zeros out
    return Measurement(
        metric["key"], float(metric["value"]), int(metric["timestamp"]), int(metric.get("step", 0))
    )


def _run(job: Job) -> dict[str, Any]:
    latest = {metric.key: metric for metric in job.metrics}
    return {
        "info": {
            "run_id": job.name,
            "run_uuid": job.name,
            "run_name": job.spec.display_name,
            "experiment_id": experiment_id(job.spec.experiment),
            "status": STATUSES.get(job.status, "RUNNING"),
            "start_time": 0,
            "artifact_uri": f"azureml://experiments/{job.spec.experiment}/runs/{job.name}/artifacts",
            "lifecycle_stage": "active",
        },
        "data": {
            "metrics": [vars(metric) for metric in latest.values()],
            "params": [{"key": key, "value": value} for key, value in job.params.items()],
            "tags": [{"key": key, "value": value} for key, value in job.tags.items()],
        },
    }

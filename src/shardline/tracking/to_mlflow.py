"""A training as a run of MLflow: https://mlflow.org/docs/latest/rest-api.html."""

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardline.errors import ShardlineError
from shardline.files import write_json
from shardline.tracking.records import Batch

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_NOTE = "mlflow.json"
_RUN, _STEP = "shardline.run", "shardline.step"
_EXPERIMENT = "shardline"
# At most in one request; MLflow takes 1000 values, Azure ML's documented limit is 250.
VALUES_AT_ONCE, _PARAMS_AT_ONCE = 249, 100
_PARAM_CHARACTERS, _TAG_CHARACTERS = 6000, 1000  # the latter is Azure ML's
# A request is tried once: who follows the training tries again, and asks first what came through.
_CLIENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "AZUREML_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_STATUS = {"sealed": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_FORBIDDEN = re.compile(r"[^\w\-. /]")


class MlflowRun:
    """The run of MLflow that shows a training.

    It is the one that MLFLOW_RUN_ID names, as Azure ML does in its jobs, or one
    of our own, whose id the run's folder keeps so that a resumed training goes
    on in it. Its tag `shardline.step` is the last step that it has.

    Args:
        story: the fields of `shardline.tracking.Story`.
    """

    def __init__(self, story: Mapping[str, Any]) -> None:
        self._story = story
        self._note = Path(story["work"], _NOTE)
        self._client: MlflowClient | None = None
        self._given = os.environ.get("MLFLOW_RUN_ID", "")
        self.run_id = ""
        self.files: list[str] = []  # names of what it has
        for name, value in _CLIENT.items():
            os.environ.setdefault(name, value)

    def open(self) -> int:
        """Find or make the run, describe it, and return the last step that it has; -1 for none."""
        from mlflow import MlflowClient
        from mlflow.entities import Param, RunTag

        self._client = MlflowClient()
        run = self._find(self._client)
        tags = run.data.tags
        holds = tags.get(_RUN)
        if holds not in (None, self._story["run"]):
            raise ShardlineError(
                f"MLFLOW_RUN_ID={self.run_id} holds {holds} already; name another run, or none"
            )
        if holds is None:
            params = [
                Param(_name(key), _text(value)[:_PARAM_CHARACTERS])
                for key, value in self._story["params"].items()
            ]
            for begin in range(0, len(params), _PARAMS_AT_ONCE):
                self._client.log_batch(self.run_id, params=params[begin : begin + _PARAMS_AT_ONCE])
            told = {**self._story["tags"], _RUN: self._story["run"]}
            told_tags = [RunTag(key, value[:_TAG_CHARACTERS]) for key, value in told.items()]
            self._client.log_batch(self.run_id, tags=told_tags)
        return int(tags.get(_STEP, -1))

    def send(self, batch: Batch, started: float | None) -> None:
        """Send a batch of values, and with the last of them how far it goes.

        Args:
            started: time in seconds at which a training without pauses would have begun.
        """
        from mlflow.entities import Metric, RunTag

        assert self._client is not None
        now = time.time()
        metrics = [
            Metric(
                _name(value.name),
                value.value,
                _milliseconds(started, value.wall_s, now),
                value.step,
            )
            for value in batch.values
        ]
        size = VALUES_AT_ONCE
        parts = [metrics[begin : begin + size] for begin in range(0, len(metrics), size)] or [[]]
        for part in parts[:-1]:
            self._client.log_batch(self.run_id, metrics=part)
        tag = RunTag(_STEP, str(batch.step))
        self._client.log_batch(self.run_id, metrics=parts[-1], tags=[tag])

    def upload(self, file: Path, folder: str = "") -> None:
        """Send a file, and note that it is there."""
        assert self._client is not None
        self._client.log_artifact(self.run_id, str(file), folder or None)
        self.files.append(file.name)
        self._write_note()

    def close(self, how: str) -> None:
        """Say how the training has ended; a run that was given is ended by who gave it."""
        if self._client and self.run_id and not self._given:
            self._client.set_terminated(self.run_id, _STATUS[how])

    def _find(self, client: "MlflowClient") -> "Run":
        note = self._read_note()
        if self._given:
            run = client.get_run(self._given)
        else:
            run = self._resume(client, note.get("run_id", "")) or client.create_run(
                _experiment(client), run_name=self._story["name"]
            )
        if run.info.run_id != self.run_id:
            self.run_id = run.info.run_id
            self.files = note["files"] if note.get("run_id") == self.run_id else []
            self._write_note()
        return run

    def _resume(self, client: "MlflowClient", run_id: str) -> "Run | None":
        """Return the run of an earlier start; None where there is none any more."""
        from mlflow.exceptions import MlflowException

        if not run_id:
            return None
        try:
            run = client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        if run.info.lifecycle_stage != "active":
            return None
        client.update_run(run_id, status="RUNNING")
        return run

    def _read_note(self) -> dict[str, Any]:
        try:
            note: dict[str, Any] = json.loads(self._note.read_bytes())
        except (OSError, ValueError):
            return {}
        return note

    def _write_note(self) -> None:
        write_json(self._note, {"run_id": self.run_id, "files": self.files})


def _experiment(client: "MlflowClient") -> str:
    """Return the experiment's id; it is made where there is none."""
    from mlflow.exceptions import MlflowException

    if identifier := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return identifier
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
    for is_last in (False, True):
        if found := client.get_experiment_by_name(name):
            return str(found.experiment_id)
        try:
            return str(client.create_experiment(name))
        except MlflowException:  # another training may just have made it
            if is_last:
                raise
    raise AssertionError


def _milliseconds(started: float | None, wall_s: float | None, now: float) -> int:
    return int(1000 * (now if started is None or wall_s is None else started + wall_s))


def _name(key: str) -> str:
    return _FORBIDDEN.sub("_", key)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

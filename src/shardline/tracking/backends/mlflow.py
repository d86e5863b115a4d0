"""MLflow tracker: https://mlflow.org/docs/latest/rest-api.html."""

import hashlib
import json
import os
import posixpath
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from filelock import FileLock

from shardline.core.errors import ShardlineError
from shardline.core.files import make_folder
from shardline.records.tracking import TrackingContext
from shardline.tracking.logged_files import files_of
from shardline.tracking.metric_batches import MetricBatch
from shardline.tracking.run_links import RunLinks
from shardline.tracking.tracker import Tracker, shorten

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_RUN, _STEP = "shardline.run", "shardline.step"
_EXPERIMENT = "shardline"
_LOGGED = "logged"  # folder of images, tables and texts
# Limits per request: MLflow accepts 1000 values, Azure ML documents 250.
_VALUES_AT_ONCE, _PARAMS_AT_ONCE = 249, 100
_PARAM_CHARACTERS, _TAG_CHARACTERS = 6000, 1000  # the second limit is Azure ML's
# The client sends each request once. The tracker process retries, and first asks what has arrived.
_CLIENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "AZUREML_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_STATUS = {"sealed": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_FORBIDDEN = re.compile(r"[^\w\-. /]")
_NAME_CHARACTERS = 250
_CREDENTIALS = re.compile(r"(?<=://)[^/@]*@|[?#].*")
_LOCK_S = 60.0  # creating the tables takes seconds


class MlflowRun(Tracker):
    """Tracker that shows a training as an MLflow run.

    If MLFLOW_RUN_ID is set, as in jobs of Azure ML, the tracker uses this run. Otherwise it creates a run and
    saves the run's id, so that a resumed training continues the same run. The tag `shardline.step` is the last
    step sent. Without MLFLOW_TRACKING_URI, the run is in a SQLite store below `{store}/mlflow`.
    """

    label = "MLflow"
    takes_model = takes_checkpoints = True
    values_at_once = _VALUES_AT_ONCE

    def __init__(self, context: TrackingContext, links: RunLinks) -> None:
        super().__init__(context, links)
        self._local = Path(context.store, "mlflow")
        self._uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self._local}/mlflow.db"
        self._is_local = not os.environ.get("MLFLOW_TRACKING_URI")
        # MLflow's store of files has no transactions: who reads a run while another thread writes fails.
        self._turn = Lock() if urlsplit(self._uri).scheme in ("", "file") else nullcontext()
        self._client: MlflowClient | None = None
        self._given = os.environ.get("MLFLOW_RUN_ID", "")
        self.run_id = ""
        self._names: dict[str, str] = links.read().get("names", {})  # of metrics, as sent
        for name, value in _CLIENT.items():
            os.environ.setdefault(name, value)
        known = links.read().get("where", {})
        uri = without_credentials(self._uri)
        if known.get("uri") != uri:
            links.write(where={"run_id": None, "experiment_id": None, "uri": uri})

    @property
    def place(self) -> str:
        """Id of the run."""
        return f"run {self.run_id}"

    def open(self) -> int:
        """Find or create the run, describe it, and return the last step sent; -1 for none."""
        from mlflow import MlflowClient

        with self._lock():
            self._client = MlflowClient(self._uri)
            run = self._find(self._client)
        tags = run.data.tags
        holds = tags.get(_RUN)
        if holds not in (None, self._context.run):
            raise ShardlineError(
                f"MLFLOW_RUN_ID={self.run_id} already contains {holds}; expected an empty run; set another id or none"
            )
        if holds is None:
            self._describe(self._client)
        return int(tags.get(_STEP, -1))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the local store while a training creates its tables and experiment.

        MLflow's client creates tables without a lock: of three clients at once, two failed ("duplicate
        column name").
        """
        if not self._is_local:
            with self._turn:
                yield
            return
        make_folder(self._local)
        with FileLock(self._local / "lock", timeout=_LOCK_S):
            yield

    def _describe(self, client: "MlflowClient") -> None:
        """Send parameters, dataset and tags; the tag with the run's id comes last and marks the rest as complete."""
        from mlflow.entities import Param, RunTag

        params = [
            Param(_name(key), _text(value)[:_PARAM_CHARACTERS])
            for key, value in self._context.params.items()
        ]
        for begin in range(0, len(params), _PARAMS_AT_ONCE):
            client.log_batch(self.run_id, params=params[begin : begin + _PARAMS_AT_ONCE])
        if not self._uri.startswith("azureml:"):  # Azure ML has no MLflow datasets
            self._describe_dataset(client)
        tags = {**self._context.tags, _RUN: self._context.run}
        if commit := tags.get("shardline.commit"):
            tags["mlflow.source.git.commit"] = commit  # MLflow's page shows this tag as the version
        run_tags = [RunTag(key, value[:_TAG_CHARACTERS]) for key, value in tags.items()]
        client.log_batch(self.run_id, tags=run_tags)

    def _describe_dataset(self, client: "MlflowClient") -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag
        from mlflow.exceptions import MlflowException

        identity = self._context.dataset
        source = json.dumps({"id": identity})
        dataset = Dataset(self._context.dataset_name, identity, "shardline", source)
        context = InputTag("mlflow.data.context", "training")
        try:
            client.log_inputs(self.run_id, datasets=[DatasetInput(dataset, [context])])
        except MlflowException as error:  # older servers have no datasets
            self.warning = f"the dataset cannot be sent to MLflow; the tags of the run contain it: {shorten(error)}"

    def send(self, batch: MetricBatch, started: float | None) -> None:
        """Send a batch of values, and set the tag of the last step with the last values."""
        from mlflow.entities import Metric, RunTag

        assert self._client is not None
        now = time.time()
        metrics = [
            Metric(
                self._name_of(value.name),
                value.value,
                _milliseconds(started, value.wall_s, now),
                value.step,
            )
            for value in batch.values
        ]
        self._send_logged(batch)  # first, since the tag marks all of the batch as sent
        size = _VALUES_AT_ONCE
        parts = [metrics[begin : begin + size] for begin in range(0, len(metrics), size)] or [[]]
        tag = RunTag(_STEP, str(batch.step))
        with self._turn:
            for part in parts[:-1]:
                self._client.log_batch(self.run_id, metrics=part)
            self._client.log_batch(self.run_id, metrics=parts[-1], tags=[tag])

    def _send_logged(self, batch: MetricBatch) -> None:
        """Send images, tables and texts as files, which replace those of an earlier try."""
        assert self._client is not None
        with TemporaryDirectory() as folder:
            for line in batch.logged:
                for name, content in files_of(line):
                    path = Path(folder, Path(name).name)
                    path.write_bytes(content)
                    where = f"{_LOGGED}/{Path(name).parent}"
                    with self._turn:
                        self._client.log_artifact(self.run_id, str(path), where)

    def _name_of(self, metric: str) -> str:
        """Return the name under which MLflow gets a metric; two metrics never share one."""
        if metric not in self._names:
            name = _name(metric)
            if name in self._names.values():
                name = f"{name[: _NAME_CHARACTERS - 9]}-{hashlib.sha256(metric.encode()).hexdigest()[:8]}"
            self._names[metric] = name
            if any(sent != given for given, sent in self._names.items()):
                self.links.write(names=self._names)  # a resumed training must send the same names
        return self._names[metric]

    def upload(self, file: Path, folder: str = "") -> None:
        """Send a file, and record its name."""
        assert self._client is not None
        with self._turn:
            self._client.log_artifact(self.run_id, str(file), folder or None)
        self.files.append(file.name)
        self.links.write(files=self.files)

    def close(self, how: str) -> None:
        """Record how the training ended, unless MLFLOW_RUN_ID named the run; its owner then ends it."""
        if self._client and self.run_id and not self._given:
            self._client.set_terminated(self.run_id, _STATUS[how])

    def _find(self, client: "MlflowClient") -> "Run":
        links = self.links.read()
        where = links["where"]
        if self._given:
            run = client.get_run(self._given)
        else:
            artifacts = (self._local / "artifacts").absolute().as_uri() if self._is_local else None
            run = self._resume(client, where["run_id"]) or client.create_run(
                _experiment(client, artifacts), run_name=self._context.name
            )
        info = run.info
        if info.run_id != self.run_id:
            self.run_id = info.run_id
            self.files = links.get("files", []) if where["run_id"] == self.run_id else []
            ids = {"run_id": info.run_id, "experiment_id": info.experiment_id}
            self.links.write(where={**ids, "uri": where["uri"]}, files=self.files)
        return run

    def _resume(self, client: "MlflowClient", run_id: str | None) -> "Run | None":
        """Return the run of an earlier start; None if it no longer exists."""
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


def without_credentials(uri: str) -> str:
    """Return a URI without user, password and query."""
    return _CREDENTIALS.sub("", uri)


def _experiment(client: "MlflowClient", artifacts: str | None) -> str:
    """Return the id of the experiment, and create the experiment if it does not exist.

    Args:
        artifacts: URI of the folder for files of the experiment; None lets the server choose.
    """
    from mlflow.exceptions import MlflowException

    if identifier := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return identifier
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
    for is_last in (False, True):
        if found := client.get_experiment_by_name(name):
            return str(found.experiment_id)
        try:
            return str(client.create_experiment(name, artifacts))
        except MlflowException:  # another training may have created it meanwhile
            if is_last:
                raise
    raise AssertionError


def _milliseconds(started: float | None, wall_s: float | None, now: float) -> int:
    return int(1000 * (now if started is None or wall_s is None else started + wall_s))


def _name(key: str) -> str:
    """Return a name that MLflow accepts: without other characters, and no path such as `a//b` or `../a`."""
    name = _FORBIDDEN.sub("_", key)[:_NAME_CHARACTERS] or "_"
    is_path = posixpath.normpath(name) == name and not name.startswith(("/", ".."))
    return name if is_path and name != "." else re.sub(r"^\.+|/", "_", name)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

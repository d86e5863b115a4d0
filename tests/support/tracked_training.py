"""A training's folder as trackers find it, and services that fail."""

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardline.core.png import png_bytes
from shardline.tracking import TrackingContext
from shardline.tracking.tracker_process import TrackerProcess

PROMPT = {"sealed": 1.0, "failed": 1.0, "stopped": 1.0}
# A busy machine imports the clients, and a slow disk takes MLflow's database, for minutes.
PATIENT = dict.fromkeys(PROMPT, 900.0)
LOOK_S = 0.05


class Service:
    """An HTTP server that answers 500, or never; `asked` is set by a first request."""

    def __init__(self, *, answers: bool) -> None:
        self.asked, self.over = threading.Event(), threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.set()
                if answers:
                    self.send_error(500, "https://me:secret@host is ill")
                else:
                    service.over.wait()

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://me:secret@127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Let go of who waits."""
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


class Training:
    """A run's folder in the store, and what a training does in it."""

    def __init__(self, folder: Path, *, store: Path | None = None) -> None:
        self.work = folder / "work"
        (self.work / "checkpoints").mkdir(parents=True)
        self.model = folder / "results/model.safetensors"
        self.metrics = self.work / "metrics.jsonl"
        self.context = TrackingContext(
            run="0123456789ab", name="net", dataset="abcdef012345", dataset_name="digits",
            store=str(store or folder / "store"), work=str(self.work), metrics=str(self.metrics),
            model=str(self.model), params={"optim.lr": 0.1, "model": "mlp", "model_args.a b(c)": [1]},
            tags={"shardline.identity": "abc", "shardline.commit": "c0ffee"}, look_s=LOOK_S,
        )  # fmt: skip

    def log(self, *steps: int) -> None:
        """Append a training's record for each step, and a validation's for the even ones."""
        with self.metrics.open("a") as file:
            for step in steps:
                common = {"step": step, "epoch": 0, "wall_s": step / 10}
                file.write(json.dumps({**common, "train_loss": 1 / step}) + "\n")
                if step % 2 == 0:
                    file.write(json.dumps({**common, "val_loss": 2 / step}) + "\n")

    def show(self, step: int) -> None:
        """Append two images, a table and a text, as a model logs them before the metrics of a step."""
        png = base64.b64encode(png_bytes(np.full((2, 3, 1), 7 * step, np.uint8), 0)).decode()
        for entries in (
            [{"name": "val/images", "png": png, "caption": "a"}],
            [{"name": "val/images", "png": png}],
            [{"name": "a table", "columns": ["x", "y"], "rows": [[1, "a|b"], [None, 2.5]]}],
            [{"name": "text", "text": f"at {step}"}],
        ):
            self.append({"step": step, "epoch": 0, "wall_s": step / 10, "logged": entries})

    def append(self, record: dict[str, Any]) -> None:
        """Append a record."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def rewind(self, step: int) -> None:
        """Drop what comes after a step, as a resumed training does."""
        lines = self.metrics.read_text().splitlines(keepends=True)
        self.metrics.write_text("".join(x for x in lines if json.loads(x)["step"] <= step))

    def save(self, name: str) -> None:
        """Save a checkpoint that is the best so far."""
        (self.work / "checkpoints" / name).write_text(name)

    def seal(self) -> None:
        """Leave the model."""
        self.model.parent.mkdir(exist_ok=True)
        self.model.write_text("weights")

    def run_id(self) -> str:
        """Return the id of MLflow's run."""
        return str(self.links("mlflow")["where"]["run_id"])

    def links(self, tracker: str) -> dict[str, Any]:
        """Return what the run's folder says of a tracker."""
        links: dict[str, Any] = json.loads((self.work / f"tracking/{tracker}.json").read_text())
        return links


def history(client: Any, run_id: str, name: str) -> list[int]:
    return sorted(metric.step for metric in client.get_metric_history(run_id, name))


def track(training: Training, *steps: int, how: str = "sealed") -> list[str]:
    """Train, tell MLflow without a process of its own, and return what was said."""
    said: list[str] = []
    process = TrackerProcess("mlflow", training.context, lambda text, is_warning: said.append(text))
    training.log(*steps)
    if how == "sealed":
        training.seal()
    process.end(how)
    process.run()
    process.report()
    return said


@pytest.fixture
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide whatever names a service here; what a client keeps at home goes to the test's folder."""
    for name in os.environ:
        if name.startswith(("MLFLOW_", "WANDB_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    started: list[Service] = []

    def start(**options: Any) -> Service:
        started.append(Service(**options))
        return started[-1]

    yield start
    for service in started:
        service.stop()

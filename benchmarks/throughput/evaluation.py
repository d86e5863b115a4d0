"""Evaluations of a million wide rows beside a bare loop over the same mapped files, and memory by rows.

`python -m benchmarks.throughput.evaluation WHAT FOLDER ...` is a process that measures, and prints JSON.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from benchmarks.turns import REPOSITORY
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.config.settings.run_settings import Data, Evaluation, RunSettings
from shardline.core.files import write_json
from shardline.data.build import build_shards, describe_part, seal
from shardline.records.base import encode
from shardline.sources import Schema, Source, Table

CLASSES = 10
BATCH = 1024  # the default of evaluation.batch
SHARD_BYTES = 40_000_000
SHARES = {"train": 0.001, "validation": 0.001, "test": 0.998}


class Rows(Source):
    """Rows of normal noise, and a class.

    Args:
        features: of a row.
        rows: of a shard.
    """

    def __init__(self, *, num_shards: int, features: int, rows: int) -> None:
        super().__init__(num_shards=num_shards)
        self._features, self._rows = features, rows

    @property
    def schema(self) -> Schema:
        """Float32 features and ten classes."""
        return Schema(
            feature_shape=(self._features,), feature_dtype="float32", task="classification",
            classes=tuple(f"class {place}" for place in range(CLASSES)),
        )  # fmt: skip

    def iter_tables(self, shard: int):
        """Yield a shard's rows."""
        generator = np.random.default_rng(shard)
        size = (self._rows, self._features)
        yield Table(
            ids=np.arange(shard * self._rows, (shard + 1) * self._rows),
            features=generator.standard_normal(size, dtype=np.float32),
            labels=generator.integers(0, CLASSES, self._rows),
        )


class Perceptron(pl.LightningModule):
    """A multilayer perceptron of one hidden layer."""

    def __init__(
        self, feature_shape: tuple[int, ...], num_classes: int, *, hidden: int = 256
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(feature_shape[0], hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits [B, C]."""
        return self.layers(features)


def prepare(folder: Path, rows: int, features: int) -> None:
    """Write shards, of which almost all rows are held out."""
    per_shard = min(SHARD_BYTES // (4 * features), 100_000)
    source = Rows(num_shards=-(-rows // per_shard), features=features, rows=per_shard)
    built = build_shards(source, range(source.num_shards), SHARES, folder)
    part = describe_part("rows", built, {})
    manifest = seal([part], dataset="rows-0123456789ab", source=source, document={})
    write_json(folder / "manifest.json", encode(manifest))


def measured(what: str, folder: Path, *arguments: int) -> Any:
    """Return what a process of its own measures: `speed` or `memory`."""
    words = [what, str(folder), *map(str, arguments)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.throughput.evaluation", *words],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def _speed(folder: Path, hidden: int, rounds: int) -> dict[str, Any]:
    """Evaluate in turn; seconds and CPU seconds of each turn."""
    competitors = {"ours": _ours(folder, hidden), "bare": lambda: _loop(folder, hidden)}
    turns: dict[str, list[tuple[float, float]]] = {"ours": [], "bare": []}
    found: dict[str, tuple[int, float]] = {}
    for number in range(rounds + 1):
        for name in sorted(competitors, reverse=bool(number % 2)):
            seconds, cpu_s = time.perf_counter(), time.process_time()
            found[name] = competitors[name]()
            turns[name].append((time.perf_counter() - seconds, time.process_time() - cpu_s))
    (rows, accuracy), (_, ours) = found["bare"], found["ours"]
    assert abs(accuracy - ours) < 0.01, (accuracy, ours)  # the loop counts the few other rows too
    first = turns["ours"][0]  # verifies each shard against its digest
    return {"rows": rows, "first": first, **{name: of[1:] for name, of in turns.items()}}


def _memory(folder: Path, hidden: int) -> dict[str, Any]:
    """Evaluate once; the most anonymous memory before and while it is done, in bytes."""
    evaluate = _ours(folder, hidden)
    before, most, is_done = _anonymous(), [0], threading.Event()

    def watch() -> None:
        while not is_done.wait(0.005):
            most[0] = max(most[0], _anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    seconds = time.perf_counter()
    rows, _ = evaluate()
    seconds = time.perf_counter() - seconds
    is_done.set()
    watcher.join()
    return {"rows": rows, "before": before, "peak": most[0], "seconds": seconds}


def _ours(folder: Path, hidden: int) -> Callable[[], tuple[int, float]]:
    from shardline.training.evaluate import evaluate

    settings = RunSettings(
        evaluation=Evaluation(batch=BATCH), data=Data(normalize="none"), model_args={"hidden": hidden},
    )  # fmt: skip
    spec = RunSpec(
        run="rows", model_class="benchmarks.throughput.evaluation:Perceptron", settings=settings
    )
    place = DatasetPlace(manifest=folder / "manifest.json", shards=folder)
    save_file(_model(folder, hidden).state_dict(), folder / "model")

    def work() -> tuple[int, float]:
        result = evaluate(spec, model_file=folder / "model", datasets=[place])
        return result.num_samples, result.metrics["accuracy"]

    return work


@torch.inference_mode()
def _loop(folder: Path, hidden: int) -> tuple[int, float]:
    """Add up loss and accuracy as most loops do, over files as safetensors maps them."""
    model = _model(folder, hidden)
    model.load_state_dict(load_file(folder / "model"))
    model.eval()
    right, loss, rows = 0, 0.0, 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            features, labels = file.get_tensor("features"), file.get_tensor("labels")
        for inputs, targets in zip(features.split(BATCH), labels.split(BATCH), strict=True):
            logits = model(inputs)
            loss += float(functional.cross_entropy(logits, targets, reduction="sum"))
            right += int((logits.argmax(dim=1) == targets).sum())
            rows += len(targets)
    assert loss > 0
    return rows, right / rows


def _model(folder: Path, hidden: int) -> Perceptron:
    features = json.loads((folder / "manifest.json").read_bytes())["schema"]["feature_shape"]
    torch.manual_seed(1)
    return Perceptron(tuple(features), CLASSES, hidden=hidden)


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    torch.set_num_threads(1)  # as an evaluation's ranks do
    measure = {"speed": _speed, "memory": _memory}[sys.argv[1]]
    print(json.dumps(measure(Path(sys.argv[2]), *map(int, sys.argv[3:]))))

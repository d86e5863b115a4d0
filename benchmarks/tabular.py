"""Held-out error of the shipped model `tabular` beside scikit-learn's gradient boosting, on three made tables.

Each seed draws rows of a table. Both models are trained on the same rows and judged on the same held-out
rows: `tabular` by a real training of Shardline with its defaults and the settings below, the other by
`HistGradientBoostingRegressor` with its defaults, up to 1,000 trees and early stopping.
"""

import argparse
import io
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from scipy import stats
from sklearn.ensemble import HistGradientBoostingRegressor

from shardline.checkpoints.manifest import CheckpointPolicy
from shardline.config.resolved import DatasetPlace, RunSpec, as_type
from shardline.config.settings.run_settings import RunSettings
from shardline.core.files import write_json
from shardline.core.nested import with_values
from shardline.core.world import World
from shardline.data.build import build_shards, describe_part, seal
from shardline.records.base import encode
from shardline.sources import Schema, Source, Table
from shardline.training.evaluate import evaluate
from shardline.training.fit import seal_model, train
from shardline.training.rank_task import RankRuntime, RankTask, Train

ROWS = 10_000
SHARES = (0.6, 0.2)  # of train and validation; the rest is held out
SETTINGS: dict[str, Any] = {
    "devices": 1, "global_batch": 256, "optim.name": "adamw", "optim.lr": 2e-3, "optim.weight_decay": 1e-2,
    "schedule.name": "cosine", "schedule.warmup_steps": 50, "trainer.max_epochs": 30,
    "early_stopping.patience": 5, "trainer.gradient_clip": 1.0, "accelerator": "cpu",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Made:
    """A made table.

    Attributes:
        numbers: Features that are numbers [N, F] float32.
        categories: Features that are categories [N, C] int64.
        sizes: Number of values of each category.
        labels: Labels [N] float32.
    """

    numbers: np.ndarray
    categories: np.ndarray
    sizes: tuple[int, ...]
    labels: np.ndarray


def smooth(generator: np.random.Generator) -> Made:
    """Return a smooth function of eight numbers with interactions, and little noise."""
    x = generator.uniform(-1, 1, (ROWS, 8))
    y = (
        np.sin(np.pi * x[:, 0] * x[:, 1])
        + 2 * (x[:, 2] - 0.5) ** 2
        + x[:, 3]
        + 0.5 * x[:, 4] * x[:, 5]
    )
    y += 0.1 * generator.normal(size=ROWS)
    return _made(x, np.zeros((ROWS, 0)), (), y)


def categorical(generator: np.random.Generator) -> Made:
    """Return effects of four categories of up to 60 values, an interaction, and three numbers."""
    sizes = (60, 20, 8, 4)
    codes = np.stack([generator.integers(0, size, ROWS) for size in sizes], axis=1)
    effects = [generator.normal(size=size) for size in sizes]
    y = sum(effect[codes[:, place]] for place, effect in enumerate(effects))
    slopes = generator.normal(size=sizes[1])
    x = generator.normal(size=(ROWS, 3))
    y = y + slopes[codes[:, 1]] * x[:, 0] + np.abs(x[:, 1]) + 0.3 * generator.normal(size=ROWS)
    return _made(x, codes, sizes, y)


def noisy(generator: np.random.Generator) -> Made:
    """Return steps and slopes of 20 numbers, most of which say nothing, under more noise than signal."""
    x = generator.normal(size=(ROWS, 20))
    codes = generator.integers(0, 6, (ROWS, 1))
    y = (x[:, 0] > 0.3) * 1.0 + 0.7 * np.maximum(x[:, 1], 0) - 0.5 * x[:, 2] * (codes[:, 0] > 2)
    y += generator.normal(scale=1.5, size=ROWS)
    return _made(x, codes, (6,), y)


TABLES = {"smooth": smooth, "categorical": categorical, "noisy": noisy}


def _made(numbers: Any, categories: Any, sizes: tuple[int, ...], labels: Any) -> Made:
    return Made(
        numbers=numbers.astype(np.float32),
        categories=categories.astype(np.int64),
        sizes=sizes,
        labels=labels.astype(np.float32),
    )


def splits() -> np.ndarray:
    """Return the split of each row, 0 for train, 1 for validation and 2 for test."""
    return np.searchsorted(np.cumsum(SHARES) * ROWS, np.arange(ROWS), side="right")


class Rows(Source):
    """The rows of a made table, with standardised numbers."""

    def __init__(self, made: Made) -> None:
        super().__init__(num_shards=1)
        self._made = made

    @property
    def schema(self) -> Schema:
        """Numbers and, if there are any, categories."""
        columns = {"features": f"float32[{self._made.numbers.shape[1]}]", "labels": "float32"}
        if self._made.sizes:
            columns["categories"] = f"int64[{len(self._made.sizes)}]"
        return Schema(columns=columns)

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield all rows."""
        made, which = self._made, splits()
        known = made.numbers[which == 0]
        numbers = (made.numbers - known.mean(axis=0)) / known.std(axis=0)
        categories = {"categories": made.categories} if made.sizes else {}
        columns = {"features": numbers, "labels": made.labels, **categories}
        yield Table(ids=np.arange(ROWS), columns=columns, splits=which)


def sealed(made: Made, folder: Path) -> DatasetPlace:
    """Write a table as a dataset."""
    source, shards = Rows(made), folder / "shards"
    shards.mkdir(parents=True)
    part = describe_part("made", build_shards(source, [0], {}, shards), {})
    manifest = seal([part], dataset="made-0123456789ab", source=source, document={})
    write_json(folder / "manifest.json", encode(manifest))
    return DatasetPlace(manifest=folder / "manifest.json", shards=shards)


def of_tabular(
    made: Made, place: DatasetPlace, seed: int, folder: Path, changes: dict[str, Any]
) -> float:
    """Train `tabular`, and return its root mean squared error on the held-out rows."""
    args = {"category_sizes": list(made.sizes), **changes.pop("args", {})}
    settings = as_type(with_values({}, SETTINGS | {"seed": seed} | changes), RunSettings)
    settings = structs.replace(settings, model_args=args)
    path = "shardline.training.models.tabular:Tabular"
    spec = RunSpec(run=f"tabular-{seed}", model="tabular", model_class=path, settings=settings)
    runtime = RankRuntime(
        log_every_steps=1000, checkpoint=CheckpointPolicy(), ledger=False, verify="off", strict_env="error",
        watch_reads="off", oversubscribe=True, rendezvous_timeout_s=60, hang_timeout_s=0.0,
    )  # fmt: skip
    action = Train(run_json=folder / "run.json", results=folder / "results")
    task = RankTask(
        run=spec, action=action, datasets=(place,), work=folder / "work", rank_logs=folder, runtime=runtime
    )  # fmt: skip
    alone = World(
        rank=0, local_rank=0, world_size=1, local_world_size=1, master_addr="127.0.0.1", master_port=0,
        launcher="none",
    )  # fmt: skip
    with redirect_stdout(io.StringIO()):
        trained = train(task, alone)
    seal_model(trained, spec, folder / "model.safetensors")
    found = evaluate(spec, model_file=folder / "model.safetensors", datasets=[place])
    assert found is not None
    return float(found.metrics["mse"] or 0) ** 0.5


def of_boosting(made: Made, seed: int) -> float:
    """Train gradient boosting on the train rows, stop by the validation rows, and return the same error."""
    which = splits()
    rows = np.concatenate([made.numbers, made.categories], axis=1)
    is_category = np.arange(rows.shape[1]) >= made.numbers.shape[1]
    model = HistGradientBoostingRegressor(
        categorical_features=is_category, random_state=seed, early_stopping=True, max_iter=1000
    )
    of = [(rows[which == split], made.labels[which == split]) for split in range(2)]
    model.fit(*of[0], X_val=of[1][0], y_val=of[1][1])
    errors = model.predict(rows[which == 2]) - made.labels[which == 2]
    return float(np.sqrt(np.mean(errors**2)))


def interval(values: list[float]) -> tuple[float, float]:
    """Return the mean of some seeds and the half width of its 95 % interval (Student's t)."""
    width = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return float(np.mean(values)), float(width)


def main() -> None:
    """Print the errors of each table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=[*TABLES])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--change", type=json.loads, default={}, help="settings to try, as JSON")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    for name in given.tables:
        found: dict[str, list[float]] = {"tabular": [], "boosting": []}
        start = time.monotonic()
        for seed in range(1, given.seeds + 1):
            made = TABLES[name](np.random.default_rng([seed, [*TABLES].index(name)]))
            with tempfile.TemporaryDirectory() as folder:
                place, work = sealed(made, Path(folder) / "data"), Path(folder)
                found["tabular"].append(of_tabular(made, place, seed, work, dict(given.change)))
                found["boosting"].append(of_boosting(made, seed))
            last = {kind: round(values[-1], 4) for kind, values in found.items()}
            print(f"{name}, seed {seed}: {last}", flush=True)
        pairs = zip(found["tabular"], found["boosting"], strict=True)
        found["difference"] = [mine - other for mine, other in pairs]
        shown = {kind: interval(values) for kind, values in found.items()}
        texts = [f"{kind} {mean:.4f} ± {width:.4f}" for kind, (mean, width) in shown.items()]
        print(f"{name}: RMSE {', '.join(texts)} ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()

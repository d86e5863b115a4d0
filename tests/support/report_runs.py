"""Runs' sealed files for the report, written by tests without any training."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from shardline.report import RunFiles, TableEntry, read_report
from shardline.report.page import render_page

CLASSES = [str(digit) for digit in range(10)]


def write_run(
    folder: Path,
    name: str,
    *,
    accuracy=0.97,
    num_samples=270,
    num_steps=100,
    seed=7,
    lr=0.1,
    **changes,
) -> RunFiles:
    """Write one run's files, shaped like training on the digits: noisy decay, validation each 50.

    Args:
        changes: By file (run, identity, evaluation, provenance), keys in the place of its own;
            `lines` in the place of the metrics; `asked` for what the run table says; `fold`.
    """
    folder = folder / f"{len(list(folder.iterdir())):03d}" if folder.exists() else folder / "000"
    folder.mkdir(parents=True)
    run = hashlib.sha256(name.encode()).hexdigest()[:12]
    settings = {"seed": seed, "optim": {"name": "adam", "lr": lr}, "devices": 2}
    settings |= {"fold": changes["fold"]} if "fold" in changes else {}
    documents = {
        "run": {
            "run": run,
            "dataset": {"id": "0123456789ab"},
            "model": "mlp",
            "model_class": "linear",
            "settings": settings,
            "identity": "ab" * 32,
        },
        "identity": {
            "stage": "train",
            "settings": settings,
            "model": "mlp",
            "versions": {"training": 1, "mlp": 1},
            "code": {},
        },
        "evaluation": {
            "run": run,
            "split": "test",
            "task": "classification",
            "num_samples": num_samples,
            "metrics": {"accuracy": accuracy, "loss": 0.11},
            "headline": {"metric": "accuracy", "value": accuracy, "mode": "max"},
            "confusion": {
                "classes": CLASSES,
                "counts": [[27 if i == j else (i + j) % 3 for j in range(10)] for i in range(10)],
            },
            "identity": {"stage": "evaluate", "settings": {}},
        },
        "provenance": {
            "run": run,
            "duration_s": 3725.0,
            "world": {"world_size": 2, "nodes": 1, "launcher": "torchrun"},
            "devices": ["cuda:0", "cuda:1"],
            "software": {"python": "3.11.7", "torch": "2.13.0"},
            "git": {"commit": "5f0c2d1", "dirty": False, "diff_digest": None},
        },
    }
    for stem, document in documents.items():
        (folder / f"{stem}.json").write_text(json.dumps(document | changes.get(stem, {})))
    lines = [
        json.dumps({"step": step, "epoch": 0, "wall_s": step / 9, "train_loss": loss(step)})
        for step in range(1, num_steps + 1)
    ]
    lines += [
        json.dumps({"step": step, "epoch": 0, "val_loss": loss(step), "val_accuracy": 1 - 1 / step})
        for step in range(50, num_steps + 1, 50)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(changes.get("lines", lines)) + "\n")
    return RunFiles(
        run=folder / "run.json",
        identity=folder / "identity.json",
        metrics=folder / "metrics.jsonl",
        evaluation=folder / "evaluation.json",
        provenance=folder / "provenance.json",
        asked=TableEntry(
            **{
                "key": run,
                "names": (name,),
                "dataset_names": ("digits",),
                **changes.get("asked", {}),
            }
        ),
    )


def loss(step: int) -> float:
    return 2.3 * math.exp(-step / 300) + 0.2 + 0.09123456 * math.sin(step * 12.9898)


def render(run_dirs: list[RunFiles], **options: Any) -> str:
    """Return the report's page over some runs; options are those of `read_report`."""
    return render_page(read_report(run_dirs, **options))

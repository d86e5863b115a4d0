"""A study of the report, with a trial that failed and a setting that not every trial has."""

from typing import Any

from shardline.records.sweeps import ReportedStudy, Trial
from shardline.report.sweep_views import SweepView, view_sweep


def searched(hostile: str) -> SweepView:
    """Return a study with a failed trial and a condition.

    Args:
        hostile: value of a setting, and reason of the failure.
    """
    found = []
    for trial in range(12):
        settings: dict[str, Any] = {
            "optim.lr": 10 ** (-trial / 4),
            "model": ("mlp", hostile)[trial % 2],
        }
        settings |= {"optim.momentum": trial / 20} if trial % 3 else {}
        value = None if trial == 5 else 0.1 + (trial - 7) ** 2 / 50
        found.append(
            Trial(
                trial=trial, settings=settings, row=[], runs=["0" * 12], value=value, seconds=30.0 + trial,
                failure="" if value else hostile,
            )
        )  # fmt: skip
    study = ReportedStudy(
        name="search", study="5" * 12, sampler="tpe", planned=20, metric="val_loss", mode="min",
        keys=["model", "optim.lr", "optim.momentum"], trials=found, best=7, importance={"optim.lr": 0.8, "model": 0.2},
        kinds={"model": "choices", "optim.lr": "log", "optim.momentum": "uniform"},
    )  # fmt: skip
    return view_sweep(study, [])

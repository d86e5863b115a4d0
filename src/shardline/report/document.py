"""The report as data: `report.json`, which the page and `runs.csv` are made of as well.

Every number stands beside `action`, the id of the action that made it (docs/report.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from statistics import fmean
from typing import Any

from shardline.core.nested import flatten
from shardline.report.defaults import changed_settings
from shardline.report.environment import describe_environment
from shardline.report.leaderboard import Group, Row
from shardline.report.run import Run

SCHEMA = "shardline-report/1"
_RECORDED = ("id", "started", "ended", "host", "agent", "image", "num_cpus", "memory_bytes")


def describe(groups: Sequence[Group], runs: Sequence[Run], **parts: Any) -> dict[str, Any]:
    """Return the report's document.

    Args:
        runs: All runs, those of scaling studies too.
        parts: Further top-level keys, such as `datasets` and `workflow`.
    """
    records = {run.key: describe_run(run) for run in runs}
    document = {
        "schema": SCHEMA,
        **parts,
        "groups": [_describe_group(group, records) for group in groups],
        "runs": list(records.values()),
    }
    return dict(finite(document))


def finite(value: Any) -> Any:
    """Return a JSON value with null for NaN and infinity, which JSON lacks."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def describe_run(run: Run) -> dict[str, Any]:
    """Return one run's part of the document."""
    made = run.actions
    return {
        "id": run.key,
        "name": run.name,
        "names": list(run.asked.names),
        "notes": dict(run.asked.notes),
        "tags": list(run.asked.tags),
        "identity": run.spec.get("identity"),
        "dataset": run.dataset_id,
        "model": run.spec.get("model"),
        "accepted": _accepted(run),
        "settings": flatten(run.spec.get("settings", {}), by_name=True),
        "changed": changed_settings(flatten(run.spec.get("settings", {}), by_name=True)),
        "varied": sorted(run.asked.varied),
        "in_table": run.in_table,
        "warnings": [
            {**asdict(one), "action": made["evaluate" if one.kind == "constant" else "train"]}
            for one in run.warnings
        ],
        "headline": _headline(run) | {"action": made["evaluate"]},
        "metrics": dict(run.evaluation.get("metrics", {})) | {"action": made["evaluate"]},
        "calibration": _measured(
            {"ece": run.evaluation.get("calibration", {}).get("ece")}, made["evaluate"]
        ),
        "best_validation": _measured(_best_validation(run), made["train"]),
        "training": _training(run) | {"action": made["train"]},
        **{
            key: _measured(run.provenance.get(key), made["train"])
            for key in ("throughput", "goodput", "resources")
        },
        **(
            {"packs": _measured(run.provenance["packs"], made["train"])}
            if "packs" in run.provenance
            else {}
        ),
        "code": run.provenance.get("git"),
        "environment": describe_environment(run),
        "tracking": run.provenance.get("tracking", {}),
        "manifest_sha256": run.provenance.get("manifest_sha256"),
        "files": dict(run.provenance.get("files", {})) | dict(run.files),
        "actions": _actions(run),
    }


def _accepted(run: Run) -> dict[str, Any] | None:
    """Return from what, by whom, when and why an earlier result was accepted, and what differs."""
    if not run.accepted:
        return None
    action = run.accepted.action
    return {
        "from": run.accepted.from_.id,
        "by": action["agent"],
        "at": action["ended"],
        "reason": run.accepted.full_reason,
        "differs": [cause.text for cause in run.accepted.differs],
        "action": action["id"],
    }


def newest_of(runs: Sequence[Run]) -> str | None:
    """Return when the newest training or evaluation ended (UTC, ISO 8601); None where none is recorded."""
    ends = (action.get("ended") for run in runs for action in _actions(run).values())
    return max((end for end in ends if end), default=None)


def _measured(values: Mapping[str, Any] | None, action: str) -> dict[str, Any] | None:
    known = values and any(value is not None for value in values.values())
    return {**values, "action": action} if values and known else None


def _headline(run: Run) -> dict[str, Any]:
    return {
        "metric": run.metric,
        "mode": run.mode,
        "split": run.split,
        "value": run.value,
        "interval": run.interval and list(run.interval),
        "interval_method": run.interval_method,
        "num_samples": run.num_samples,
        "measured_by": "script" if run.is_measured_by_script else "evaluate",
    }


def _best_validation(run: Run) -> dict[str, Any] | None:
    if not run.best_validation:
        return None
    metric, value, step = run.best_validation
    return {"metric": metric, "value": value, "step": step}


def _training(run: Run) -> dict[str, Any]:
    provenance = run.provenance
    world = provenance.get("world", {})
    return {
        "steps": run.num_steps,
        "epochs": provenance.get("training", {}).get("epochs"),
        "duration_s": provenance.get("duration_s"),
        "attempts": provenance.get("attempts"),
        "attempt_log": provenance.get("attempt_log")
        and list(map(_attempt, provenance["attempt_log"])),
        "started": provenance.get("started"),
        "ended": provenance.get("ended"),
        "world_size": world.get("world_size"),
        "nodes": world.get("nodes"),
        "launcher": world.get("launcher"),
        "devices": provenance.get("devices"),
    }


def _attempt(attempt: Mapping[str, Any]) -> dict[str, Any]:
    started, ended = (datetime.fromisoformat(attempt[key]) for key in ("started", "ended"))
    return {**attempt, "duration_s": (ended - started).total_seconds()}


def _actions(run: Run) -> dict[str, Any]:
    """Return each action by rule: its id, and when and where it ran as far as that is recorded."""
    trained = {key: run.provenance.get(key) for key in ("started", "ended", "host")}
    recorded = {
        "resolve_run": run.spec.get("action"),
        "train": run.provenance.get("action") or trained,
        "evaluate": run.evaluation.get("action"),
    }
    return {
        rule: {"id": action} | summary_of(recorded[rule]) for rule, action in run.actions.items()
    }


def summary_of(action: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the report tells of an action's record."""
    return {key: action[key] for key in _RECORDED if action and action.get(key) is not None}


def figures_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a run that stand in the leaderboard beside its score."""
    best = record["best_validation"] or {}
    training = record["training"]
    return {
        "loss": record["metrics"].get("loss"),
        "best_validation": best.get("value"),
        "best_step": best.get("step"),
        **{key: training[key] for key in ("steps", "duration_s", "world_size")},
        "samples_per_s": (record["throughput"] or {}).get("samples_per_s"),
    }


def _means(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means of runs' figures; null for what none of them has."""
    figures = [figures_of(record) for record in records]
    known = {key: [one[key] for one in figures if one[key] is not None] for key in figures[0]}
    return {
        key: values[0] if len(values) == 1 else fmean(values) if values else None
        for key, values in known.items()
    }


def _describe_group(group: Group, records: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "dataset": group.entries[0].run.dataset_id,
        "title": group.title,
        "split": group.split,
        "metric": group.metric,
        "mode": group.mode,
        "reference": group.reference,
        "ranking": [_describe_row(row, records) for row in group.rows],
    }


def _describe_row(row: Row, records: Mapping[str, Any]) -> dict[str, Any]:
    repeats, verdict = row.repeats, row.verdict
    return {
        "title": row.title,
        "place": row.place,
        "runs": [entry.run.key for entry in row.entries],
        "num_measured": len(repeats.values),
        "mean": repeats.mean,
        "sd": repeats.sd,
        "interval": row.interval,
        "interval_method": _method(row),
        "standing": verdict.standing,
        "judged_by": verdict.basis or None,
        "difference_from_best": verdict.difference,
        "means": _means([records[entry.run.key] for entry in row.entries]),
        "actions": [entry.run.actions["evaluate"] for entry in row.entries],
    }


def _method(row: Row) -> str | None:
    if row.repeats.interval:
        return "student-t"
    return row.run.interval_method if row.interval else None

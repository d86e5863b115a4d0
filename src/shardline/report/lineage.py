"""What is behind the runs: datasets down to shards and source, and the jobs that made them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardline.records.base import encode
from shardline.records.datasets import DatasetProvenance, Manifest
from shardline.records.reports import ReportedRun
from shardline.report.sealed import read, sha256_of

MAX_SHOWN = 20  # shards or source files; the manifest names all of them


def read_datasets(runs: Sequence[ReportedRun], manifests: Iterable[Path]) -> list[dict[str, Any]]:
    """Return what is known of each dataset that a run was trained on.

    Args:
        manifests: `results/datasets/{id}/manifest.json` of those that are there, with their
            `provenance.json` beside them.

    Raises:
        DataError: a manifest is malformed; names file and remedy.
    """
    found = {path.parent.name: path for path in manifests}
    names = {one.id: one.name for run in runs for one in run.trained_on}
    return [
        {"id": key, "name": names[key], "anchor": f"dataset-{index}"}
        | (_describe(found[key], key) if key in found else {})
        for index, key in enumerate(sorted(names), start=1)
    ]


def _describe(path: Path, dataset: str) -> dict[str, Any]:
    manifest = read(path, Manifest)
    beside = path.with_name("provenance.json")
    provenance = read(beside, DatasetProvenance) if beside.exists() else None
    return {
        "action": f"seal_dataset/{dataset}",
        "manifest_sha256": sha256_of(path),
        "task": manifest.schema.task,
        "splits": manifest.splits,
        "bytes": manifest.bytes,
        "num_shards": len(manifest.shards),
        "shards": [encode(shard) for shard in manifest.shards[:MAX_SHOWN]],
        "source": _source(manifest.identity),
        "skipped": manifest.skipped.count,
        "records": [provenance.action, *provenance.parts] if provenance else [None],
    }


def _source(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return type, options and files of a dataset's source, from its identity document."""
    files = identity.get("source", {})
    return {
        "settings": identity.get("settings", {}).get("source", {}),
        "num_files": len(files),
        "files": dict(sorted(files.items())[:MAX_SHOWN]),
    }


EDGES = (
    ("build_shards", "seal_dataset"),
    ("seal_dataset", "train"),
    ("resolve_run", "train"),
    ("train", "evaluate"),
    ("evaluate", "render_report"),
)


def workflow_graph(
    runs: Sequence[ReportedRun], datasets: Iterable[Mapping[str, Any]], started: str | None
) -> dict[str, Any] | None:
    """Count, for each rule, what ran and what was fresh.

    Args:
        datasets: As `read_datasets` gives them.
        started: When the pipeline run began (UTC, ISO 8601); what ended later, it ran.

    Returns:
        `started`, `edges`, and for each rule a node: `ran`, `fresh`, `unknown` (actions without
        a record) and `seconds` of those that ran, None where none did; None where the start is
        not known.
    """
    if started is None:
        return None
    records = [record for dataset in datasets for record in dataset.get("records", [None])]
    by_rule: dict[str, list[Mapping[str, Any] | None]] = {
        "build_shards": [each for each in records if each and each.get("rule") == "build_shards"],
        "seal_dataset": [
            each for each in records if not each or each.get("rule") == "seal_dataset"
        ],
        **{
            rule: [run.made.get(rule) for run in runs]
            for rule in ("resolve_run", "train", "evaluate")
        },
    }
    nodes = [_node(rule, actions, started) for rule, actions in by_rule.items()]
    report = {"rule": "render_report", "ran": 1, "fresh": 0, "unknown": 0, "seconds": None}
    return {"started": started, "nodes": [*nodes, report], "edges": [list(edge) for edge in EDGES]}


def _node(rule: str, actions: Sequence[Mapping[str, Any] | None], started: str) -> dict[str, Any]:
    known = [action for action in actions if action and action.get("ended")]
    ran = [action for action in known if _time(action["ended"]) >= _time(started)]
    seconds = [_seconds(action) for action in ran if action.get("started")]
    return {
        "rule": rule,
        "ran": len(ran),
        "fresh": len(known) - len(ran),
        "unknown": len(actions) - len(known),
        "seconds": round(sum(seconds), 3) if seconds else None,
    }


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _seconds(action: Mapping[str, Any]) -> float:
    return (_time(action["ended"]) - _time(action["started"])).total_seconds()

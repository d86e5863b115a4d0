"""Describe the datasets of the runs down to shards and source files."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET

from shardline.records.base import encode
from shardline.records.datasets import DatasetProvenance, ExampleRow, Manifest
from shardline.records.reported_runs import ReportedRun
from shardline.records.understood import lines_on, rows_of, understood
from shardline.report.images import is_png
from shardline.report.reported import summary_of
from shardline.report.sealed import read, sha256_of

MAX_SHOWN = 20  # shards or source files; the manifest lists all of them


def read_datasets(runs: Sequence[ReportedRun], manifests: Iterable[Path]) -> list[dict[str, Any]]:
    """Return a description of each dataset that a run was trained on.

    Args:
        manifests: Existing files `results/datasets/{id}/manifest.json`; `provenance.json` is in the same folder.

    Raises:
        DataError: A manifest is malformed. The message names file and remedy.
    """
    found = {path.parent.name: path for path in manifests}
    names = {one.id: one.name for run in runs for one in run.trained_on}
    return [
        {"id": key, "name": names[key], "anchor": f"dataset-{index}"}
        | (_describe(found[key], key) if key in found else {"actions": []})
        for index, key in enumerate(sorted(names), start=1)
    ]


def _describe(path: Path, dataset: str) -> dict[str, Any]:
    manifest = read(path, Manifest)
    beside = path.with_name("provenance.json")
    provenance = read(beside, DatasetProvenance) if beside.exists() else None
    example = (provenance.example if provenance else UNSET) or ExampleRow(values={})
    source = _source(manifest.identity)
    found = understood(
        provenance.inferred if provenance else {},
        source["settings"],
        manifest.schema,
        manifest=manifest,
        example=example.values,
    )
    jobs = [provenance.action, *provenance.parts] if provenance else []
    return {
        "action": provenance.action.id if provenance else f"seal_dataset/{dataset}",
        "manifest_sha256": sha256_of(path),
        "task": manifest.schema.task,
        "splits": rows_of(manifest),
        "bytes": manifest.bytes,
        "num_shards": len(manifest.shards),
        "shards": [encode(shard) for shard in manifest.shards[:MAX_SHOWN]],
        "source": source,
        "understood": dict(lines_on(found)),
        "picture": example.picture if is_png(example.picture) else "",
        "skipped": manifest.skipped.count,
        "actions": [summary_of(record) for record in jobs],
    }


def _source(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings and files of a source from the identity document of its dataset."""
    files = identity.get("source", {})
    return {
        "settings": identity.get("settings", {}).get("source", {}),
        "num_files": len(files),
        "files": dict(sorted(files.items())[:MAX_SHOWN]),
    }

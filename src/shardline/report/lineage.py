"""The datasets behind the runs, down to shards and source."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardline.report.run import Run
from shardline.report.sealed import read_object, sha256_of

MAX_SHOWN = 20  # shards or source files; the manifest names all of them


def read_datasets(runs: Sequence[Run], manifests: Iterable[Path]) -> list[dict[str, Any]]:
    """Return what is known of each dataset that a run was trained on.

    Args:
        manifests: `results/datasets/{id}/manifest.json` of those that are there, with their
            `provenance.json` beside them.

    Raises:
        DataError: a manifest is malformed; names file and remedy.
    """
    found = {path.parent.name: path for path in manifests}
    names = {key: name for run in runs for key, name in run.datasets.items()}
    return [
        {"id": key, "name": names[key], "anchor": f"dataset-{index}"}
        | (_describe(found[key], key) if key in found else {})
        for index, key in enumerate(sorted(names), start=1)
    ]


def _describe(path: Path, dataset: str) -> dict[str, Any]:
    manifest = read_object(path, "shards", "splits")
    beside = path.with_name("provenance.json")
    provenance = read_object(beside) if beside.exists() else {}
    shards = manifest["shards"]
    return {
        "action": f"seal_dataset/{dataset}",
        "manifest_sha256": sha256_of(path),
        "task": manifest.get("schema", {}).get("task"),
        "splits": manifest["splits"],
        "bytes": manifest.get("bytes"),
        "num_shards": len(shards),
        "shards": shards[:MAX_SHOWN],
        "source": _source(manifest.get("identity", {})),
        "skipped": manifest.get("skipped", {}).get("count", 0),
        "records": [provenance.get("action"), *provenance.get("parts", [])],
    }


def _source(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return type, options and files of a dataset's source, from its identity document."""
    files = identity.get("source", {})
    return {
        "settings": identity.get("settings", {}).get("source", {}),
        "num_files": len(files),
        "files": dict(sorted(files.items())[:MAX_SHOWN]),
    }

"""The jobs of a dataset: write shards, seal them, say what they are as a data asset."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardline.config.dataset import Dataset
from shardline.config.load import load_project
from shardline.config.project import Project
from shardline.config.resolved import as_plain
from shardline.core.canonical import digest
from shardline.core.digests import file_sha256
from shardline.core.files import read_json, write_json
from shardline.core.seals import seal
from shardline.pipeline.common import REMAKE, check_environment, of_this_identity
from shardline.pipeline.watched import end_watch, watch
from shardline.provenance.actions import Action

if TYPE_CHECKING:
    from shardline.data.sources import Source


def build_shards(config: Mapping[str, Any], dataset_id: str, part: str, part_json: str) -> None:
    """Write the shards of one part, then the part's list of them."""
    from shardline.core.progress import ShardProgress
    from shardline.data import build as shards

    action = Action(id=f"build_shards/{dataset_id}/{part}")
    project, dataset, source = _open_dataset(config, dataset_id)
    numbers = of_this_identity(dataset.parts, part)
    folder = project.layout.declared.shards(dataset_id)
    splits = as_plain(dataset.settings.splits)

    def built() -> "Iterator[shards.Built]":
        with ShardProgress(f"shards {part}", len(numbers)) as progress:
            for record, statistics in shards.build_shards(source, numbers, splits, folder):
                rows = sum(record.rows.values())
                logging.info("%s: %d rows, %d bytes", record.file, rows, record.bytes)
                yield record, statistics
                progress.advance(rows)

    described = shards.describe_part(dataset_id, built(), source.skipped)
    end_watch()
    skipped = [sentence for number in numbers for sentence in source.skipped.get(number, [])]
    if skipped:
        logging.warning("%d rows or files were skipped, the first: %s", len(skipped), skipped[0])
    write_json(Path(part_json), seal({**described, "action": action.record()}))


def seal_dataset(
    config: Mapping[str, Any], dataset_id: str, manifest: str, provenance: str,
    parts: Sequence[str] = (),
) -> None:  # fmt: skip
    """Merge the parts into the manifest, and write beside it how both were made.

    Args:
        parts: files that describe the parts; none of a job that was forced to run again.
    """
    from shardline.data.build import seal as merge
    from shardline.data.parts import read_part
    from shardline.data.row_ids import check_row_ids
    from shardline.data.statistics_file import set_aside

    action = Action(id=f"seal_dataset/{dataset_id}")
    project, dataset, source = _open_dataset(config, dataset_id)
    folder = project.layout.parts(dataset_id)
    files = [*map(Path, parts)] or [folder / f"{part}.json" for part in dataset.parts]
    schema = source.schema.to_json()
    end_watch()
    documents = [read_part(file, dataset_id, schema, remedy=REMAKE) for file in files]
    sealed = merge(documents, dataset=dataset_id, source=source, document=dataset.document)
    shards = project.layout.declared.shards(dataset_id)
    check_row_ids(sealed, shards)
    # before the manifest, which has its digest
    sealed = set_aside(sealed, shards)
    write_json(Path(manifest), sealed)
    document = {
        "dataset": dataset_id,
        "identity": digest(dataset.document),
        "definitions": dataset.definitions,
        "action": action.record(),
        "parts": [part["action"] for part in documents],
        "files": {"manifest.json": file_sha256(Path(manifest))},
    }
    write_json(Path(provenance), seal(document))
    skipped = sealed["skipped"]
    if skipped["count"]:
        logging.warning("%d rows or files of the source were skipped", skipped["count"])


def describe_asset(config: Mapping[str, Any], dataset_id: str, manifest: str) -> dict[str, Any]:
    """Return what a sealed dataset is as a data asset of Azure ML."""
    dataset = of_this_identity(load_project(config, only=()).datasets, dataset_id)
    sealed = read_json(Path(manifest), remedy=REMAKE)
    rows = sum(sealed["splits"].values())
    return {
        "path": str(dataset.layout.shards(dataset.id).relative_to(dataset.layout.store)),
        "name": re.sub(r"[^A-Za-z0-9_-]", "-", dataset.names[0]).lstrip("-") or "dataset",
        "version": dataset.id,
        "description": f"{rows:,} rows in {len(sealed['shards'])} shards, written by Shardline",
        "tags": {
            "shardline_dataset": dataset.id,
            "manifest_sha256": file_sha256(Path(manifest)),
            **{f"rows_{split}": str(number) for split, number in sealed["splits"].items()},
        },
    }


def _open_dataset(config: Mapping[str, Any], dataset_id: str) -> "tuple[Project, Dataset, Source]":
    """Return the project, one of its datasets and that one's source."""
    from shardline.data.build import make_source
    from shardline.data.sources.remote import fetch

    project = load_project(config, only=())
    dataset = of_this_identity(project.datasets, dataset_id)
    check_environment(project, dataset.document)
    fetch(dataset.source.get("files", ()), project.layout.downloads)
    watch(project, dataset)
    source = make_source(
        dataset.source_class,
        dataset.source,
        num_shards=dataset.num_shards,
        files=dataset.files,
    )
    return project, dataset, source

"""The jobs of a dataset: write its shards, seal it, and describe it as a data asset."""

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType, structs

from shardline.config.job_plan import recheck_dataset
from shardline.config.plans import DatasetPlan
from shardline.config.project import Project
from shardline.config.resolved import as_plain
from shardline.core.canonical import digest
from shardline.core.digests import file_sha256
from shardline.core.files import write_json
from shardline.core.redaction import mask
from shardline.pipeline.job_frame import REMAKE, check_environment, only
from shardline.pipeline.python_data import check_rows_of, reading, with_rows_of
from shardline.pipeline.watched import end_watch, watch
from shardline.provenance.actions import Action
from shardline.records.base import encode, read_record, sealed
from shardline.records.datasets import (
    DatasetProvenance,
    ExampleRow,
    Manifest,
    Part,
    Prepared,
    SplitPlan,
)
from shardline.records.jobs import JobRecord
from shardline.records.understood import block, understood

if TYPE_CHECKING:
    from shardline.data.sources import Source


Given = str | Sequence[str]  # Snakemake's value of an optional input: a file, or empty


def plan_splits(project: Project, plan_json: str) -> None:
    """Read all rows of a dataset, and write the plan of its splits.

    Args:
        project: the dataset's part of the project.
    """
    dataset = only(project.built)
    recheck_dataset(project, dataset)
    make_plan(project, dataset, Path(plan_json))


def make_plan(project: Project, dataset: DatasetPlan, plan_json: Path) -> SplitPlan:
    """Write the plan of a dataset's splits; see `plan_splits`."""
    from shardline.data import split_plans

    action = Action(id=f"plan_splits/{dataset.id}")
    source = _open_dataset(project, dataset, ())
    plan = split_plans.make_plan(source, as_plain(dataset.settings.splits), dataset.id)
    end_watch()
    logging.info("the splits of %d rows are planned", plan.rows)
    plan = structs.replace(plan, action=action.record())
    write_json(plan_json, sealed(plan))
    return plan


def _plan_of(project: Project, dataset: DatasetPlan, given: Given = ()) -> SplitPlan | None:
    """Return the plan of a dataset's splits; None if they need none.

    Args:
        given: the file, if Snakemake has passed it; the plan is made if the file is missing.
    """
    if not dataset.has_plan:
        return None
    path = Path(str(given)) if given else project.layout.declared.split_plan(dataset.id)
    if not path.exists():
        return make_plan(project, dataset, path)
    from shardline.data.split_plans import read_plan

    return read_plan(path, dataset.id, remedy=f"delete {path} and run the pipeline again")


def build_shards(
    project: Project,
    part: str,
    part_json: str,
    read_as: Given = (),
    plan: Given = (),
    threads: int = 1,
) -> None:
    """Write the shards of one part of a dataset, and the part's description.

    Args:
        project: the dataset's part of the project.
        plan: plan of the splits, if they need one.
        read_as: manifest of the dataset whose source reads the files that are to be predicted.
        threads: threads of the job.
    """
    dataset = only(project.built)
    recheck_dataset(project, dataset)
    build_part(project, dataset, part, Path(part_json), read_as, plan, threads)


def build_part(
    project: Project, dataset: DatasetPlan, part: str, part_json: Path, read_as: Given = (), plan: Given = (),
    threads: int = 1,
) -> None:  # fmt: skip
    """Write the shards of one part of a dataset, and the part's description."""
    from shardline.core.job_progress import job_progress
    from shardline.core.progress import ShardProgress
    from shardline.data import build as shards
    from shardline.data.fixed_groups import FixedGroups, are_compared

    dataset_id = dataset.id
    planned = _plan_of(project, dataset, plan)
    action = Action(id=f"build_shards/{dataset_id}/{part}")
    source = _open_dataset(project, dataset, read_as)
    numbers = dataset.parts[part]
    folder = project.layout.declared.shards(dataset_id)
    splits = as_plain(dataset.settings.splits)
    groups = FixedGroups() if are_compared(splits) else None

    def built() -> "Iterator[shards.Built]":
        with ShardProgress(f"shards {part}", len(numbers)) as progress:
            written = shards.build_shards(source, numbers, splits, folder, planned, groups)
            for done, (record, statistics) in enumerate(written, 1):
                rows = sum(record.rows.values())
                logging.info("%s: %d rows, %d bytes", record.file, rows, record.bytes)
                yield record, statistics
                progress.advance(rows)
                job_progress.report(
                    title=f"{dataset.name} {part}", step=done, steps=len(numbers), unit="shard"
                )

    with reading(source, action.id, [*numbers], folder, threads) as files:
        described = shards.describe_part(dataset_id, built(), source.skipped)
        end_watch(files())
    described = with_rows_of(described, source)
    described = structs.replace(described, groups=groups.record() if groups else UNSET)
    skipped = [sentence for number in numbers for sentence in source.skipped.get(number, [])]
    if skipped:
        logging.warning("%d rows or files were skipped; the first: %s", len(skipped), skipped[0])
    write_json(part_json, sealed(structs.replace(described, action=action.record())))


def seal_dataset(
    project: Project, manifest: str, provenance: str, parts: Sequence[str] = (), read_as: Given = (),
    plan: Given = (), prepared: Given = (),
) -> None:  # fmt: skip
    """Merge the parts into the manifest, and write the provenance of both beside it.

    Args:
        project: the dataset's part of the project.
        parts: descriptions of the parts; empty if the job was forced to run again.
        read_as: see `build_shards`.
        plan: plan of the splits, for its record.
        prepared: file of `prepare_data`, for its record.
    """
    dataset = only(project.built)
    recheck_dataset(project, dataset)
    files = [*map(Path, parts)]
    seal_parts(project, dataset, Path(manifest), Path(provenance), files, read_as, plan, prepared)


def seal_parts(
    project: Project, dataset: DatasetPlan, manifest: Path, provenance: Path, parts: Sequence[Path] = (),
    read_as: Given = (), plan: Given = (), prepared: Given = (),
) -> None:  # fmt: skip
    """Merge the parts of a dataset; see `seal_dataset`."""
    from shardline.core.job_progress import job_progress
    from shardline.data.fixed_groups import check_fixed_groups
    from shardline.data.inferred import describe
    from shardline.data.parts import read_part
    from shardline.data.row_ids import check_row_ids
    from shardline.data.statistics_file import set_aside

    dataset_id = dataset.id
    action = Action(id=f"seal_dataset/{dataset_id}")
    source = _open_dataset(project, dataset, read_as)
    folder = project.layout.parts(dataset_id)
    files = [*parts] or [folder / f"{part}.json" for part in dataset.parts]
    documents = [read_part(file, dataset_id, remedy=REMAKE) for file in files]
    inferred = describe(source)
    end_watch()
    check_rows_of(source, documents)
    check_fixed_groups(documents, dataset_id, str(dataset.settings.splits.group))
    shards = project.layout.declared.shards(dataset_id)
    merged = _merge(documents, dataset, source, read_as, shards)
    check_row_ids(merged, shards)
    # before the manifest, which contains the digest of the statistics
    merged = set_aside(merged, shards)
    write_json(manifest, encode(merged))
    example = _example(merged, shards)
    found = understood(
        inferred,
        dataset.source,
        merged.schema,
        manifest=merged,
        example=example.values if example else None,
    )
    for line in block(dataset.name, found).splitlines():
        logging.info("%s", line)
    is_there = plan or project.layout.declared.split_plan(dataset_id).exists()
    planned = _plan_of(project, dataset, plan) if is_there else None
    document = DatasetProvenance(
        dataset=dataset_id,
        identity=digest(dataset.document),
        definitions=dataset.definitions,
        inferred=inferred,
        example=example or UNSET,
        action=action.record(),
        parts=[part.action for part in documents if part.action],
        prepared=_record_of_preparing(project, dataset, prepared),
        plan=planned.action if planned else UNSET,
        files={"manifest.json": file_sha256(manifest)},
    )
    write_json(provenance, sealed(document))
    if skipped := merged.skipped.count:
        rows = sum(merged.splits.values()) + skipped
        share, first = f"{100 * skipped / rows:.0f} %", merged.skipped.first[0]
        note = f"{skipped:,} of {rows:,} rows skipped ({share}); the first: {first}"
        logging.warning("%s", note)
        job_progress.report(note=mask(note))


def _record_of_preparing(
    project: Project, dataset: DatasetPlan, given: Given
) -> JobRecord | UnsetType:
    path = Path(str(given)) if given else project.layout.declared.prepared(dataset.id)
    if dataset.prepared is None or not path.exists():
        return UNSET
    return read_record(path, Prepared, remedy=REMAKE).action


def _example(manifest: Manifest, shards: Path) -> ExampleRow | None:
    from shardline.training.example_row import first_row, picture_of, texts_of

    row = first_row(manifest, shards)
    if not row:
        return None
    return ExampleRow(values=texts_of(row, manifest.schema), picture=picture_of(row))


def _merge(
    parts: list[Part], dataset: DatasetPlan, source: "Source", read_as: Given, shards: Path
) -> Manifest:
    from shardline.data.build import seal as merge

    document = dataset.document
    if dataset.read_as is None:
        return merge(parts, dataset=dataset.id, source=source, document=document, folder=shards)
    from shardline.data.predicted import seal_files

    schema = _sealed(dataset.read_as, read_as).schema
    return seal_files(parts, dataset=dataset.id, source=source, document=document, schema=schema)


def describe_asset(project: Project, manifest: str) -> dict[str, str | dict[str, str]]:
    """Return the description of a sealed dataset as a data asset of Azure ML.

    Args:
        project: the dataset's part of the project.
    """
    from shardline.data.folds import of_fold

    dataset = only(project.datasets)
    found = read_record(Path(manifest), Manifest, remedy=REMAKE)
    rows = sum(found.splits.values())
    return {
        "path": str(dataset.layout.shards(dataset.id).relative_to(dataset.layout.store)),
        "name": re.sub(r"[^A-Za-z0-9_-]", "-", dataset.names[0]).lstrip("-") or "dataset",
        "version": dataset.id,
        "description": f"{rows:,} rows in {len(found.shards)} shards, written by Shardline",
        "tags": {
            "shardline_dataset": dataset.id,
            "manifest_sha256": file_sha256(Path(manifest)),
            **{f"rows_{split}": str(n) for split, n in of_fold(found, None).splits.items()},
        },
    }


def _sealed(dataset: DatasetPlan, given: Given) -> Manifest:
    """Return the manifest of a sealed dataset, which Snakemake may have put elsewhere."""
    manifest = Path(str(given)) if given else dataset.manifest
    return read_record(manifest, Manifest, remedy=REMAKE)


def _open_dataset(project: Project, dataset: DatasetPlan, read_as: Given) -> "Source":
    """Return the source of a dataset, or of files that are read like a dataset."""
    from shardline.data.build import make_source
    from shardline.data.sources.remote_files import fetch

    check_environment(project, dataset.document)
    fetch(dataset.source.get("files", ()), project.layout.downloads)
    watch(project, dataset)
    given: dict[str, Any] = {"num_shards": dataset.num_shards, "files": dataset.files}
    if (model := dataset.read_as) is None:
        return make_source(dataset.source_class, dataset.source, **given)
    # imports pyarrow, which a machine that only trains may not have
    from shardline.data.predicted import found_features, open_files

    fetch(model.source.get("files", ()), project.layout.downloads)
    trained_on = _sealed(model, read_as)
    return open_files(
        dataset.source_class,
        dataset.source,
        **given,
        schema=trained_on.schema,
        plan=trained_on.preprocessing,
        features=found_features(model.source_class, model.source, model.files),
    )

"""Building of datasets: write shards from a source, describe them in parts, seal the manifest.

The module `rows` decides which rows a shard contains, `shard_format` how the file is laid out. Rows
are ordered train, validation, test, so each split is one contiguous block of the file; with folds,
they are ordered by fold, see `shardline_io.order.folds`.
"""

import importlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType, structs

from shardline.config.resolved import PythonObject
from shardline.core.error_texts import check_arguments
from shardline.core.errors import DataError
from shardline.data.fixed_groups import FixedGroups
from shardline.data.folds import check_folds, shown_names
from shardline.data.preprocessing import fitted_manifest
from shardline.data.rows import Memory, Rows, read_rows
from shardline.data.shard_format import write_shard
from shardline.data.sources import Source
from shardline.data.sources.source import UNKNOWN_LABEL, combine_digests
from shardline.data.statistics import Statistics, by_column, merge_all, merge_siblings
from shardline.records.datasets import (
    WITH_FOLDS,
    DatasetSchema,
    DatasetStatistics,
    FoldStatistics,
    Manifest,
    Part,
    SampleForm,
    Shard,
    Skipped,
    SplitPlan,
)
from shardline.records.identities import IdentityDocument

Built = tuple[Shard, Statistics]
SKIPPED_SHOWN = 20
_UNKNOWN = re.compile(rf"(?<! is empty)(?<! is missing), expected {re.escape(UNKNOWN_LABEL)}")
_OF_CONFIG = ("type", "options", "files", "not_read")
_OF_PYTHON = ("columns", "classes", "num_classes", "workers")


def make_source(
    source_class: str, settings: Mapping[str, Any], *, num_shards: int, files: Sequence[Path],
    labels_optional: bool = False,
) -> Source:  # fmt: skip
    """Import a source class and create a source.

    Args:
        source_class: import path, `module:Class`.
        settings: the dataset's `source` settings.
        files: files that the source reads; empty if its options name none.
        labels_optional: see `Source`.

    Raises:
        DataError: the class is not a Source, or rejects its options; carries its message.
    """
    if is_python_data(source_class):
        return _python_source(source_class, settings, num_shards=num_shards, files=files)
    cls = import_source(source_class)
    if given := [key for key in _OF_PYTHON if ":" in settings.get("type", "") and key in settings]:
        raise DataError(
            f"source.{given[0]} is given, but {source_class} is a Source, expected it for torch datasets only; remove "
            "it, and define the schema in the class"
        )
    if labels_optional:  # a subclass of the same name keeps constructor and messages
        cls = type(cls.__name__, (cls,), {"labels_optional": True, "__module__": cls.__module__})
    named = {key: value for key, value in settings.items() if key not in _OF_CONFIG}
    options = {**named, **settings.get("options", {})}
    arguments = {"num_shards": num_shards, **({"files": files} if files else {}), **options}
    what, remedy = f"source {source_class}", "change source.options"
    check_arguments(cls, arguments, what, remedy, kind=DataError, written=options)
    source = cls(**arguments)
    source.not_read = settings.get("not_read", {})
    return source


def import_source(source_class: str) -> type[Source]:
    """Import a source class.

    Raises:
        DataError: the class is not a subclass of `Source`.
    """
    module, _, name = source_class.partition(":")
    cls = getattr(importlib.import_module(module), name)
    if not (isinstance(cls, type) and issubclass(cls, Source)):
        raise DataError(
            f"source {source_class} is not a subclass of shardline.data.sources.Source; derive it from Source"
        )
    return cls


def is_python_data(source_class: str) -> bool:
    """Return whether an import path names a torch dataset, a function or a data module, and no `Source`."""
    module, _, name = source_class.partition(":")
    found = getattr(importlib.import_module(module), name)
    return not (isinstance(found, type) and issubclass(found, Source))


def _python_source(
    path: str, settings: Mapping[str, Any], *, num_shards: int, files: Sequence[Path]
) -> Source:
    from shardline.data.python.source import PythonSource

    given = PythonObject(
        path=path, options=settings.get("options", {}), files=[str(file) for file in files]
    )
    named = {key: settings[key] for key in _OF_PYTHON if key in settings}
    kind = type(path.rpartition(":")[2], (PythonSource,), {})  # messages name the user's class
    source: Source = kind(given, num_shards=num_shards, files=files, **named)
    source.not_read = settings.get("not_read", {})
    return source


def shard_file(shard: int) -> str:
    """Return the file name of a shard."""
    return f"shard-{shard:05d}.safetensors"


def shard_number(file: str) -> int:
    """Return a shard's number from its file name, else -1; from 100,000 on, names do not sort."""
    digits = file.removeprefix("shard-").removesuffix(".safetensors")
    return int(digits) if digits.isdecimal() else -1


def build_shards(
    source: Source, shards: Iterable[int], splits: Mapping[str, Any], folder: Path,
    plan: SplitPlan | None = None, groups: FixedGroups | None = None,
) -> Iterator[Built]:  # fmt: skip
    """Write shards, and yield the record and statistics of each once its file is on disk.

    A thread digests and writes one shard while the rows of the next are read, so two shards are in
    memory. A shard whose writing has begun is completed even after an error or Ctrl-C.

    Args:
        splits: the dataset's `splits`.
        plan: plan of the splits, if they need one.
        groups: gets the groups of the rows, see `data.fixed_groups`.

    Raises:
        DataError: the source returned rows that do not match its schema, or a shard could not be
            written; no partial file remains.
    """
    is_planned = any(splits.get(key) for key in ("stratify", "time", "balanced"))
    assert plan is not None or not is_planned, "see `split_plans.make_plan`"
    shards = list(shards)
    _sweep(folder, {shard_file(shard) for shard in shards})
    memory = Memory()
    with ThreadPoolExecutor(1, "shard-writer") as writer:
        writing: Future[Built] | None = None
        for shard in shards:
            rows = read_rows(source, shard, splits, memory, plan, groups)
            before = writing.result() if writing else None
            writing = writer.submit(_write, rows, shard, folder, memory)
            if before:
                yield before
        if writing:
            yield writing.result()


def _sweep(folder: Path, names: set[str]) -> None:
    """Delete temporary files of these shards, which a killed job has left."""
    for path in folder.glob(".shard-*.tmp"):
        if path.name[1:].rsplit(".", 2)[0] in names:
            with suppress(OSError):
                path.unlink()


def _write(rows: Rows, shard: int, folder: Path, memory: Memory) -> Built:
    name = shard_file(shard)
    digest = write_shard(folder / name, rows.tensors, rows.layout, shard=shard)
    memory.give_back(rows)
    record = Shard(
        file=name,
        rows=rows.counts,
        values=rows.values or UNSET,
        bytes=rows.layout.bytes,
        blake3=digest,
    )
    statistics = Statistics(
        first=shard,
        stop=shard + 1,
        moments=rows.train,
        class_counts=rows.class_counts,
        folds=rows.folds,
        tables=rows.tables,
    )
    return record, statistics


def describe_part(
    dataset: str, built: Iterable[Built], skipped: Mapping[int, Sequence[str]]
) -> Part:
    """Return the part that describes one job's shards.

    Args:
        built: records and statistics of consecutive shards, in order.
        skipped: by shard, a sentence for each skipped row or file; read after all shards are built.
    """
    records: list[Shard] = []

    def statistics() -> Iterator[Statistics]:
        for record, of in built:
            records.append(record)
            yield of

    merged = merge_siblings(statistics())  # one by one: statistics of many features are large
    files = {record.file for record in records}
    return Part(
        dataset=dataset,
        shards=records,
        statistics=[item.to_record() for item in merged],
        skipped={
            shard_file(shard): Skipped(count=len(sentences), first=_first(sentences))
            for shard, sentences in sorted(skipped.items())
            if sentences and shard_file(shard) in files
        },
    )


def _first(sentences: Sequence[str]) -> list[str]:
    """Return the first sentences; the last one is about an unknown label, if only a later sentence is."""
    first, later = [*sentences[:SKIPPED_SHOWN]], sentences[SKIPPED_SHOWN:]
    if not any(map(_UNKNOWN.search, first)):
        first[-1:] = [next(filter(_UNKNOWN.search, later), first[-1])]
    return first


def seal(
    parts: Iterable[Part],
    *,
    dataset: str,
    source: Source,
    document: IdentityDocument,
    is_trained_on: bool = True,
    folder: Path | None = None,
) -> Manifest:
    """Merge the parts that the jobs wrote into a manifest.

    Args:
        parts: parts of all jobs.
        dataset: the dataset's id.
        document: the dataset's identity document, stored in the manifest.
        is_trained_on: whether the dataset, and each class with rows, needs train rows.
        folder: folder of the shards, from which preprocessing may need a sample.

    Raises:
        DataError: a shard is missing or described twice, there are no train rows, a class of
            held-out rows has no train rows, a class has no rows while rows of an unknown class
            were skipped, or the source's files changed during the build.
    """
    parts = list(parts)
    records = sorted(
        (one for part in parts for one in part.shards), key=lambda one: shard_number(one.file)
    )
    if [record.file for record in records] != [*map(shard_file, range(source.num_shards))]:
        raise DataError(
            f"dataset {dataset}: the parts describe {len(records)} shards, expected each of "
            f"{source.num_shards} once; delete the folder of its parts and run the pipeline again"
        )
    _check_source(source, document, dataset)
    rows = {name: sum(one.rows[name] for one in records) for name in records[0].rows}
    statistics = [Statistics.of_record(item) for part in parts for item in part.statistics]
    merged = merge_all(sorted(statistics, key=lambda item: item.first))
    if is_trained_on:
        check_folds(rows, merged.class_counts, source.schema.classes, dataset)
        absent = _absent_classes(merged.class_counts, source.schema.classes)
        listed = getattr(source, "classes", ())
        _check_spelling([name for name in absent if name in listed], parts, dataset)
    folds = len(merged.folds)
    manifest = Manifest(
        dataset=dataset,
        version=WITH_FOLDS if folds else UNSET,
        folds=folds or UNSET,
        schema=schema_of_source(source),
        splits=rows,
        bytes=sum(record.bytes for record in records),
        statistics=_statistics(merged),
        reference=source.reference,
        skipped=_skipped(parts),
        shards=records,
        identity=document,
        samples=samples_of(source),
    )
    plan = source.schema.preprocessing
    if plan is None or folder is None or not is_trained_on:
        return manifest
    return fitted_manifest(manifest, plan, merged, folder)


def _statistics(merged: Statistics) -> DatasetStatistics:
    whole, *folds = (
        by_column({name: of.to_record() for name, of in merged.train(fold).items()})
        for fold in (None, *range(len(merged.folds)))
    )
    return DatasetStatistics(
        class_counts=merged.class_counts,
        **whole,
        folds=[FoldStatistics(**of) for of in folds] or UNSET,
    )


def schema_of_source(source: Source) -> DatasetSchema:
    """Return the schema of a manifest, with the columns after the transforms of a torch dataset."""
    from shardline.data.python.source import PythonSource

    schema = source.schema.record()
    return (
        structs.replace(schema, sampled=source.sampled)
        if isinstance(source, PythonSource)
        else schema
    )


def samples_of(source: Source) -> SampleForm | UnsetType:
    """Return the form of a torch dataset's samples, if it has transforms to apply when rows are read."""
    from shardline.data.python.source import PythonSource

    return source.samples if isinstance(source, PythonSource) else UNSET


def _check_source(source: Source, document: IdentityDocument, dataset: str) -> None:
    found, expected = source.content_digest, combine_digests(document.get("source", {}).values())
    if found != expected:
        raise DataError(
            f"dataset {dataset}: the source's content is now {found[:12]}..., expected {expected[:12]}... as when the "
            "pipeline started; run the pipeline again, and do not change the source meanwhile"
        )


def _absent_classes(counts: Mapping[str, Sequence[int]], classes: Sequence[str]) -> list[str]:
    """Return, and log, the classes without rows."""
    absent = [
        name
        for index, name in enumerate(classes if counts else ())
        if not any(of_block[index] for of_block in counts.values())
    ]
    if absent:
        logging.warning("classes without any row: %s", shown_names(absent))
    return absent


def _check_spelling(absent: Sequence[str], parts: Iterable[Part], dataset: str) -> None:
    """Reject classes without rows if rows were skipped whose label is no class."""
    skipped = [item for part in parts for _, item in sorted(part.skipped.items())]
    unknown = [text for item in skipped for text in item.first if _UNKNOWN.search(text)]
    if absent and unknown:
        quoted = [f'"{name}"' for name in absent]
        raise DataError(
            f"dataset {dataset}: class {shown_names(quoted)} has no row, and source.on_bad: skip left out "
            f"{sum(item.count for item in skipped):,} rows, one of them for its label ({unknown[0]}), expected a row "
            "of each class; correct source.classes, or list there only classes that have rows"
        )


def _skipped(parts: Iterable[Part]) -> Skipped:
    by_shard = {name: item for part in parts for name, item in part.skipped.items()}
    items = [by_shard[name] for name in sorted(by_shard, key=shard_number)]
    first = [sentence for item in items for sentence in item.first][:SKIPPED_SHOWN]
    return Skipped(count=sum(item.count for item in items), first=first)

"""Loading of the datasets of a project: entries and mixes of the config, and the parts of each run."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from shardline.config import checked_sources, predictions
from shardline.config.code_paths import resolve_class
from shardline.config.folds import with_share
from shardline.config.plans import DatasetPlan, WeightedDataset, count_shards
from shardline.config.project import Project, document_of_dataset, locate
from shardline.config.resolved import as_type
from shardline.config.run_table import Row
from shardline.config.settings.config import DatasetSettings, PredictionSettings
from shardline.config.validate import Problems
from shardline.core.canonical import short_digest
from shardline.core.errors import ConfigError
from shardline.core.suggest import suggest

Mixes = Mapping[str, Mapping[str, float]]
Entries = Mapping[str, dict[str, Any]]  # entries of `datasets` as written


def load_datasets(
    project: Project, rows: list[Row], others: Collection[str], entries: Entries, mixed: Mixes, config_file: str,
    problems: Problems,
) -> dict[str, DatasetPlan]:  # fmt: skip
    """Return the datasets without errors by name, and add them to the project.

    Args:
        others: Names of datasets that no row needs.
        mixed: Mixes of the config.
        config_file: Start of messages.
    """
    problems.found += _problems_of_mixes(mixed, entries, config_file)
    for row in rows:
        problems.found += _problems_of_row(row, mixed, entries, config_file)
    loaded: dict[str, DatasetPlan] = {}
    wanted = (name for row in rows for name in weights_of_row(row, mixed))
    for name in dict.fromkeys(name for name in (*wanted, *others) if name in entries):
        with problems.gather():
            where = f"{config_file}: datasets.{name}"
            loaded[name] = _load_dataset(project, name, entries[name], where)
    for name, dataset in loaded.items():
        known = project.datasets.get(dataset.id)
        names = (*known.names, name) if known else (name,)
        if known and known.document != dataset.document:
            raise ConfigError(
                f"{config_file}: the identities of datasets.{name} and datasets.{known.name} have the same digest "
                f"{dataset.id} by chance; change a setting that does not matter, such as shards"
            )
        project.datasets[dataset.id] = replace(known or dataset, names=names)
    return {name: project.datasets[dataset.id] for name, dataset in loaded.items()}


def load_predicted(
    project: Project, asked: Mapping[str, PredictionSettings], rows: list[Row], entries: Entries, mixes: Mixes,
    datasets: Mapping[str, DatasetPlan], where: str, problems: Problems,
) -> dict[str, DatasetPlan]:  # fmt: skip
    """Return the rows of each prediction, and add datasets that no run uses to the project."""
    named = dict(datasets)
    found: dict[str, DatasetPlan] = {}
    with problems.gather():
        for name, entry in asked.items():
            key = f"{where}: predictions.{name}"
            if isinstance(entry.dataset, str) and entry.dataset not in named:
                if entry.dataset not in entries:
                    hint = suggest(entry.dataset, entries)
                    raise ConfigError(f"{key}.dataset={entry.dataset} is not in datasets; {hint}")
                place = f"{where}: datasets.{entry.dataset}"
                named[entry.dataset] = _load_dataset(
                    project, entry.dataset, entries[entry.dataset], place
                )
        weights = {row.name: weights_of_row(row, mixes) for row in rows}
        datasets_of = {
            row: [datasets[name] for name in of if name in datasets] for row, of in weights.items()
        }
        found = predictions.rows_of_entries(project, asked, rows, datasets_of, named, where)
    project.predicted = {one.id: one for one in found.values() if one.id not in project.datasets}
    return found


def _load_dataset(project: Project, name: str, settings: dict[str, Any], where: str) -> DatasetPlan:
    source_class = resolve_class(
        settings["source"]["type"],
        checked_sources.SHIPPED_SOURCES,
        project.code,
        f"{where}.source.type",
    )
    found = locate(project, settings, where)
    settings = {**settings, "splits": with_share(settings["splits"])}
    if settings["shards"] == "auto":
        num_shards = count_shards(
            found.source, found.files, project.workdir, project.layout.downloads, where
        )
        settings = {**settings, "shards": num_shards}
    document = document_of_dataset(project, settings, source_class, found)
    return DatasetPlan(
        names=(name,),
        id=short_digest(document),
        layout=project.layout,
        settings=as_type(settings, DatasetSettings),
        source_class=source_class,
        source=found.source,
        files=found.files,
        document=document,
        definitions=project.documents.definitions({"source": source_class}),
        kind=project.documents.kind_of(source_class),
    )


def weights_of_row(row: Row, mixes: Mixes) -> Mapping[str, float]:
    """Return the weights of the datasets of a row by name."""
    if isinstance(row.dataset, str):
        return mixes.get(row.dataset, {row.dataset: 1.0})
    return row.dataset


def _problems_of_mixes(mixes: Mixes, datasets: Collection[str], where: str) -> Iterator[str]:
    """Yield the problems of the mixes of a config.

    Args:
        where: File of the config, the start of messages.
    """
    for name, weights in mixes.items():
        if name in datasets:
            yield f"{where}: mixes.{name} has the name of a dataset; rename one of them"
        for part in weights:
            if part not in datasets:
                yield f"{where}: mixes.{name}.{part} is not in datasets; {suggest(part, datasets)}"


def _problems_of_row(
    row: Row, mixes: Mixes, datasets: Collection[str], where: str
) -> Iterator[str]:
    """Yield the problems of the dataset or mix of a row.

    Args:
        where: File of the config.
    """
    if isinstance(row.dataset, str):
        if row.dataset not in datasets and row.dataset not in mixes:
            places = "datasets or mixes" if mixes else "datasets"
            hint = suggest(row.dataset, [*datasets, *mixes])
            yield f"{row.where}: dataset={row.dataset} is not in {places} of {where}; {hint}"
        return
    for part in row.dataset:
        if part not in datasets:
            hint = suggest(part, datasets)
            text = json.dumps(row.dataset, ensure_ascii=False)
            yield f"{row.where}: dataset={text}: {part} is not in datasets of {where}; {hint}"


def parts_of(
    weights: Mapping[str, float], datasets: Mapping[str, DatasetPlan]
) -> tuple[WeightedDataset, ...]:
    """Return the datasets of a run in the order of ids, with weights that sum to 1.

    Two names of one dataset become one part. Weights are exact decimals: 0.7 is 7/10.

    Args:
        weights: Weights by name of the dataset.
        datasets: Datasets by name.
    """
    shares: dict[str, Fraction] = {}
    named = {datasets[name].id: datasets[name] for name in weights}
    for name, weight in weights.items():
        key = datasets[name].id
        shares[key] = shares.get(key, Fraction(0)) + Fraction(repr(weight))
    total = sum(shares.values())
    return tuple(WeightedDataset(named[key], shares[key] / total) for key in sorted(shares))

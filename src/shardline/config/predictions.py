"""Predictions of a config: their rows, checks and identity documents."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import UNSET

from shardline.config.checked_sources import Located
from shardline.config.code_paths import EVALUATED, SHIPPED_MODELS
from shardline.config.plans import DatasetPlan, PredictionPlan, count_shards
from shardline.config.project import Project, locate
from shardline.config.resolved import RunSpec, as_plain, as_type
from shardline.config.run_table import Row
from shardline.config.scripts import is_script
from shardline.config.settings.config import DatasetSettings, PredictionSettings, Shares
from shardline.core.canonical import short_digest
from shardline.core.errors import ConfigError, DataError
from shardline.core.suggest import suggest
from shardline.identity.class_kind import PYTHON_DATA
from shardline.records.identities import IdentityDocument

_ALL_ROWS = Shares(train=0.0, validation=0.0, test=1.0)  # no group, which these files may lack
# these score tokens or pixels, not rows
_OF_NO_ROWS = {SHIPPED_MODELS[name]: name for name in ("gpt", "unet", "hf:AutoModelForCausalLM")}


def make_prediction(
    project: Project, spec: RunSpec, code_paths: Mapping[str, str], trained_on: Mapping[str, str],
    rows: DatasetPlan, split: str, where: str,
) -> PredictionPlan:  # fmt: skip
    """Return a prediction with its identity.

    Args:
        where: Start of messages.

    Raises:
        ConfigError: The model of the run cannot predict single rows.
    """
    if is_script(spec.model_class):
        raise ConfigError(
            f"{where}: run {spec.title} is the training script {spec.model_class}, whose model Shardline does not "
            "know; predict in the script, or train a LightningModule"
        )
    if spec.settings.data.pack is not None:
        raise ConfigError(
            f"{where}: run {spec.title} has data.pack, so its model needs several rows at a time, expected one that "
            "predicts single rows; call the model in your own script, see `shardline export`"
        )
    if name := _OF_NO_ROWS.get(spec.model_class):
        raise ConfigError(
            f"{where}: run {spec.title} has model={name}, which scores tokens or pixels, expected a model that "
            "predicts rows; define predict_step in your own subclass of it, or call an export of it"
        )
    document = document_of_prediction(project, spec, code_paths, rows.id, split)
    return PredictionPlan(
        layout=project.layout, spec=spec, code_paths=code_paths, trained_on=trained_on, rows=rows, split=split,
        document=document,
    )  # fmt: skip


def files_as_dataset(
    project: Project, patterns: Sequence[str], read_as: DatasetPlan, where: str
) -> DatasetPlan:
    """Return files as a dataset of test rows.

    Args:
        patterns: Files or patterns, relative to the project folder.
        read_as: Dataset with the source that reads the files.
        where: Start of messages.

    Raises:
        ConfigError: A pattern matches no file, or the source reads no files.
        DataError: A file cannot be read.
    """
    plain = as_plain(read_as.settings)
    if read_as.kind in PYTHON_DATA:
        raise ConfigError(
            f"{where}: dataset {read_as.name} comes from {read_as.source_class}, which is no Source and cannot read "
            "other files; add a dataset of these rows to the config, and name it to predict"
        )
    if "files" not in plain["source"]:
        raise ConfigError(
            f"{where}: dataset {read_as.name} is of type {plain['source']['type']}, which reads no files; name a "
            "dataset of the config to predict"
        )
    source = {**plain["source"], "files": list(patterns)}
    settings = {**plain, "source": source, "splits": as_plain(_ALL_ROWS)}
    try:
        found = locate(project, settings, where)
    except (ConfigError, DataError) as error:  # of a key that nobody wrote
        raise type(error)(str(error).replace(f"{where}.source.files", where)) from None
    num_shards = count_shards(
        found.source, found.files, project.workdir, project.layout.downloads, where
    )
    if source["type"] == "image_folder":  # a row each
        num_shards = min(num_shards, len(found.files))
    document = document_of_files(project, read_as, num_shards, found)
    return DatasetPlan(
        names=(", ".join(patterns),),
        id=short_digest(document),
        layout=project.layout,
        settings=as_type({**settings, "shards": num_shards}, DatasetSettings),
        source_class=read_as.source_class,
        source=found.source,
        files=found.files,
        document=document,
        read_as=read_as,
    )


def rows_of_entries(
    project: Project, entries: Mapping[str, PredictionSettings], rows: Sequence[Row],
    datasets_of: Mapping[str, Sequence[DatasetPlan]], named: Mapping[str, DatasetPlan], where: str,
) -> dict[str, DatasetPlan]:  # fmt: skip
    """Return the dataset, or the files, of each entry of `predictions`.

    Args:
        rows: Rows of the run table.
        datasets_of: Datasets of each row, by name of the row.
        named: Datasets by name, including those that only predictions need.
        where: File of the config.

    Raises:
        ConfigError: An entry names no run or no rows; the message names the key.
    """
    found = {}
    for name, entry in entries.items():
        place = f"{where}: predictions.{name}"
        if folds := [row for row in rows if row.folds_of == entry.run]:
            found[name] = _rows_of_folds(entry, datasets_of[folds[0].name], named, place)
            continue
        if entry.run not in {row.name for row in rows}:
            names = [name for row in rows for name in (row.folds_of, row.name) if name]
            hint = suggest(entry.run, list(dict.fromkeys(names)))
            raise ConfigError(f"{place}.run={entry.run} is not a run of {project.table}; {hint}")
        if (entry.dataset is UNSET) == (entry.files is UNSET):
            both = "neither" if entry.dataset is UNSET else "both"
            raise ConfigError(f"{place} has {both} of dataset and files; give one of them")
        if isinstance(entry.files, list):
            datasets, place = datasets_of[entry.run], f"{place}.files"
            if len(datasets) != 1:
                raise ConfigError(
                    f"{place}: the run is trained on {len(datasets)} datasets, so the source for "
                    "the files is unknown; make a dataset of them, and name that"
                )
            found[name] = files_as_dataset(project, entry.files, datasets[0], place)
        elif entry.dataset in named:
            found[name] = named[str(entry.dataset)]
    return found


def _rows_of_folds(
    entry: PredictionSettings, datasets: Sequence[DatasetPlan], named: Mapping[str, DatasetPlan], place: str
) -> DatasetPlan:  # fmt: skip
    """Return the dataset of a run with `fold: all`, of whose rows each fold predicts its own."""
    what = f"run={entry.run} has fold=all, and each of its models predicts the fold that it was not trained on"
    if isinstance(entry.files, list):
        raise ConfigError(
            f"{place}.files: {what}; name one of its folds, such as {entry.run}_fold=0"
        )
    if entry.split != "test":
        raise ConfigError(f"{place}.split={entry.split}: {what}; leave split out")
    if len(datasets) != 1:
        raise ConfigError(f"{place}: {what}, but it is trained on a mix; name one of its folds")
    other = named.get(str(entry.dataset), datasets[0])
    if other.id != datasets[0].id:
        raise ConfigError(f"{place}.dataset={entry.dataset}: {what}; leave dataset out")
    return datasets[0]


def join_folds(
    project: Project, folds: Sequence[PredictionPlan], names: tuple[str, ...] = ()
) -> PredictionPlan:
    """Return the prediction of all rows from those of the folds: each row by the model that did not train on it.

    Args:
        folds: Prediction of each fold, in order.
        names: Names in the config.
    """
    document: IdentityDocument = {
        "stage": "predict",
        "settings": {"split": folds[0].split, "folds": len(folds)},
        "inputs": {"predictions": [one.id for one in folds]},
        **project.documents.made_by("prediction", {}, as_plain(folds[0].spec.settings)),
    }
    joined = tuple((one.spec.run, one.id) for one in folds)
    return replace(folds[0], names=names, document=document, folds=joined)


def add_predictions(
    project: Project, entries: Mapping[str, PredictionSettings], rows: Mapping[str, DatasetPlan], where: str
) -> None:  # fmt: skip
    """Add the predictions of the runs of a project."""
    runs = project.named_runs()
    for name, entry in entries.items():
        split = entry.split if entry.files is UNSET else "test"
        folds = [
            key for key, run in runs.items() for row in run.rows
            if row.name == key and row.folds_of == entry.run
        ]  # fmt: skip
        made = [
            make_prediction(
                project, runs[key].spec, runs[key].code_paths, runs[key].spec.datasets, rows[name], split,
                f"{where}: predictions.{name}",
            )
            for key in folds or [entry.run] if key in runs
        ]  # fmt: skip
        for one in made if folds else ():
            project.predictions.setdefault(one.id, one)
        for one in [join_folds(project, made)] if folds else made:
            known = project.predictions.get(one.id, one)
            project.predictions[one.id] = replace(known, names=(*known.names, name))


def document_of_files(
    project: Project, read_as: DatasetPlan, num_shards: int, found: Located
) -> IdentityDocument:
    """Return the identity document of files to predict."""
    documents, program = project.documents, project.documents.program(read_as.source_class)
    return {
        "stage": "predicted files",
        "settings": {"shards": num_shards},
        "source": dict(found.content),
        "inputs": {"dataset": read_as.id},  # includes the settings of its source
        **documents.made_by("data", {"source": program}, as_plain(read_as.settings)),
    }


def document_of_prediction(
    project: Project, spec: RunSpec, code_paths: Mapping[str, str], rows: str, split: str
) -> IdentityDocument:
    """Return the identity document of a prediction.

    Args:
        code_paths: See `RunPlan.code_paths`.
        rows: Id of the dataset to predict.
        split: Split to predict.
    """
    read = {
        part: path for part, path in code_paths.items() if part.startswith(("model", *EVALUATED))
    }
    documents, settings = project.documents, as_plain(spec.settings)
    return {
        "stage": "predict",
        "settings": {"split": split, "batch": settings["evaluation"]["batch"]},
        "inputs": {"run": spec.run, "rows": rows},
        **documents.made_by("prediction", documents.programs_of(read), settings),
    }

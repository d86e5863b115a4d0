"""The whole of what a config asks for: datasets and runs with identities and paths."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from shardline.config import checks, schema
from shardline.config.runs import Row, read_rows
from shardline.errors import ConfigError
from shardline.identity import CodeIndex, FileDigests, Lock, load_lock, short_digest
from shardline.identity.code import import_roots
from shardline.identity.environment import default_lock

RESULTS = Path("results")
BUILD_ENTRY, TRAIN_ENTRY = "shardline.shards", "shardline.train"
EVALUATE_ENTRY, REPORT_ENTRY = "shardline.evaluate", "shardline.report"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset to be built.

    Attributes:
        id: name and identity digest; names its folders.
        source_class: import path of the source.
        document: the identity document.
    """

    name: str
    id: str
    settings: dict[str, Any]
    source_class: str
    files: tuple[Path, ...]
    document: dict[str, Any]

    @property
    def digest(self) -> str:
        """The identity digest, without the name."""
        return self.id[-12:]

    @property
    def manifest(self) -> Path:
        """The sealed manifest."""
        return RESULTS / "datasets" / self.id / "manifest.json"

    @property
    def parts(self) -> dict[str, range]:
        """The shards that each job writes, by part name."""
        shards, step = self.settings["shards"], self.settings["shards_per_job"]
        ranges = [range(first, min(first + step, shards)) for first in range(0, shards, step)]
        return {f"{part.start:05d}-{part.stop - 1:05d}": part for part in ranges}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run to be trained and evaluated.

    Attributes:
        id: name and identity digest; names its folders.
        document: identity document of the training.
        evaluation_document: identity document of the evaluation.
    """

    name: str
    id: str
    row: Row
    dataset: Dataset
    model_class: str
    settings: dict[str, Any]
    document: dict[str, Any]
    evaluation_document: dict[str, Any]

    @property
    def digest(self) -> str:
        """The identity digest, without the name."""
        return self.id[-12:]

    @property
    def folder(self) -> Path:
        """The folder of sealed results."""
        return RESULTS / "runs" / self.id

    @cached_property
    def evaluation_id(self) -> str:
        """The evaluation's identity digest."""
        return short_digest(self.evaluation_document)

    @property
    def evaluation(self) -> Path:
        """The sealed evaluation."""
        return self.folder / "evaluations" / f"{self.evaluation_id}.json"

    @property
    def is_sealed(self) -> bool:
        """Whether training and evaluation are done."""
        return (self.folder / "model.safetensors").exists() and self.evaluation.exists()


@dataclass(kw_only=True)
class Project:
    """Everything that the present config names.

    Attributes:
        datasets: by id, those that a run uses.
        runs: by id, in the order of the table.
        store: root of bulky data.
        runtime: settings that change no result.
    """

    workdir: Path
    store: Path
    runtime: dict[str, Any]
    lock: Lock
    code: CodeIndex
    datasets: dict[str, Dataset] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)

    def environment_of(self, *entries: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return code and environment part of an identity, for the given entry modules."""
        code, third_party = self.code.closure(*entries)
        return code, self.lock.environment(third_party)

    @cached_property
    def report_document(self) -> dict[str, Any]:
        """The identity document of the report over all runs."""
        code, environment = self.environment_of(REPORT_ENTRY)
        inputs = [[run.id, run.evaluation_id] for run in self.runs.values()]
        template = (template_path()).read_text()
        return {
            "stage": "report",
            "inputs": {"evaluations": inputs},
            "template": short_digest(template),
            "code": code,
            "environment": environment,
        }

    @cached_property
    def report(self) -> Path:
        """The report over exactly these runs."""
        return RESULTS / "reports" / short_digest(self.report_document) / "index.html"

    def check_devices(self) -> None:
        """Refuse runs that do not fit this machine; for profiles whose jobs run on it."""
        oversubscribe = bool(self.runtime["oversubscribe"])
        for run in self.runs.values():
            if not (run.folder / "model.safetensors").exists():
                checks.check_devices(run.settings, run.row.where, oversubscribe=oversubscribe)


def template_path() -> Path:
    """Return the report's template: the checkout's, or the installed one."""
    package = Path(__file__).parents[1]
    checkout = package.parents[1] / "report" / "template.html.j2"
    return checkout if checkout.is_file() else package / "templates" / "report.html.j2"


def store_root() -> Path:
    """Return the root of bulky data: `SHARDLINE_STORE`, or `store` below the working directory."""
    return Path(os.environ.get("SHARDLINE_STORE") or "store")


def load_project(
    config: Mapping[str, Any] | None = None,
    *,
    workdir: Path | None = None,
    config_file: Path = Path("config/config.yaml"),
) -> Project:
    """Validate a config and its run table, and give every dataset and run its identity.

    Args:
        config: the config as Snakemake merged it; read from `config_file` if None.
        workdir: folder that relative paths start from; the current one if None.
        config_file: the config's path, for messages.

    Raises:
        ConfigError: anything in config or table is wrong; names file, row and key.
    """
    workdir = (workdir or Path.cwd()).resolve()
    config = _read_config(workdir / config_file) if config is None else config
    config = _resolve_config(config, str(config_file))
    code = CodeIndex(import_roots(workdir))
    project = Project(
        workdir=workdir,
        store=store_root(),
        runtime=config["runtime"],
        lock=load_lock(workdir / config["lock"] if "lock" in config else default_lock()),
        code=code,
    )
    rows = read_rows(Path(config["runs"]) if workdir == Path.cwd() else workdir / config["runs"])
    _check_dataset_names(rows, config["datasets"])
    datasets = _load_datasets(project, {row.dataset for row in rows}, config["datasets"], str(config_file))
    for row in rows:
        run = _load_run(project, row, config["defaults"], datasets[row.dataset])
        project.runs[run.id] = run
    return project


def _read_config(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); run from the project's folder") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is empty; see config/README.md")
    return document


def _resolve_config(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    shape, settings = schema.load_schema("config"), schema.load_schema("settings")
    schema.validate(config, "config", where=where)
    defaults = schema.coerce(config["defaults"], settings)
    _validate_defaults(defaults, where)
    return {
        **config,
        "defaults": schema.merge(schema.defaults_of(settings), defaults),
        "runtime": schema.merge(schema.defaults_of(shape)["runtime"], config.get("runtime") or {}),
    }


def _validate_defaults(defaults: Mapping[str, Any], where: str) -> None:
    try:
        schema.validate(defaults, "settings", where=where)
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"{where}: ", f"{where}: defaults.", 1)) from None


def _check_dataset_names(rows: list[Row], datasets: Mapping[str, Any]) -> None:
    for row in rows:
        if row.dataset not in datasets:
            raise ConfigError(
                f"{row.where}: dataset={row.dataset} is not in config.yaml's datasets; "
                f"{schema.suggest(row.dataset, datasets)}"
            )


def _load_datasets(
    project: Project, names: set[str], entries: Mapping[str, Any], config_file: str
) -> dict[str, Dataset]:
    digests = FileDigests(project.workdir / ".snakemake" / "shardline-digests.json")
    part = schema.load_schema("config")["properties"]["datasets"]["additionalProperties"]
    loaded = {}
    for name in sorted(names):
        settings = schema.merge(schema.defaults_of(part), schema.coerce(entries[name], part))
        loaded[name] = _load_dataset(project, name, settings, digests, f"{config_file}: datasets.{name}")
        project.datasets[loaded[name].id] = loaded[name]
    digests.save()
    return loaded


def _load_dataset(
    project: Project, name: str, settings: dict[str, Any], digests: FileDigests, where: str
) -> Dataset:
    checks.check_splits(settings["splits"], where)
    source_class = checks.resolve_class(
        settings["source"]["type"], checks.SHIPPED_SOURCES, project.code, f"{where}.source.type"
    )
    files = checks.source_files(settings["source"], project.workdir, where)
    code, environment = project.environment_of(BUILD_ENTRY, source_class.partition(":")[0])
    source = {key: value for key, value in settings["source"].items() if key != "files"}
    document = {
        "stage": "dataset",
        "settings": {"source": source, "shards": settings["shards"], "splits": settings["splits"]},
        "source": digests.digest_all(files),
        "code": code,
        "environment": environment,
    }
    return Dataset(
        name=name,
        id=f"{name}-{short_digest(document)}",
        settings=settings,
        source_class=source_class,
        files=tuple(files),
        document=document,
    )


def _load_run(project: Project, row: Row, defaults: Mapping[str, Any], dataset: Dataset) -> Run:
    settings = schema.merge(defaults, schema.unflatten(row.settings))
    checks.check_geometry(settings, row.where)
    model_class = checks.resolve_class(
        row.model, checks.SHIPPED_MODELS, project.code, f"{row.where}: model"
    )
    model_module = model_class.partition(":")[0]
    code, environment = project.environment_of(TRAIN_ENTRY, model_module)
    document = {
        "stage": "train",
        "settings": {key: value for key, value in settings.items() if key != "evaluation"},
        "model": model_class,
        "inputs": {"dataset": dataset.digest},
        "code": code,
        "environment": environment,
    }
    digest = short_digest(document)
    code, environment = project.environment_of(EVALUATE_ENTRY, model_module)
    evaluation_document = {
        "stage": "evaluate",
        "settings": settings["evaluation"],
        "inputs": {"run": digest},
        "code": code,
        "environment": environment,
    }
    return Run(
        name=row.name,
        id=f"{row.name}-{digest}",
        row=row,
        dataset=dataset,
        model_class=model_class,
        settings=settings,
        document=document,
        evaluation_document=evaluation_document,
    )

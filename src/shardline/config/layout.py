"""Paths of results, data and logs, and the history of the names of runs and datasets."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from shardline.core.canonical import digest
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import read_json, remedy_of, utc_stamp, write_json

Kind = Literal["run", "dataset", "report", "study"]

_FOLDERS: dict[Kind, str] = {
    "run": "runs",
    "dataset": "datasets",
    "report": "reports",
    "study": "studies",
}
_LAST_FILES: dict[Kind, str] = {
    "run": "run.json",
    "dataset": "manifest.json",
    "report": "ro-crate-metadata.json",
    "study": "",  # the folder, since a study grows
}


@dataclass(frozen=True, kw_only=True)
class ResultsLayout:
    """The paths of a project.

    Attributes:
        root: Folder of the project, absolute, so that paths do not depend on the working
            directory. Empty in the layout that `declared` returns.
        named_store: Path of the store as set in config, profile or SHARDLINE_STORE.
    """

    root: Path
    named_store: Path = Path("store")

    @property
    def declared(self) -> "ResultsLayout":
        """The layout with paths relative to the project folder.

        Snakemake compares declared files by these paths, and sealed files contain no other paths.
        """
        return replace(self, root=Path())

    def name_of(self, path: Path) -> str:
        """Return a path as Snakemake declares it: relative to the project folder, if it is inside."""
        return str(path).removeprefix(f"{self.root}{os.sep}")

    # --- results --------------------------------------------------------------------------------

    @property
    def results(self) -> Path:
        """The folder of all sealed results."""
        return self.root / "results"

    @property
    def layout_file(self) -> Path:
        """The file with the number of the layout."""
        return self.results / "layout.json"

    @property
    def names_file(self) -> Path:
        """The history of the names of runs and datasets."""
        return self.results / "names.jsonl"

    def folder_of(self, kind: Kind) -> Path:
        """Return the folder of all results of a kind."""
        return self.results / _FOLDERS[kind]

    def result(self, kind: Kind, identity: str) -> Path:
        """Return the folder of one result."""
        return self.folder_of(kind) / identity

    def exists(self, kind: Kind, identity: str) -> bool:
        """Return whether a result exists: a resolved run, a sealed dataset or report, or a begun study."""
        return (self.result(kind, identity) / _LAST_FILES[kind]).exists()

    def run(self, identity: str) -> Path:
        """Return the folder of a run's sealed files."""
        return self.result("run", identity)

    def model(self, identity: str) -> Path:
        """Return the sealed model of a run."""
        return self.run(identity) / "model.safetensors"

    def evaluation(self, run: str, identity: str) -> Path:
        """Return the file of one evaluation of a run."""
        return self.run(run) / "evaluations" / f"{identity}.json"

    def prediction(self, run: str, identity: str) -> Path:
        """Return the Parquet file of a prediction of a run. Its record is beside it as JSON."""
        return self.run(run) / "predictions" / f"{identity}.parquet"

    def manifest(self, dataset: str) -> Path:
        """Return the sealed manifest of a dataset."""
        return self.result("dataset", dataset) / _LAST_FILES["dataset"]

    def report(self, identity: str) -> Path:
        """Return the page of a report."""
        return self.result("report", identity) / "index.html"

    def environment(self, env: str) -> Path:
        """Return the file that describes a stage's conda environment."""
        return self.results / "envs" / env / "environment.json"

    @property
    def image(self) -> Path:
        """The file that describes the container image."""
        return self.results / "envs" / "image.json"

    @property
    def certificates(self) -> Path:
        """The folder of resume certificates."""
        return self.results / "certificates"

    def preflight(self, run: str) -> Path:
        """Return the file with the findings of the preflight check of a run."""
        return self.results / "preflight" / f"{run}.json"

    def first_steps(self, run: str, steps: int | str) -> Path:
        """Return the file with the metrics of the first steps of a training."""
        return self.results / "first-steps" / f"{run}-{steps}.jsonl"

    def found(self, run: str, setting: str) -> Path:
        """Return the file with the result of `shardline find`."""
        return self.results / "found" / f"{run}-{setting}.json"

    @property
    def studies(self) -> Path:
        """The folder of the proposals and results of all sweeps."""
        return self.folder_of("study")

    def study(self, identity: str) -> Path:
        """Return the folder of a sweep, which contains a folder for each trial."""
        return self.result("study", identity)

    @property
    def all_reruns(self) -> Path:
        """The folder of all repeated trainings."""
        return self.results / "reruns"

    def rerun(self, run: str, number: int | str) -> Path:
        """Return the model of a repeated training. Metrics and provenance are beside it."""
        return self.all_reruns / run / str(number) / "model.safetensors"

    # --- links by the names of the config -------------------------------------------------------

    @property
    def latest_report(self) -> Path:
        """The link to the current report."""
        return self.results / "report"

    @property
    def latest_runs(self) -> Path:
        """The folder of links to runs."""
        return self.results / "latest"

    @property
    def latest_datasets(self) -> Path:
        """The folder of links to datasets."""
        return self.results / "latest-datasets"

    @property
    def latest_predictions(self) -> Path:
        """The folder of links to predictions."""
        return self.results / "predictions"

    @property
    def tensorboard_links(self) -> Path:
        """The folder of links to TensorBoard files; the links have the names of the runs."""
        return self.results / "tensorboard"

    # --- store ----------------------------------------------------------------------------------

    @property
    def store(self) -> Path:
        """The root folder of bulky data."""
        return self.root / self.named_store

    @property
    def all_shards(self) -> Path:
        """The folder of the shards of all datasets."""
        return self.store / "datasets"

    def shards(self, dataset: str) -> Path:
        """Return the folder of the shards of a dataset."""
        return self.all_shards / dataset

    def parts(self, dataset: str) -> Path:
        """Return the folder of the shard lists of a dataset, one file for each job."""
        return self.shards(dataset) / "parts"

    def prepared(self, dataset: str) -> Path:
        """Return the file that `prepare_data` of a data module writes."""
        return self.shards(dataset) / "prepared.json"

    def split_plan(self, dataset: str) -> Path:
        """Return the plan of the splits of a dataset, if these need a pass over all rows."""
        return self.shards(dataset) / "splits.json"

    @property
    def all_work(self) -> Path:
        """The folder of the training checkpoints and attempts of all runs."""
        return self.store / "work"

    def work(self, run: str) -> Path:
        """Return the folder of the training checkpoints and attempts of a run."""
        return self.all_work / run

    def prediction_parts(self, run: str, identity: str) -> Path:
        """Return the folder of the finished parts of a prediction."""
        return self.work(run) / "predictions" / identity

    @property
    def checks(self) -> Path:
        """The folder of the results of model checks."""
        return self.store / "checks"

    def check(self, identity: str) -> Path:
        """Return the file of a passed model check."""
        return self.checks / f"{identity}.json"

    @property
    def failures(self) -> Path:
        """The folder of the errors of failed jobs, see `supervision.job_failures`."""
        return self.store / "failures"

    @property
    def prefixes(self) -> Path:
        """The folder of conda environments."""
        return self.store / "envs"

    @property
    def downloads(self) -> Path:
        """The folder of downloaded source files."""
        return self.store / "downloads"

    def tracker(self, name: str) -> Path:
        """Return the folder of the files of a tracker."""
        return self.store / name

    # --- logs -----------------------------------------------------------------------------------

    @property
    def logs(self) -> Path:
        """The folder of the logs of all rules."""
        return self.root / "logs"

    def log(self, rule: str, key: str) -> Path:
        """Return the log of a job of a rule."""
        return self.logs / rule / f"{key}.log"

    def logs_of_parts(self, rule: str, key: str) -> Path:
        """Return the folder of the logs of the ranks of a job, or of the parts of a dataset."""
        return self.logs / rule / key

    def benchmark(self, rule: str, key: str) -> Path:
        """Return the benchmark file of a job of a rule."""
        return self.root / "benchmarks" / rule / f"{key}.tsv"

    @property
    def latest_logs(self) -> Path:
        """The folder of links to the logs of runs."""
        return self.logs / "latest"

    @property
    def latest_dataset_logs(self) -> Path:
        """The folder of links to the logs of datasets."""
        return self.logs / "latest-datasets"


LAYOUT = 2  # number of the folder layout and its identities; 1 was never released
NamedKind = Literal["run", "dataset"]
Names = dict[str, list[str]]


def check_layout(layout: ResultsLayout) -> None:
    """Reject a folder of results that this version cannot read.

    Raises:
        ConfigError: The layout has another number, or none.
    """
    file, results = layout.layout_file, layout.results
    found: object = None
    if file.exists():
        try:
            found = read_json(file, remedy="")["layout"]
        except (DataError, KeyError, TypeError):
            found = "unreadable"
    elif not any(layout.folder_of(kind).is_dir() for kind in ("run", "dataset")):
        return
    if found in (None, *range(LAYOUT)):
        shown = "no layout.json" if found is None else f"layout {found}"
        raise ConfigError(
            f"{results} was written by a version of Shardline before the first release ({shown}, expected layout "
            f"{LAYOUT}), whose results this version cannot use; move {results} away, or train again in a new folder"
        )
    if found == "unreadable":
        raise ConfigError(
            f'{file} is unreadable, expected {{"layout": {LAYOUT}}}; write that into it if this version of Shardline '
            f"has written the results, or move {results} away"
        )
    if found != LAYOUT:
        raise ConfigError(
            f"{file}: layout is {found}, expected {LAYOUT}; use the version of Shardline that wrote "
            f"it, or move {results} away"
        )


def add_names(layout: ResultsLayout, names: Iterable[tuple[NamedKind, str, str]]) -> None:
    """Append names to the history, and write the number of the layout if it is missing.

    Args:
        names: Kind, name and id of each.

    Raises:
        DataError: The history cannot be written.
    """
    if not layout.layout_file.exists():
        write_json(layout.layout_file, {"layout": LAYOUT})
    now = utc_stamp(timespec="seconds")
    lines = [
        json.dumps({**line, "sha256": digest(line)}) + "\n"
        for kind, name, identity in names
        for line in [{"kind": kind, "name": name, "id": identity, "since": now}]
    ]
    if not lines:
        return
    try:
        with layout.names_file.open("a", encoding="utf-8") as file:
            file.write("\n" * _is_torn(layout.names_file) + "".join(lines))
    except OSError as error:
        raise DataError(f"{layout.names_file} could not be written: {remedy_of(error)}") from error


def names_that_have_been(layout: ResultsLayout, kind: NamedKind) -> Names:
    """Return the past and current names of each identity, the latest last."""
    return name_history(layout).names.get(kind, {})


def identities_of(layout: ResultsLayout, kind: NamedKind, name: str) -> list[str]:
    """Return the past and current identities of a name, the latest first."""
    return name_history(layout).identities.get((kind, name), [])


def title_of(identity: str, names: Mapping[str, list[str]]) -> str:
    """Return the latest name of an identity with its id, such as `wide (1f0c4c8e2d3b)`."""
    had = names.get(identity)
    return f"{had[-1]} ({identity})" if had else identity


@dataclass(frozen=True)
class NameHistory:
    """The history of names.

    Attributes:
        names: Names by kind and identity, the latest last.
        identities: Identities by kind and name, the latest first.
    """

    names: dict[str, Names]
    identities: dict[tuple[str, str], list[str]]


def name_history(layout: ResultsLayout) -> NameHistory:
    """Return the history of names; empty if no name was recorded."""
    file = layout.names_file
    try:
        status = file.stat()
    except OSError:
        return NameHistory({}, {})
    return _read_history(file.absolute(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1)
def _read_history(file: Path, size: int, mtime_ns: int) -> NameHistory:
    """Return the history in a file, cached by size and time, since 10,000 runs may each need it."""
    names: dict[str, Names] = {}
    latest: dict[tuple[str, str], dict[str, None]] = {}
    for kind, name, identity in _history(file):
        had = names.setdefault(kind, {}).setdefault(identity, [])
        if name in had:
            had.remove(name)
        had.append(name)
        stood = latest.setdefault((kind, name), {})
        stood.pop(identity, None)
        stood[identity] = None
    return NameHistory(names, {key: list(reversed(stood)) for key, stood in latest.items()})


def _history(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and identity, the oldest first; skip truncated lines."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            record = json.loads(line)
            yield str(record["kind"]), str(record["name"]), str(record["id"])
        except (ValueError, KeyError, TypeError):
            continue


def _is_torn(file: Path) -> bool:
    """Return whether the last line was truncated, by a full disk or a kill."""
    if not file.exists() or not file.stat().st_size:
        return False
    with file.open("rb") as lines:
        lines.seek(-1, 2)
        return lines.read() != b"\n"

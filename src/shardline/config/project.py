"""The project of a config: its datasets and runs, with their identities and paths."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from shardline.config import checked_sources, checks
from shardline.config.checked_sources import Located
from shardline.config.documents import Documents
from shardline.config.layout import NamedKind, Names, ResultsLayout, add_names, name_history
from shardline.config.plans import DatasetPlan, PredictionPlan, RunPlan, Study
from shardline.config.resolved import as_plain
from shardline.config.script_files import files_that_count
from shardline.config.scripts import ScriptEnvironment, load_environment
from shardline.config.settings.config import AzureML, Conda, IdentitySettings, Image, Runtime
from shardline.config.settings.run_settings import Environment, RunSettings
from shardline.config.user_files import RunNote, read_notes
from shardline.core.canonical import short_digest
from shardline.core.digests import FileDigests
from shardline.core.errors import ConfigError
from shardline.core.package import workflow_folder
from shardline.identity import CodeIndex, Lock, load_lock
from shardline.identity.code_index import import_roots
from shardline.records.identities import IdentityDocument


@dataclass(kw_only=True)
class Project:
    """Everything that the present config names.

    Attributes:
        layout: where results, logs and bulky data lie.
        table: path of the run table, as the config names it.
        runtime: settings that change no result.
        identity: how closely an earlier result must fit to be taken over.
        azureml: what is registered with Azure ML; changes no result either.
        conda: what the stages' conda environments are solved with.
        image: how the container image is built and run; nor does this.
        lock_file: pins of every package.
        named_lock: that file as the config names it; None: the one that comes with Shardline.
        environments: those of training scripts, by name.
        datasets: by id, those that a run uses.
        runs: by id, in the order of the table; those that studies alone ask for come last. A second
            evaluation of one training stands under `{id}/{evaluation}`.
        scaling: the scaling studies.
        outcomes: what became of further runs, which have no result; see `only_finished`.
        predicted: by id, files and datasets that predictions are about and no run uses.
        predictions: by id.
    """

    layout: ResultsLayout
    table: str
    runtime: Runtime
    identity: IdentitySettings
    azureml: AzureML
    conda: Conda
    image: Image
    lock_file: Path
    named_lock: str | None = None
    environments: Mapping[str, Environment] = field(default_factory=dict)
    datasets: dict[str, DatasetPlan] = field(default_factory=dict)
    runs: dict[str, RunPlan] = field(default_factory=dict)
    scaling: tuple[Study, ...] = ()
    outcomes: tuple[Mapping[str, Any], ...] = ()
    predicted: dict[str, DatasetPlan] = field(default_factory=dict)
    predictions: dict[str, PredictionPlan] = field(default_factory=dict)

    @property
    def workdir(self) -> Path:
        """The folder that relative paths start from, absolute."""
        return self.layout.root

    @property
    def store(self) -> Path:
        """Root of bulky data, absolute."""
        return self.layout.store

    @cached_property
    def lock(self) -> Lock:
        """Pins of every package, as the file has them now.

        Raises:
            ConfigError: it cannot be read, or is no lock.
        """
        return load_lock(self.lock_file, self.named_lock)

    @cached_property
    def code(self) -> CodeIndex:
        """Where the project's modules are found."""
        return CodeIndex(import_roots(self.workdir))

    @cached_property
    def digests(self) -> FileDigests:
        """What is known of external files."""
        return FileDigests(self.workdir / ".snakemake" / "shardline-digests.json")

    @property
    def built(self) -> dict[str, DatasetPlan]:
        """Every dataset that jobs build, by id."""
        return self.datasets | self.predicted

    @property
    def assets(self) -> list[Path]:
        """What registers each dataset with Azure ML, where the config asks for that."""
        return [one.asset for one in self.datasets.values() if self.azureml.register_data]

    def add_run(self, run: RunPlan) -> RunPlan:
        """Add a row's run, or its row to the run that is the same; returns the run as it is known now.

        Raises:
            ConfigError: another run's identity has the same digest.
        """
        key = run.id
        if (known := self.runs.get(key)) and known.evaluation_id != run.evaluation_id:
            key = f"{run.id}/{run.evaluation_id}"
        for other in filter(None, (known, known := self.runs.get(key))):
            if other.document != run.document:
                raise ConfigError(
                    f"{run.row.where}: its identity and that of {other.row.where} have the same digest {run.id} by "
                    "chance; change a setting that does not matter, such as seed"
                )
        if known:
            run = replace(known, rows=(*known.rows, *(r for r in run.rows if r not in known.rows)))
        self.runs[key] = run
        return self.runs[key]

    def load_environment(self, given: Environment, where: str) -> ScriptEnvironment:
        """Return an environment of a training script, see `scripts.load_environment`."""
        if given not in self._loaded:
            self._loaded[given] = load_environment(given, where, self.workdir)
        return self._loaded[given]

    @cached_property
    def _loaded(self) -> dict[Environment, ScriptEnvironment]:
        return {}

    @property
    def built_environments(self) -> dict[str, ScriptEnvironment]:
        """What is built for training scripts, by address."""
        found = [run.environment for run in self.runs.values() if run.environment]
        return {one.address: one for one in found if one.has_rule}

    def part(
        self, *, runs: Collection[str] = (), datasets: Collection[str] = (), predictions: Collection[str] = ()
    ) -> "Project":  # fmt: skip
        """Return what a job needs of the project.

        Args:
            runs: keys of the runs that it is about; their datasets come with them.
            datasets: ids of those that it is about.
            predictions: ids, likewise; each comes with its rows.
        """
        own = {key: self.runs[key] for key in runs}
        made = {key: self.predictions[key] for key in predictions}
        needed = {*datasets, *(one.rows.id for one in made.values())}
        needed.update(part.dataset.id for run in own.values() for part in run.parts)
        return replace(
            self,
            runs=own,
            predictions=made,
            datasets={key: one for key, one in self.datasets.items() if key in needed},
            predicted={key: one for key, one in self.predicted.items() if key in needed},
            scaling=tuple(study for study in self.scaling if not own.keys().isdisjoint(study.runs)),
            outcomes=(),
        )

    def only_finished(self, outcomes: Mapping[str, Mapping[str, object]]) -> "Project":
        """Return the project without the runs that have no result: what a report can be made of now.

        Args:
            outcomes: what became of these runs, by key; see `results.outcomes`.
        """
        runs = {key: run for key, run in self.runs.items() if key not in outcomes}
        needed = {part.dataset.id for run in runs.values() for part in run.parts}
        return replace(
            self,
            runs=runs,
            datasets={key: one for key, one in self.datasets.items() if key in needed},
            outcomes=tuple(outcomes.values()),
        )

    def named_runs(self) -> dict[str, RunPlan]:
        """Return the runs by each of their names."""
        return {name: run for run in self.runs.values() for name in run.names}

    def key_of(self, run_id: str, evaluation_id: str | None) -> str | None:
        """Return the key of the run of a training and, where one is named, an evaluation; None if there is none."""
        for key in (run_id, f"{run_id}/{evaluation_id}"):
            run = self.runs.get(key)
            if run and evaluation_id in (None, run.evaluation_id):
                return key
        return None

    @cached_property
    def documents(self) -> Documents:
        """What writes the identity documents."""
        return Documents(workdir=self.workdir, code=self.code, lock=self.lock)

    @cached_property
    def report_document(self) -> IdentityDocument:
        """The identity document of the report over all runs, in whatever order."""
        return self.documents.report(
            {
                "generated_from": self.table,
                "scaling": {study.name: asdict(study) for study in self.scaling},
                "names": self.names,
                "notes": {name: [one.text, *one.tags] for name, one in self.notes.items()},
            },
            {run.evaluation_id: run.id for run in self.runs.values()},
            self.outcomes,
        )

    @cached_property
    def notes(self) -> dict[str, RunNote]:
        """The notes on runs, by the run's name."""
        return read_notes(self.workdir, self.named_runs())

    @property
    def names(self) -> dict[str, dict[str, list[str]]]:
        """What the report calls runs and datasets: their names, in no order, since the table has none."""
        return {
            "runs": {run.evaluation_id: sorted(run.names) for run in self.runs.values()},
            "datasets": {one.id: sorted(one.names) for one in self.datasets.values()},
        }

    @cached_property
    def report(self) -> Path:
        """The report over exactly these runs."""
        return self.layout.report(short_digest(self.report_document))

    @property
    def crate(self) -> Path:
        """The description of report, runs and datasets as an RO-Crate."""
        return self.report.with_name("ro-crate-metadata.json")

    @property
    def measured(self) -> dict[str, int]:
        """The runs of scaling studies, by id, each with the most devices that its studies ask for."""
        most: dict[str, int] = {}
        for study in self.scaling:
            devices = max(size.devices for size in study.sizes)
            for size in study.sizes:
                most[size.run] = max(devices, most.get(size.run, 0))
        return most

    @property
    def environment(self) -> Path | None:
        """The file that records where the ranks' environment is; None where it is the job's own."""
        known = {"conda": self.layout.environment("train"), "image": self.layout.image}
        return known.get(self.runtime.environment)

    @property
    def envs(self) -> Path:
        """The folder of the stages' conda environment files."""
        folder = self.conda.folder
        return self.workdir / folder if isinstance(folder, str) else workflow_folder() / "envs"

    def manifests_of_report(self, exists: Callable[[Path], bool] = Path.exists) -> list[Path]:
        """Return the datasets' manifests that the report tells the lineage from.

        What only tells the lineage must not have a dataset made again that no run needs.

        Args:
            exists: whether a declared file is there; by default on this disk.
        """
        unfinished = (run for run in self.runs.values() if not exists(run.evaluation))
        needed = {part.dataset.id for run in unfinished for part in run.parts}
        return [
            dataset.manifest
            for dataset in self.datasets.values()
            if dataset.id in needed or exists(dataset.manifest)
        ]

    def provenances_of_report(self, exists: Callable[[Path], bool] = Path.exists) -> list[Path]:
        """Return the provenances of these datasets."""
        return [path.with_name("provenance.json") for path in self.manifests_of_report(exists)]

    def check_store_stays(self) -> None:
        """Refuse a store in the working folder of a job whose machine shares no disk with others.

        Raises:
            ConfigError: it is there, and no mount.
        """
        store = self.store
        while not store.exists():
            store = store.parent
        on_same_disk = store.stat().st_dev == self.workdir.stat().st_dev
        if on_same_disk and store.resolve().is_relative_to(self.workdir):
            raise ConfigError(
                f"runtime.store={self.layout.named_store} lies in the folder of this job alone ({self.workdir}), "
                "expected a mount that all jobs have; set SHARDLINE_STORE on the jobs' machines to where it is mounted"
            )

    def check_devices(self, exists: Callable[[Path], bool] = Path.exists) -> None:
        """Refuse runs that do not fit this machine; for profiles whose jobs run on it.

        Args:
            exists: whether a declared file is there; by default on this disk.
        """
        for run in self.runs.values():
            if not exists(run.model):
                checks.check_devices(run.settings, self.runtime, run.row.where)


def locate(project: Project, settings: Mapping[str, Any], where: str) -> Located:
    """Return the files of a dataset's source, see `sources.locate`.

    Args:
        settings: its entry in the config.
        where: as messages begin.
    """
    return checked_sources.locate(
        settings, project.workdir, project.layout.downloads, project.digests, where
    )


def document_of_dataset(
    project: Project, settings: Mapping[str, Any], source_class: str, found: Located
) -> IdentityDocument:
    """Return the identity document of a dataset of the config.

    Args:
        settings: its entry in the config, with the number of shards.
        found: the files of its source.
    """
    counted = {**settings, "source": found.counted}
    return project.documents.dataset(counted, source_class, found.content)


def document_of_run(
    project: Project, settings: RunSettings, paths: Mapping[str, str], weights: Mapping[str, str],
    environment: ScriptEnvironment | None, where: str,
) -> IdentityDocument:  # fmt: skip
    """Return the identity document of a training.

    Args:
        paths: import paths of its code, see `RunPlan.code_paths`.
        weights: of its datasets by id.
        environment: what its script runs in, where it has an environment of its own.
        where: file and row, as messages begin.
    """
    files = files_that_count(paths["model"], settings, project.layout, where)
    return project.documents.training(
        as_plain(settings),
        paths,
        weights,
        project.digests.digest_all(files, workdir=project.workdir),
        environment.counted if environment else None,
    )


def titles_of(project: Project) -> dict[str, str]:
    """Return what runs and datasets are called now, with their ids, by id: `wide (1f0c4c8e2d3b)`."""
    names: Names = {}
    every: list[DatasetPlan | RunPlan] = [*project.built.values(), *project.runs.values()]
    for one in every:
        names.setdefault(one.id, []).extend(one.names)
    return {identity: f"{', '.join(known)} ({identity})" for identity, known in names.items()}


def record_names(project: Project) -> None:
    """Number the layout of the results, and add to the history what the config calls by another name now.

    Raises:
        DataError: the history cannot be written.
    """
    add_names(project.layout, _new_names(project))


def _new_names(project: Project) -> Iterator[tuple[NamedKind, str, str]]:
    """Yield each name that stands for another identity than last, and one that is an identity's name again."""
    history = name_history(project.layout)
    asked: list[tuple[NamedKind, DatasetPlan | RunPlan]] = [
        *(("dataset", one) for one in project.built.values()),
        *(("run", one) for one in project.runs.values()),
    ]
    for kind, one in asked:
        latest = history.names.get(kind, {}).get(one.id, [])[-1:]
        for number, name in enumerate(one.names):
            is_again = number == 0 and not set(latest) <= set(one.names)
            if is_again or history.identities.get((kind, name), [])[:1] != [one.id]:
                yield kind, name, one.id

"""The project of a config: its datasets and runs, with their identities and paths."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from shardline.config import checked_sources, checks
from shardline.config.bases import Base
from shardline.config.checked_sources import Located
from shardline.config.documents import Documents
from shardline.config.layout import NamedKind, Names, ResultsLayout, add_names, name_history
from shardline.config.plans import DatasetPlan, PredictionPlan, RunPlan
from shardline.config.resolved import Study, as_plain
from shardline.config.script_files import files_that_count
from shardline.config.scripts import ScriptEnvironment, load_environment
from shardline.config.settings import Plain
from shardline.config.settings.config import AzureML, Conda, IdentitySettings, Image, Runtime
from shardline.config.settings.run_settings import Environment, RunSettings
from shardline.config.sweeps import SweepPlan
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
    """All datasets, runs and predictions of the config.

    Attributes:
        layout: Paths of results, logs and bulky data.
        table: Path of the run table as written in the config.
        runtime: Settings that change no result.
        identity: When earlier results are accepted.
        azureml: Registration with Azure ML; changes no result.
        conda: Solving of the conda environments; changes no result.
        image: Container image; changes no result.
        lock_file: File with the pins of all packages.
        named_lock: `lock_file` as written in the config; None for the lock of Shardline.
        environments: Environments of training scripts by name.
        datasets: Datasets of the runs by id.
        runs: Runs by id, in the order of the table; runs of scaling studies only come last. The
            key of a second evaluation of a training is `{id}/{evaluation}`.
        scaling: Scaling studies.
        sweeps: Sweeps by id.
        outcomes: Outcomes of runs without a result; see `only_finished`.
        predicted: Files and datasets that only predictions need, by id.
        predictions: Predictions by id.
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
    sweeps: dict[str, SweepPlan] = field(default_factory=dict)
    outcomes: tuple[Mapping[str, Any], ...] = ()
    predicted: dict[str, DatasetPlan] = field(default_factory=dict)
    predictions: dict[str, PredictionPlan] = field(default_factory=dict)

    @property
    def workdir(self) -> Path:
        """The folder that relative paths start from, as an absolute path."""
        return self.layout.root

    @property
    def store(self) -> Path:
        """The root folder of bulky data, as an absolute path."""
        return self.layout.store

    @cached_property
    def lock(self) -> Lock:
        """The current pins of all packages.

        Raises:
            ConfigError: The file cannot be read, or is not a lock.
        """
        return load_lock(self.lock_file, self.named_lock)

    @cached_property
    def code(self) -> CodeIndex:
        """The index of the modules of the project."""
        return CodeIndex(import_roots(self.workdir))

    @cached_property
    def digests(self) -> FileDigests:
        """The cached digests of external files."""
        return FileDigests(self.workdir / ".snakemake" / "shardline-digests.json")

    @property
    def built(self) -> dict[str, DatasetPlan]:
        """All datasets that jobs build, by id."""
        return self.datasets | self.predicted

    @property
    def assets(self) -> list[Path]:
        """The files of registrations of datasets with Azure ML, if the config sets `register_data`."""
        return [one.asset for one in self.datasets.values() if self.azureml.register_data]

    def add_run(self, run: RunPlan) -> RunPlan:
        """Add the run of a row, or add the row to the equal run, and return the run.

        Raises:
            ConfigError: The identity of a different run has the same digest.
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

    def link_bases(self, needed: Mapping[str, Collection[str]]) -> None:
        """Set of each run which bases are outside of the project, and which of its states other runs need.

        Args:
            needed: States that rows need, also rows that are not loaded, by name or identity of their base.
        """
        if not needed:
            return
        ids = {run.id for run in self.runs.values()}
        states = defaultdict[str, set[str]](set)
        for one in (one for run in self.runs.values() for one in run.bases):
            states[one.run].add(one.state)
        for key, run in self.runs.items():
            bases = [
                replace(one, is_outside=bool(one.run) and one.run not in ids) for one in run.bases
            ]
            found = states[run.id].union(*(needed.get(name, ()) for name in run.names))
            self.runs[key] = replace(run, bases=tuple(bases), needed_states=tuple(sorted(found)))

    @property
    def outside_bases(self) -> dict[str, Base]:
        """The runs outside of the project that its runs begin from, by id."""
        every = (base for run in self.runs.values() for base in run.bases)
        return {base.run: base for base in every if base.is_outside}

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
        """The environments to build for training scripts, by address."""
        found = [run.environment for run in self.runs.values() if run.environment]
        return {one.address: one for one in found if one.has_rule}

    def part(
        self, *, runs: Collection[str] = (), datasets: Collection[str] = (), predictions: Collection[str] = ()
    ) -> "Project":  # fmt: skip
        """Return the part of the project that a job needs.

        Args:
            runs: Keys of runs; their datasets are included.
            datasets: Ids of datasets.
            predictions: Ids of predictions; their rows are included.
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
            sweeps={key: one for key, one in self.sweeps.items() if one.base in own},
            outcomes=(),
        )

    def only_finished(self, outcomes: Mapping[str, Mapping[str, object]]) -> "Project":
        """Return the project without the runs that have no result, for a report on the rest.

        Args:
            outcomes: Outcome of each run without a result, by key; see `results.outcomes`.
        """
        runs = {key: run for key, run in self.runs.items() if key not in outcomes}
        needed = {part.dataset.id for run in runs.values() for part in run.parts}
        return replace(
            self,
            runs=runs,
            datasets={key: one for key, one in self.datasets.items() if key in needed},
            outcomes=tuple(outcomes.values()),
            sweeps={key: one.until_now(self.layout) for key, one in self.sweeps.items()},
        )

    def named_runs(self) -> dict[str, RunPlan]:
        """Return the runs by name; a run with several names has several entries."""
        return {name: run for run in self.runs.values() for name in run.names}

    def key_of(self, run_id: str, evaluation_id: str | None) -> str | None:
        """Return the key of the run with these ids of training and evaluation, or None."""
        for key in (run_id, f"{run_id}/{evaluation_id}"):
            run = self.runs.get(key)
            if run and evaluation_id in (None, run.evaluation_id):
                return key
        return None

    @cached_property
    def documents(self) -> Documents:
        """The writer of identity documents."""
        return Documents(workdir=self.workdir, code=self.code, lock=self.lock)

    @cached_property
    def report_document(self) -> IdentityDocument:
        """The identity document of the report; it does not depend on the order of runs."""
        return self.documents.report(
            {
                "generated_from": self.table,
                "scaling": {study.name: asdict(study) for study in self.scaling},
                **({"sweeps": self._sweeps_of_report} if self.sweeps else {}),
                "names": self.names,
                "notes": {name: [one.text, *one.tags] for name, one in self.notes.items()},
            },
            {run.evaluation_id: run.id for run in self.runs.values()},
            self.outcomes,
        )

    @property
    def finished_studies(self) -> list[tuple[str, int]]:
        """Id and number of trials of each sweep whose trials have all ended."""
        return [
            (key, one.trials)
            for key, one in self.sweeps.items()
            if one.summary(self.layout).exists()
        ]

    @property
    def _sweeps_of_report(self) -> dict[str, list[str | int]]:
        return {
            one.name: [one.id, one.trials, *([] if one.ended is None else [one.ended])]
            for one in self.sweeps.values()
        }

    @cached_property
    def notes(self) -> dict[str, RunNote]:
        """The notes on runs, by name of the run."""
        return read_notes(self.workdir, self.named_runs())

    @property
    def names(self) -> dict[str, dict[str, list[str]]]:
        """The sorted names of runs and datasets in the report."""
        return {
            "runs": {run.evaluation_id: sorted(run.names) for run in self.runs.values()},
            "datasets": {one.id: sorted(one.names) for one in self.datasets.values()},
        }

    @cached_property
    def report(self) -> Path:
        """The path of the report on these runs."""
        return self.layout.report(short_digest(self.report_document))

    @property
    def crate(self) -> Path:
        """The RO-Crate metadata of report, runs and datasets."""
        return self.report.with_name("ro-crate-metadata.json")

    @property
    def measured(self) -> dict[str, int]:
        """The maximum number of devices of each run in scaling studies, by id."""
        most: dict[str, int] = {}
        for study in self.scaling:
            devices = max(size.devices for size in study.sizes)
            for size in study.sizes:
                most[size.run] = max(devices, most.get(size.run, 0))
        return most

    @property
    def environment(self) -> Path | None:
        """The file that describes the environment of the ranks; None for that of the job."""
        known = {"conda": self.layout.environment("train"), "image": self.layout.image}
        return known.get(self.runtime.environment)

    @property
    def envs(self) -> Path:
        """The folder of the conda environment files."""
        folder = self.conda.folder
        return self.workdir / folder if isinstance(folder, str) else workflow_folder() / "envs"

    def manifests_of_report(self, exists: Callable[[Path], bool] = Path.exists) -> list[Path]:
        """Return the manifests of datasets that the report needs for its lineage.

        The lineage must not cause a dataset to be built again that no run needs.

        Args:
            exists: Function that returns whether a declared file exists; default: on this disk.
        """
        unfinished = (run for run in self.runs.values() if not exists(run.evaluation))
        needed = {part.dataset.id for run in unfinished for part in run.parts}
        return [
            dataset.manifest
            for dataset in self.datasets.values()
            if dataset.id in needed or exists(dataset.manifest)
        ]

    def provenances_of_report(self, exists: Callable[[Path], bool] = Path.exists) -> list[Path]:
        """Return the provenance files of these datasets."""
        return [path.with_name("provenance.json") for path in self.manifests_of_report(exists)]

    def check_store_stays(self) -> None:
        """Reject a store in the working folder of a job, if its machine shares no disk with others.

        Raises:
            ConfigError: The store is in that folder, and not a mount.
        """
        store = self.store
        while not store.exists():
            store = store.parent
        on_same_disk = store.stat().st_dev == self.workdir.stat().st_dev
        if on_same_disk and store.resolve().is_relative_to(self.workdir):
            raise ConfigError(
                f"runtime.store={self.layout.named_store} is in the folder of this job only ({self.workdir}), "
                "expected a mount that all jobs share; set SHARDLINE_STORE on their machines to the mount point"
            )

    def check_devices(self, exists: Callable[[Path], bool] = Path.exists) -> None:
        """Reject runs that do not fit this machine, for profiles with local jobs.

        Args:
            exists: Function that returns whether a declared file exists; default: on this disk.
        """
        for run in self.runs.values():
            if not exists(run.model):
                checks.check_devices(run.settings, self.runtime, run.row.where)


def locate(project: Project, settings: Plain, where: str) -> Located:
    """Return the files of the source of a dataset, see `checked_sources.locate`.

    Args:
        settings: Entry of the dataset in the config.
        where: Start of messages.
    """
    return checked_sources.locate(
        settings, project.workdir, project.layout.downloads, project.digests, where
    )


def document_of_dataset(
    project: Project, settings: Plain, source_class: str, found: Located
) -> IdentityDocument:
    """Return the identity document of a dataset of the config.

    Args:
        settings: Entry in the config, with the number of shards.
        found: Files of the source.
    """
    counted = {**settings, "source": found.counted}
    return project.documents.dataset(counted, source_class, found.content)


def document_of_run(
    project: Project, settings: RunSettings, paths: Mapping[str, str], weights: Mapping[str, str],
    environment: ScriptEnvironment | None, where: str, bases: Sequence[Base] = (),
) -> IdentityDocument:  # fmt: skip
    """Return the identity document of a training.

    Args:
        paths: Import paths of the code, see `RunPlan.code_paths`.
        weights: Weight of each dataset by id.
        environment: Environment of the script, if it has its own.
        where: File and row, the start of messages.
        bases: Bases of the run.
    """
    files = files_that_count(paths["model"], settings, project.layout, where)
    return project.documents.training(
        as_plain(settings),
        paths,
        weights,
        project.digests.digest_all(files, workdir=project.workdir),
        environment.counted if environment else None,
        [one.counted for one in bases],
    )


def titles_of(project: Project) -> dict[str, str]:
    """Return the current names of runs and datasets with their ids, by id: `wide (1f0c4c8e2d3b)`."""
    names: Names = {}
    every: list[DatasetPlan | RunPlan] = [*project.built.values(), *project.runs.values()]
    for one in every:
        names.setdefault(one.id, []).extend(one.names)
    return {identity: f"{', '.join(known)} ({identity})" for identity, known in names.items()}


def record_names(project: Project) -> None:
    """Append the changed names of runs and datasets to the history of names.

    Raises:
        DataError: The history cannot be written.
    """
    add_names(project.layout, _new_names(project))


def _new_names(project: Project) -> Iterator[tuple[NamedKind, str, str]]:
    """Yield each name with a new identity, and each identity with a name that became current again."""
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

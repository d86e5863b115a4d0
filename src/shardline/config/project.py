"""The whole of what a config asks for: datasets and runs with identities and paths."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from shardline.config import checks
from shardline.config.documents import Documents
from shardline.config.layout import ResultsLayout
from shardline.config.plans import DatasetPlan, PredictionPlan, RunPlan
from shardline.config.script_environment import ScriptEnvironment, load_environment
from shardline.config.settings.config import IdentitySettings
from shardline.config.settings.run_settings import Environment
from shardline.config.settings.runtime import AzureML, Conda, Image, Runtime
from shardline.config.studies import Study
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
        """Return an environment of a training script, see `script_environment.load_environment`."""
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

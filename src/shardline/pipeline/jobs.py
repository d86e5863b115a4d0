"""Input functions, parameters, threads and resources of the rules.

Snakemake compares the results of params functions with those of an earlier job, unless the function takes
`output`. The functions of titles and plans take `output`, so that they never make results stale.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from shardline.config.job_plan import GivenPlan
from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project, titles_of
from shardline.config.scripts import is_script
from shardline.environments.specs import existing_pin_file
from shardline.identity.class_kind import PYTHON_DATA
from shardline.launch.request import (
    REQUESTED,
    evaluation_requested,
    prediction_requested,
    requested,
    threads_of,
)
from shardline.pipeline.full_machine import Need, this_machine
from shardline.pipeline.hooks import workflow_errors
from shardline.pipeline.snakemake_speedups import keep_signatures, with_signature
from shardline.pipeline.storage import Storage, logs_of
from shardline.results.outcomes import has_failed
from shardline.results.sweeps.earlier import all_notes
from shardline.results.waiting import shorter_runs

Asked = Mapping[str, Mapping[str, int | str]]  # resources by run


class Jobs:
    """The input functions, parameters, threads and resources of a project's jobs.

    Args:
        storage: storage of the declared files; None for this disk.
        is_main: whether this is the user's own process, and not a job's process.
        cores: Snakemake's cores on this machine; None if jobs run elsewhere.
        is_here: whether all jobs run on this machine.
        gpus: `--resources gpus=N`; None if not given.
    """

    def __init__(
        self, project: Project, storage: Storage | None, *, is_main: bool, cores: int | None,
        is_here: bool = True, gpus: int | None = None,
    ) -> None:  # fmt: skip
        self.project, self.storage = project, storage
        self.declared = project.layout.name_of
        paths = project.layout.declared
        # the store's path differs between machines, so a storage has another path for parts
        self.parts = str(paths.folder_of("dataset") if storage else paths.all_shards)
        self.exists = storage.exists if storage else Path.exists
        self._is_main, self._cores = is_main, cores
        self._titles, self._measured = titles_of(project), project.measured
        runs, runtime = project.runs.items(), project.runtime
        # if a run's own ranks evaluate or predict, that job requests the same resources as the run
        here = [run.settings for _, run in runs] if is_main else []
        self.machine = this_machine(cores if is_main and is_here else None, here, counted=gpus)
        self._asked = {key: self._here(key, requested(run.settings, runtime)) for key, run in runs}
        self._evaluated = {
            key: self._here(key, evaluation_requested(run, runtime)) for key, run in runs
        }
        self._predicted = {
            one.spec.run: self._here(one.spec.run, prediction_requested(one, runtime))
            for one in project.predictions.values()
        }
        self.training = _resources(self._asked)
        self.evaluating = _resources(self._evaluated)
        self.predicting = _resources(self._predicted)
        keep_signatures(self)

    def _here(self, key: str, asked: dict[str, int | str]) -> dict[str, int | str]:
        """Return resources of a job, with the GPUs that Snakemake counts on this machine."""
        gpus = self._need(key).gpus if self.machine and asked else 0
        return {**asked, "gpus": gpus} if gpus else asked

    def _need(self, key: str) -> Need:
        assert self.machine
        run, is_alone = self.project.runs[key], key in self._measured
        return self.machine.need(run.settings, self.project.runtime, is_alone=is_alone)

    def offer_devices(self, workflow: Any) -> None:
        """Make Snakemake and its jobs divide this machine's devices among runs that are not sealed, and trials."""
        if self.machine:
            new = [key for key, run in self.project.runs.items() if not self.exists(run.model)]
            for plan in self.project.sweeps.values():
                if not self.exists(plan.summary(self.project.layout)):
                    new += [plan.base] * plan.at_once
            self.machine.offer(workflow, [self._need(key) for key in new])

    def plan_of_machine(self, jobs: Iterable[Any]) -> str:
        """Return how many of these jobs' trainings run at a time on this machine, and which trials may wait."""
        todo = list(jobs)
        runs = [job.wildcards.run for job in todo if job.rule.name in ("train", "train_again")]
        trials = Counter(job.wildcards.study for job in todo if job.rule.name == "train_trial")
        sweeps = [self.project.sweeps[study] for study in trials]
        notes = [note for plan in sweeps for note in all_notes(self.project, plan)]
        if not self.machine:
            return "\n".join(notes)
        needs, at_once = ([self._need(name) for name in runs] for _ in range(2))
        for study, number in trials.items():
            plan = self.project.sweeps[study]
            needs += [self._need(plan.base)] * number
            at_once += [self._need(plan.base)] * min(number, plan.at_once)
        own = self.machine.plan(needs, at_once) if needs else ""
        return "\n".join(filter(None, [own, *notes]))

    # --- inputs ---------------------------------------------------------------------------------

    def of_all(self, files: Iterable[Path]) -> list[str]:
        """Return files as Snakemake declares them."""
        return [*map(self.declared, files)]

    def files_of_runs(self, name: str) -> list[str]:
        """Return the path of a file of every run."""
        return self.of_all(run.folder / name for run in self.project.runs.values())

    def _unless_sealed(self, output: Path, inputs: Any) -> Any:
        """Return a job's inputs; none if the job's sealed output exists.

        With `ancient()`, Snakemake would run the job again, and delete its output, whenever an input has to
        be made again. A job that is forced to run needs its inputs from the storage.
        """
        is_forced = self.storage and not self._is_main
        return inputs if is_forced or not self.exists(output) else []

    def share(self, cache: Any) -> None:
        """Tell Snakemake in one step which files the storage has; Snakemake queries each file otherwise."""
        if self.storage and self._is_main:
            files = [*map(Path, self._files_of_builds()), *logs_of(self.project)]
            self.storage.share(cache, files)

    def parts_of_dataset(self, wildcards: Any) -> Any:
        """Return the part descriptions that a manifest is made from."""
        dataset = self.project.built[wildcards.dataset]
        return self._unless_sealed(dataset.manifest, self._lists_of_parts(dataset))

    def plan_of_splits(self, wildcards: Any) -> Any:
        """Return the plan of a dataset's splits, if they need one."""
        dataset = self.project.built[wildcards.dataset]
        return self._unless_sealed(dataset.manifest, self._plan(dataset))

    def _files_of_builds(self) -> Iterator[str]:
        for one in self.project.built.values():
            yield from (*self._lists_of_parts(one), *self._prepared(one), *self._plan(one))

    def _plan(self, dataset: DatasetPlan) -> list[str]:
        return [f"{self.parts}/{dataset.id}/splits.json"] if dataset.has_plan else []

    def _lists_of_parts(self, dataset: DatasetPlan) -> list[str]:
        return [f"{self.parts}/{dataset.id}/parts/{part}.json" for part in dataset.parts]

    def prepared_of_dataset(self, wildcards: Any) -> Any:
        """Return the file that `prepare_data` of a dataset's data module writes."""
        dataset = self.project.built[wildcards.dataset]
        return self._unless_sealed(dataset.manifest, self._prepared(dataset))

    def _prepared(self, dataset: DatasetPlan) -> list[str]:
        return [f"{self.parts}/{dataset.id}/prepared.json"] if dataset.prepared else []

    def script_environments_of_dataset(self, wildcards: Any) -> Any:
        """Return the environment files of the scripts that will train on a dataset."""
        dataset = self.project.built[wildcards.dataset]
        files = dict.fromkeys(
            self.declared(run.environment_file)
            for run in self.project.runs.values()
            if run.environment_file
            and not self.exists(run.model)
            and any(part.dataset.id == dataset.id for part in run.parts)
        )
        return self._unless_sealed(dataset.manifest, [*files])

    def manifest_read_as(self, wildcards: Any) -> Any:
        """Return the manifest of the dataset whose source reads the files to predict."""
        dataset = self.project.built[wildcards.dataset]
        model = dataset.read_as
        return self._unless_sealed(dataset.manifest, self.declared(model.manifest)) if model else []

    def manifest_of_asset(self, wildcards: Any) -> Any:
        """Return the manifest of a dataset to register."""
        dataset = self.project.datasets[wildcards.dataset]
        return self._unless_sealed(dataset.asset, self.declared(dataset.manifest))

    def report(self, wildcards: Any) -> str:
        """Return the report over all runs."""
        return self.declared(self.project.report)

    def manifests_of_report(self, wildcards: Any) -> list[str]:
        """Return the dataset manifests for the report's lineage."""
        return self.of_all(self.project.manifests_of_report(self.exists))

    def provenances_of_report(self, wildcards: Any) -> list[str]:
        """Return the dataset provenances for the report."""
        return self.of_all(self.project.provenances_of_report(self.exists))

    def of_job(self, find: Callable[[Any], Iterable[Path | None]]) -> Any:
        """Return an input function for files that a training, an evaluation or a prediction reads.

        Args:
            find: function that returns the files of a run or a prediction.
        """

        def ask(wildcards: Any) -> Any:
            if key := wildcards.get("prediction"):
                prediction = self.project.predictions[key]
                output, files = prediction.file, find(prediction)
            else:
                run = self._run(wildcards)
                output = run.evaluation if wildcards.get("evaluation") else run.model
                files = find(run)
            names = self.of_all(filter(None, files))
            return self._unless_sealed(output, names[0] if len(names) == 1 else names)

        return with_signature(ask)

    def shorter_of_run(self, wildcards: Any) -> Any:
        """Return the model of the shorter run that a training waits for, to continue it."""
        shorter = self._shorter.get(str(wildcards.run))
        run = self.project.runs[wildcards.run]
        return self._unless_sealed(run.model, self.declared(shorter.model)) if shorter else []

    @cached_property
    def _shorter(self) -> dict[str, RunPlan]:
        def is_made(run: RunPlan) -> bool:
            # of a shorter run that failed, the longer one continues what is saved
            return self.exists(run.model) or has_failed(run)

        return shorter_runs(self.project, is_made)

    def _run(self, wildcards: Any) -> RunPlan:
        return self.project.runs[self._key(wildcards)]

    def _key(self, wildcards: Any) -> str:
        run = str(wildcards.run)
        return self.project.key_of(run, wildcards.get("evaluation")) or run

    def pins_of_env(self, wildcards: Any) -> str:
        """Return the pin file of a stage's conda environment."""
        with workflow_errors():
            return str(existing_pin_file(self.project, wildcards.env))

    def lock_of_environment(self, wildcards: Any) -> Any:
        """Return the lock of a script's environment; empty for an image, which has no lock."""
        file = self.project.built_environments[wildcards.environment].file
        return str(file) if file else []

    # --- parameters -----------------------------------------------------------------------------

    def title(self, wildcards: Any, output: Any) -> str:
        """Return the title of a job for messages, by its first wildcard: a run or a dataset."""
        return self._titles.get(str(wildcards[0]), str(wildcards[0]))

    def title_of_environment(self, wildcards: Any, output: Any) -> str:
        """Return the names of the runs that use an environment."""
        return ", ".join(run.name for run in self._runs_in(wildcards.environment).values())

    def title_of_prediction(self, wildcards: Any, output: Any) -> str:
        """Return the title of a prediction for messages."""
        return self.project.predictions[wildcards.prediction].title

    def plan(self, wildcards: Any, output: Any) -> GivenPlan:
        """Return the part of the project that a job needs, see `job_plan.GivenPlan`."""
        part: dict[str, Collection[str]] = {}
        for kind in ("prediction", "dataset"):
            if identity := wildcards.get(kind):
                part[f"{kind}s"] = [identity]
        if wildcards.get("run"):
            part["runs"] = [self._key(wildcards)]
        elif address := wildcards.get("environment"):
            part["runs"] = self._runs_in(address)
        return GivenPlan(self.project.part(**part))

    def _runs_in(self, address: str) -> dict[str, RunPlan]:
        return {
            key: run
            for key, run in self.project.runs.items()
            if run.environment and run.environment.address == address
        }

    def labels(self, file: str) -> Callable[[Any], dict[str, str]]:
        """Return a function for a run's labels in Snakemake's own report."""
        return lambda wildcards: {"run": self._titles[wildcards.run], "file": file}

    # --- threads and resources ------------------------------------------------------------------

    def threads(self, wildcards: Any) -> int:
        """Return the threads of the job that trains a run."""
        return threads_of(
            self.project.runs[wildcards.run].settings,
            self.project.runtime,
            cores=self._cores,
            is_alone=wildcards.run in self._measured,
        )

    def threads_of_building(self, wildcards: Any) -> int:
        """Return the threads of a job that writes shards: the processes that read a torch dataset."""
        dataset = self.project.built[wildcards.dataset]
        if dataset.python is None:
            return 1
        most = self._cores if dataset.kind in PYTHON_DATA else 1
        return max(1, int(dataset.source.get("workers", most or 1)))

    def threads_of_evaluation(self, wildcards: Any) -> int:
        """Return the threads of the job that evaluates a run."""
        return self._on_ranks(wildcards) if self._evaluated[wildcards.run] else 1

    def threads_of_prediction(self, wildcards: Any) -> int:
        """Return the threads of a prediction's job."""
        return self._on_ranks(wildcards) if self._predicted[wildcards.run] else 1

    def _on_ranks(self, wildcards: Any) -> int:
        settings = self._run(wildcards).settings
        return threads_of(settings, self.project.runtime, cores=self._cores, is_alone=False)


def _resources(asked: Asked) -> dict[str, object]:
    """Return the scheduler's resources of a run's job, by name; None leaves a resource unset.

    Snakemake calls functions for each job, so a value that all runs share is no function.
    """
    return {name: _resource(name, asked) for name in REQUESTED}


def _resource(name: str, asked: Asked) -> Any:
    values = {one.get(name) for one in asked.values()}
    if len(values) <= 1:
        return values.pop() if values else None
    return with_signature(lambda wildcards: asked[wildcards.run].get(name))


def has_scripts(project: Project) -> bool:
    """Return whether any run is a training script."""
    return any(is_script(run.model_class) for run in project.runs.values())


def trained_runs(project: Project) -> str:
    """Return a pattern of the ids of runs that jobs train, without bases outside of the config."""
    outside = "|".join(sorted(project.outside_bases))
    return (f"(?!{outside})" if outside else "") + "[0-9a-f]{12}"

from collections import defaultdict
from itertools import chain
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.settings.types import DeploymentMethod, SharedFSUsage

from shardline.pipeline import snakemake_speedups
from shardline.config.scripts import is_script
from shardline.environments.container import container_of
from shardline.environments.context import image_sources
from shardline.environments.specs import STAGES, existing_pin_file, tell_post_deploy
from shardline.core.errors import ShardlineError
from shardline.launch.request import (
    REQUESTED,
    evaluation_requested,
    prediction_requested,
    requested,
    threads_of,
)
from shardline.config.names import titles_of
from shardline.pipeline.hooks import check_one_owner, open_project, settle
from shardline.pipeline.storage import Storage, logs_of
from shardline.pipeline.terminal import finished

snakemake_speedups.begin()

# Set by --default-storage-provider: declared files are there, and jobs get local copies.
PROVIDER = workflow.storage_registry.default_storage_provider
STORAGE = PROVIDER and Storage(
    PROVIDER, workflow.storage_settings.default_storage_prefix, Path.cwd()
)
exists = STORAGE.exists if STORAGE else Path.exists

IS_MAKING = workflow.is_main_process and not workflow.output_settings.dryrun
tell_post_deploy()
try:
    PROJECT = open_project(
        config,
        STORAGE,
        is_main=workflow.is_main_process,
        is_making=IS_MAKING,
        # the executor is not known yet, but only a cluster's has a number of jobs
        is_remote=workflow.resource_settings.nodes is not None,
        has_no_shared_disk=workflow.remote_exec
        and SharedFSUsage.INPUT_OUTPUT not in workflow.storage_settings.shared_fs_usage,
    )
    if IS_MAKING and PROJECT.identity.environment != "exact":
        # most starts do not need it
        from shardline.results.accept.unasked import accept_unasked

        accept_unasked(PROJECT)
    methods = workflow.deployment_settings.deployment_method
    # what jobs run in, but those whose ranks have an environment of their own
    CONTAINER = container_of(PROJECT) if DeploymentMethod.APPTAINER in methods else None
except ShardlineError as error:
    raise WorkflowError(str(error)) from None

# Declared files are named from the project's folder.
PATHS, declared = PROJECT.layout.declared, PROJECT.layout.name_of
# Where the store is differs between machines, so a storage has the lists of parts elsewhere.
PARTS = PATHS.folder_of("dataset") if STORAGE else PATHS.all_shards
ASSETS = [
    declared(dataset.asset)
    for dataset in PROJECT.datasets.values()
    if PROJECT.azureml.register_data
]
# The file that names the ranks' environment, where they have one of their own.
ENVIRONMENT = declared(PROJECT.environment) if PROJECT.environment else []
SCRIPT_ENVIRONMENTS = PROJECT.built_environments
HAS_SCRIPTS = any(is_script(run.model_class) for run in PROJECT.runs.values())
# What the table at the end leaves out.
DONE_BEFORE = finished(PROJECT, exists) if IS_MAKING else frozenset()
EVALUATIONS = [declared(run.evaluation) for run in PROJECT.runs.values()]
PREDICTIONS = [declared(one.file) for one in PROJECT.predictions.values()]
TITLES = titles_of(PROJECT)
ROWS = defaultdict(list)
for run in PROJECT.runs.values():
    ROWS[run.id].extend(run.names)
MEASURED = [PROJECT.runs[run] for run in PROJECT.measured]


wildcard_constraints:
    run=r"[0-9a-f]{12}",
    dataset=r"[0-9a-f]{12}",
    part=r"\d{5}\d*-\d{5}\d*",
    env="|".join(STAGES),
    environment=r"[0-9a-f]{12}",
    evaluation=r"[0-9a-f]{12}",
    prediction=r"[0-9a-f]{12}",
    report=r"[0-9a-f]{12}",
    steps=r"[1-9]\d*",
    number=r"[1-9]\d*",


# Jobs are started with --no-hooks, so that this is the main process's alone.
def check_first():
    from shardline.results.check.all import check_before_building

    jobs = workflow.dag.needrun_jobs()
    outputs = {str(file) for job in jobs for file in job.output}
    is_elsewhere = bool(
        {DeploymentMethod.APPTAINER, DeploymentMethod.CONDA} & {*methods}
    )
    try:
        check_before_building(PROJECT, outputs, logger, is_elsewhere=is_elsewhere)
    except ShardlineError as error:
        raise WorkflowError(str(error)) from None


def files_of_runs(name):
    return [declared(run.folder / name) for run in PROJECT.runs.values()]


# Snakemake asks `rule all` for its inputs first, and then a storage for each file.
def models_of_all(wildcards):
    if STORAGE and workflow.is_main_process:
        parts = chain.from_iterable(map(lists_of_parts, PROJECT.built.values()))
        STORAGE.share(workflow.iocache, [*map(Path, parts), *logs_of(PROJECT)])
    return files_of_runs("model.safetensors")


# A job whose sealed output is there asks for nothing: ancient() alone would make
# it again, and delete that output, when an input of it has to be made again.
# A job that runs all the same, since it was forced, needs its inputs out of the storage.
def unless_sealed(output, inputs):
    is_forced = STORAGE and not workflow.is_main_process
    return inputs if is_forced or not exists(output) else []


def parts_of_dataset(wildcards):
    dataset = PROJECT.built[wildcards.dataset]
    return unless_sealed(dataset.manifest, lists_of_parts(dataset))


def script_environments_of_dataset(wildcards):
    dataset = PROJECT.built[wildcards.dataset]
    files = {
        declared(run.environment_file): None
        for run in PROJECT.runs.values()
        if run.environment_file
        and not exists(run.model)
        and any(part.dataset.id == dataset.id for part in run.parts)
    }
    return unless_sealed(dataset.manifest, list(files))


# The dataset by whose source files are read that a prediction is about.
def manifest_read_as(wildcards):
    dataset = PROJECT.built[wildcards.dataset]
    model = dataset.read_as
    return unless_sealed(dataset.manifest, declared(model.manifest)) if model else []


def manifest_of_asset(wildcards):
    dataset = PROJECT.datasets[wildcards.dataset]
    return unless_sealed(dataset.asset, declared(dataset.manifest))


def lists_of_parts(dataset):
    folder = f"{PARTS}/{dataset.id}/parts"
    return [f"{folder}/{part}.json" for part in dataset.parts]


def manifests_of_report(wildcards):
    return list(map(declared, PROJECT.manifests_of_report(exists)))


def provenances_of_report(wildcards):
    return list(map(declared, PROJECT.provenances_of_report(exists)))


# What a training or an evaluation reads.
def file_of_run(find):
    def ask(wildcards):
        # one training may have several evaluations, each of which is a run of its own
        evaluation = dict(wildcards.items()).get("evaluation")
        run = (
            PROJECT.evaluated(wildcards.run, evaluation) or PROJECT.runs[wildcards.run]
        )
        found = find(run)
        files = found if isinstance(found, list) else [found]
        output = run.evaluation if evaluation else run.model
        names = [declared(file) for file in files if file]
        return unless_sealed(output, names[0] if len(names) == 1 else names)

    return ask


spec_of_run = file_of_run(lambda run: run.folder / "run.json")
manifest_of_run = file_of_run(lambda run: [part.dataset.manifest for part in run.parts])
model_of_run = file_of_run(lambda run: run.model)
environment_of_run = file_of_run(lambda run: PROJECT.environment)
script_environment_of_run = file_of_run(lambda run: run.environment_file)
# A script has written its figures there.
provenance_of_run = file_of_run(
    lambda run: is_script(run.model_class) and run.folder / "provenance.json"
)


# What a prediction reads.
def file_of_prediction(find):
    def ask(wildcards):
        one = PROJECT.predictions[wildcards.prediction]
        return unless_sealed(one.file, find(one))

    return ask


model_of_prediction = file_of_prediction(
    lambda one: declared(PROJECT.runs[one.spec.run].model)
)
manifests_of_prediction = file_of_prediction(
    lambda one: [declared(PROJECT.built[key].manifest) for key in one.trained_on]
)
rows_of_prediction = file_of_prediction(lambda one: declared(one.rows.manifest))
record_of_prediction = file_of_prediction(
    lambda one: declared(one.record.with_suffix(".parts.json"))
)


def pins_of_env(wildcards):
    try:
        return str(existing_pin_file(PROJECT, wildcards.env))
    except ShardlineError as error:
        raise WorkflowError(str(error)) from None


# Names for messages, by the first wildcard, which is a run or a dataset. What a function of `output`
# returns is no parameter that Snakemake compares with an earlier run's, and another name must make
# nothing stale.
def title_of_job(wildcards, output):
    return TITLES.get(wildcards[0], wildcards[0])


def title_of_environment(wildcards, output):
    runs = (run for run in PROJECT.runs.values() if run.environment)
    return ", ".join(
        run.name for run in runs if run.environment.address == wildcards.environment
    )


def lock_of_environment(wildcards):
    file = SCRIPT_ENVIRONMENTS[wildcards.environment].file
    return str(file) if file else []  # an image has none


def title_of_prediction(wildcards, output):
    return PROJECT.predictions[wildcards.prediction].title


def rows_of_run(wildcards):
    """Return the rows that a job needs of the table; None of what a scaling study has, where it needs all."""
    return None if wildcards.run in PROJECT.measured else ROWS[wildcards.run]


def labels_of(file):
    return lambda wildcards: {"run": TITLES[wildcards.run], "file": file}


def threads_of_run(wildcards):
    return threads_of(
        PROJECT.runs[wildcards.run].settings,
        PROJECT.runtime,
        cores=workflow.resource_settings.cores,
        is_alone=wildcards.run in PROJECT.measured,
    )


# What a scheduler gives to a run's job; None leaves a resource unset. A function is called for
# each job, so what is the same for all runs is no function.
def resource_of_run(name, all_asked):
    values = {asked.get(name) for asked in all_asked.values()}
    if len(values) == 1:
        return values.pop()
    return lambda wildcards: all_asked[wildcards.run].get(name)


ASKED = {
    key: requested(run.settings, PROJECT.runtime) for key, run in PROJECT.runs.items()
}
RANKS = {name: resource_of_run(name, ASKED) for name in REQUESTED}
# An evaluation asks for what its run asked, where the run's own ranks evaluate.
EVALUATED = {
    key: evaluation_requested(run, PROJECT.runtime) for key, run in PROJECT.runs.items()
}
EVALUATING = {name: resource_of_run(name, EVALUATED) for name in REQUESTED}


def threads_of_evaluation(wildcards):
    run = PROJECT.runs[wildcards.run]
    return run.settings.devices if EVALUATED[wildcards.run] else 1


PREDICTED = {
    one.spec.run: prediction_requested(one, PROJECT.runtime)
    for one in PROJECT.predictions.values()
}
PREDICTING = {name: resource_of_run(name, PREDICTED or {"": {}}) for name in REQUESTED}


def threads_of_prediction(wildcards):
    run = PROJECT.runs[wildcards.run]
    return run.settings.devices if PREDICTED[wildcards.run] else 1


snakemake_speedups.keep_signatures(
    [
        *globals().values(),
        *RANKS.values(),
        *EVALUATING.values(),
        *PREDICTING.values(),
    ],
    globals(),
)

from pathlib import Path

from snakemake.settings.types import DeploymentMethod, SharedFSUsage

from shardline.pipeline import snakemake_speedups
from shardline.config.scripts import is_script
from shardline.environments.container import container_of
from shardline.environments.context import image_sources
from shardline.environments.specs import STAGES, tell_post_deploy
from shardline.core.errors import ShardlineError
from shardline.launch.request import (
    REQUESTED,
    evaluation_requested,
    prediction_requested,
    requested,
    threads_of,
)
from shardline.config.project import titles_of
from shardline.pipeline.cold_ranks import forget_cold, tell_cold
from shardline.pipeline.hooks import check_one_owner, open_project, settle
from shardline.pipeline.storage import Storage, logs_of
from shardline.pipeline.hooks import check_jobs, workflow_errors
from shardline.pipeline.jobs import Jobs, has_scripts, trained_runs
from shardline.pipeline.storage import storage_of
from shardline.pipeline.sweep_inputs import SweepJobs
from shardline.pipeline.terminal_rows import finished
from shardline.results.waiting import differ_in_length

snakemake_speedups.begin()

# Set by --default-storage-provider: declared files are there, and jobs get local copies.
STORAGE = storage_of(workflow)
IS_MAKING = workflow.is_main_process and not workflow.output_settings.dryrun
METHODS = workflow.deployment_settings.deployment_method
tell_post_deploy()
with workflow_errors():
    PROJECT = open_project(
        config,
        STORAGE,
        is_main=workflow.is_main_process,
        is_making=IS_MAKING,
        # the executor is not known yet, but only executors of clusters have a number of jobs
        is_remote=workflow.resource_settings.nodes is not None,
        has_no_shared_disk=workflow.remote_exec
        and SharedFSUsage.INPUT_OUTPUT not in workflow.storage_settings.shared_fs_usage,
    )
    # the image of the jobs, except of jobs whose ranks have their own environment
    CONTAINER = container_of(PROJECT) if DeploymentMethod.APPTAINER in METHODS else None

GPUS = workflow.global_resources.get("gpus")  # --resources gpus=N
with workflow_errors():
    JOBS = Jobs(
        PROJECT,
        STORAGE,
        is_main=workflow.is_main_process,
        cores=workflow.resource_settings.cores,
        is_here=workflow.resource_settings.nodes is None,
        gpus=GPUS.value if GPUS else None,
    )
    SWEEPS = SweepJobs(JOBS, is_main=workflow.is_main_process)
JOBS.offer_devices(workflow)
# Declared files are named from the project's folder.
declared, PARTS = JOBS.declared, JOBS.parts
EVALUATIONS = JOBS.of_all(run.evaluation for run in PROJECT.runs.values())
PREDICTIONS = JOBS.of_all(one.file for one in PROJECT.predictions.values())
ASSETS = JOBS.of_all(PROJECT.assets)
MEASURED = [PROJECT.runs[run] for run in PROJECT.measured]
# The record of the ranks' environment, if they have their own.
ENVIRONMENT = declared(PROJECT.environment) if PROJECT.environment else []
SCRIPT_ENVIRONMENTS = PROJECT.built_environments
HAS_SCRIPTS = has_scripts(PROJECT)
# Each input function costs time for each job, so rules have those that some run needs.
HAS_BASES = any(run.bases for run in PROJECT.runs.values())
HAS_CHAINS = differ_in_length(PROJECT)
# The final table leaves out these runs.
DONE_BEFORE = finished(PROJECT, JOBS.exists) if IS_MAKING else frozenset()


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
    setting="lr|batch",
    study=r"[0-9a-f]{12}",
    trial=r"(r[1-9]\d*-)?\d+",  # or a promotion to a rung
    repeat=r"\d+",


def manifests_of(run):
    return [part.dataset.manifest for part in run.parts]


def bases_of(run):
    return [base.path for base in run.bases if base.is_made]


def script_environment_of(run):
    return [run.environment_file]


spec_of_run = JOBS.of_job(lambda run: [run.folder / "run.json"])
manifest_of_run = JOBS.of_job(manifests_of)
bases_of_run = JOBS.of_job(bases_of)
members_of_ensemble = JOBS.of_job(lambda run: run.members_of_ensemble)
members_of_prediction = JOBS.of_job(
    lambda one: PROJECT.runs[one.spec.run].members_of_ensemble
)
TRAINED = trained_runs(PROJECT)
model_of_run = JOBS.of_job(lambda run: [run.model])
environment_of_run = JOBS.of_job(lambda run: [PROJECT.environment])
script_environment_of_run = JOBS.of_job(script_environment_of)
# A script's evaluation is in its provenance.
provenance_of_run = JOBS.of_job(
    lambda run: [run.folder / "provenance.json"] if is_script(run.model_class) else []
)
model_of_prediction = JOBS.of_job(lambda one: [PROJECT.runs[one.spec.run].model])
manifests_of_prediction = JOBS.of_job(
    lambda one: [PROJECT.built[key].manifest for key in one.trained_on]
)
rows_of_prediction = JOBS.of_job(lambda one: [one.rows.manifest])
record_of_prediction = JOBS.of_job(lambda one: one.read)


# `rule all` evaluates this input first, so the storage is queried before Snakemake asks for each file.
def models_of_all(wildcards):
    JOBS.share(workflow.iocache)
    return JOBS.files_of_runs("model.safetensors")

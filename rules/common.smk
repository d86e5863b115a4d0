from pathlib import Path

from snakemake.exceptions import WorkflowError

from shardline.config import load_project
from shardline.errors import ShardlineError
from shardline.files import check_writable
from shardline.jobs import publish
from shardline.launch.request import REQUESTED, requested
from shardline.launch.slurm_status import stand_before_sacct

try:
    PROJECT = load_project(config)
    # the executor is not known yet, but only a cluster's has a number of jobs
    if workflow.is_main_process and workflow.resource_settings.nodes is None:
        PROJECT.check_devices()
    elif workflow.is_main_process:
        stand_before_sacct(Path(workflow.basedir) / "profiles" / "slurm" / "bin")
    is_making = workflow.is_main_process and not workflow.output_settings.dryrun
    if is_making and not all(run.is_sealed for run in PROJECT.runs.values()):
        check_writable(PROJECT.store)
except ShardlineError as error:
    raise WorkflowError(str(error)) from None

# Going back to earlier settings runs nothing, so no job would move the links.
if is_making:
    publish(PROJECT)

STORE = str(PROJECT.store)
EVALUATIONS = [str(run.evaluation) for run in PROJECT.runs.values()]


wildcard_constraints:
    run=r"[^/]+-[0-9a-f]{12}",
    dataset=r"[^/]+-[0-9a-f]{12}",
    part=r"\d{5}-\d{5}",
    evaluation=r"[0-9a-f]{12}",
    report=r"[0-9a-f]{12}",


def files_of_runs(name):
    return [str(run.folder / name) for run in PROJECT.runs.values()]


# A job whose sealed output is there asks for nothing: ancient() alone would make
# it again, and delete that output, when an input of it has to be made anew.
def unless_sealed(output, inputs):
    return [] if Path(output).exists() else inputs


def parts_of_dataset(wildcards):
    dataset = PROJECT.datasets[wildcards.dataset]
    folder = f"{STORE}/datasets/{dataset.id}/parts"
    return unless_sealed(
        dataset.manifest, [f"{folder}/{part}.json" for part in dataset.parts]
    )


def spec_of_run(wildcards):
    run = PROJECT.runs[wildcards.run]
    return unless_sealed(sealed_by(run, wildcards), str(run.folder / "run.json"))


def manifest_of_run(wildcards):
    run = PROJECT.runs[wildcards.run]
    return unless_sealed(sealed_by(run, wildcards), str(run.dataset.manifest))


def model_of_run(wildcards):
    run = PROJECT.runs[wildcards.run]
    return unless_sealed(run.evaluation, str(run.folder / "model.safetensors"))


def sealed_by(run, wildcards):
    is_evaluation = "evaluation" in wildcards.keys()
    return run.evaluation if is_evaluation else run.folder / "model.safetensors"


def threads_of_run(wildcards):
    devices = PROJECT.runs[wildcards.run].settings["devices"]
    per_rank = PROJECT.runtime["threads_per_rank"]
    return devices * per_rank if per_rank else max(devices, workflow.cores or 1)


# What a scheduler gives to a run's job; None leaves a resource unset.
def resource_of_run(name):
    def evaluate(wildcards):
        settings = PROJECT.runs[wildcards.run].settings
        return requested(settings, PROJECT.runtime).get(name)

    return evaluate


RANKS = {name: resource_of_run(name) for name in REQUESTED}

from pathlib import Path

from snakemake.exceptions import WorkflowError

from shardline.config import load_project
from shardline.errors import ShardlineError
from shardline.jobs import publish

try:
    PROJECT = load_project(config)
    if workflow.is_main_process and workflow.local_exec:
        PROJECT.check_devices()
except ShardlineError as error:
    raise WorkflowError(str(error)) from None

# Going back to earlier settings runs nothing, so no job would move the links.
if workflow.is_main_process and not workflow.output_settings.dryrun:
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


def parts_of_dataset(wildcards):
    parts = PROJECT.datasets[wildcards.dataset].parts
    return [f"{STORE}/datasets/{wildcards.dataset}/parts/{part}.json" for part in parts]


def manifest_of_run(wildcards):
    return str(PROJECT.runs[wildcards.run].dataset.manifest)


def threads_of_run(wildcards):
    settings = PROJECT.runs[wildcards.run].settings
    return settings["devices"] * max(1, PROJECT.runtime["threads_per_rank"])

"""The job that starts ranks to evaluate a sealed model."""

from collections.abc import Sequence
from pathlib import Path

from shardline.config.evaluation_code import evaluates_on_ranks
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.run_spec import DatasetPlace
from shardline.core.machine import num_gpus
from shardline.pipeline import training
from shardline.pipeline.common import REMAKE
from shardline.pipeline.watched import write_watched_files
from shardline.records.base import read_record
from shardline.records.datasets import Manifest
from shardline.records.evaluations import Evaluated
from shardline.training.rank_task import Evaluate


def needs_ranks(project: Project, run: RunPlan, datasets: Sequence[DatasetPlace]) -> bool:
    """Return whether a run's own ranks evaluate it: on GPUs, or where there is more than a block for several."""
    settings = run.settings
    if not evaluates_on_ranks(run, project.runtime):
        return False
    if settings.accelerator == "gpu" or (settings.accelerator == "auto" and num_gpus()):
        return True
    manifests = [read_record(one.manifest, Manifest, remedy=REMAKE) for one in datasets]
    rows = sum(manifest.splits[settings.evaluation.split] for manifest in manifests)
    is_split = rows > settings.evaluation.batch or settings.data.pack is not None
    return is_split and settings.nodes * settings.devices > 1


def evaluate_on_ranks(
    project: Project, run: RunPlan, model: Path, datasets: Sequence[DatasetPlace], log: Path
) -> Evaluated:
    """Start a run's ranks, wait until they have evaluated the model, and return what they found.

    Raises:
        RankError: a rank failed.
    """
    rank_logs = project.layout.declared.logs_of_parts("evaluate", f"{run.id}-{run.evaluation_id}")
    with training.own_work(project, f"{run.id}-evaluation-{run.evaluation_id}") as work:
        write_watched_files(project, run, work)
        action = Evaluate(
            model=training.seen_by_all(model, run.settings, work),
            output=work / "found.json",
            has_test_step="measured_by" in run.evaluation_document,
            has_samples="samples" in run.evaluation_document["versions"],
        )
        task = training.rank_task(
            run.spec,
            action,
            datasets=datasets,
            work=work,
            rank_logs=rank_logs,
            runtime=project.runtime,
        )
        python = training.python_of(project, run, {})
        training.start_ranks(project, task, work / "rank.json", log, python)
        return read_record(action.output, Evaluated, remedy=REMAKE)

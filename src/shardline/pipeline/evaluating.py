"""The job that starts ranks to evaluate a sealed model."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardline.config.evaluation_code import evaluates_on_ranks
from shardline.config.geometry import ActualGeometry
from shardline.config.project import Project
from shardline.config.run import Run
from shardline.config.run_spec import DatasetPlace
from shardline.core.files import make_folder, read_json
from shardline.core.machine import num_gpus
from shardline.pipeline import training
from shardline.pipeline.common import REMAKE
from shardline.pipeline.watched import write_watched_files
from shardline.records.base import read_record
from shardline.records.datasets import Manifest
from shardline.training.rank_spec import EvaluationSpec


def needs_ranks(project: Project, run: Run, datasets: Sequence[DatasetPlace]) -> bool:
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
    project: Project, run: Run, model: Path, datasets: Sequence[DatasetPlace], log: Path
) -> dict[str, Any]:
    """Start a run's ranks, wait until they have evaluated the model, and return what they found.

    Raises:
        RankError: a rank failed.
    """
    layout, runtime = project.layout.declared, project.runtime
    work = layout.work(f"{run.id}-evaluation-{run.evaluation_id}")
    shutil.rmtree(work, ignore_errors=True)  # of a job that was killed
    make_folder(work)
    if run.settings.nodes > 1:  # which all see the store, and may not see the results
        model = Path(shutil.copy(model, work))
    write_watched_files(project, run, work)
    spec = EvaluationSpec(
        run=run.id,
        name=run.name,
        model_class=run.model_class,
        settings=run.settings,
        has_test_step="measured_by" in run.evaluation_document,
        has_samples="samples" in run.evaluation_document["versions"],
        model=model,
        datasets=tuple(datasets),
        work=work,
        rank_logs=layout.logs_of_parts("evaluate", f"{run.id}-{run.evaluation_id}"),
        output=work / "found.json",
        verify=runtime.verify,
        watch_reads=runtime.watch_reads,
        oversubscribe=runtime.oversubscribe,
        rendezvous_timeout_s=runtime.rendezvous_timeout_s,
        geometry=ActualGeometry(nodes=run.settings.nodes, devices=run.settings.devices),
    )
    try:
        training.start_ranks(
            project, run, spec, work / "rank.json", log, training.python_of(project, run, {})
        )
        found: dict[str, Any] = read_json(spec.output, remedy=REMAKE)
        return found
    finally:
        shutil.rmtree(work, ignore_errors=True)

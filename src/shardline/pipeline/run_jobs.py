"""The jobs around a run's training: resolve the run, and evaluate it."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import UNSET, structs

from shardline.config.checks import evaluates_on_ranks
from shardline.config.job_plan import recheck_evaluation, recheck_training
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.config.resolved import DatasetPlace
from shardline.config.scripts import is_script
from shardline.core.digests import file_sha256
from shardline.core.files import json_bytes, write_bytes, write_json
from shardline.core.one_lightning import keep
from shardline.data.folds import of_fold
from shardline.pipeline import started_ranks
from shardline.pipeline.job_frame import REMAKE, check_environment, only
from shardline.pipeline.members import members_of_ensemble, seen_members
from shardline.pipeline.started_ranks import Inputs, files_of, places_of
from shardline.pipeline.watched import end_watch, report_warnings, watch, write_watched_files
from shardline.provenance.actions import Action
from shardline.provenance.resolved_run import describe_run
from shardline.records.base import read_record, sealed
from shardline.records.datasets import Manifest
from shardline.records.evaluations import Evaluated, EvaluationResult
from shardline.records.trainings import TrainingProvenance
from shardline.training.rank_task import Evaluate


def resolve_run(project: Project, run_json: str, identity_json: str) -> None:
    """Write a run's resolved settings and its identity document.

    Args:
        project: the run's part of the project.
    """
    run = only(project.runs)
    action = Action(id=f"resolve_run/{run.id}")
    recheck_training(project, run)
    # byte by byte: the digest of this file is the run's address
    write_bytes(Path(identity_json), json_bytes(run.document))
    write_json(Path(run_json), sealed(describe_run(project, run, action)))


def evaluate(project: Project, evaluation: str, inputs: Inputs, *, log: Path | None = None) -> None:
    """Evaluate a sealed model; for a script, use the script's own evaluation.

    Args:
        project: the run's part of the project.
        log: log for ranks; without it, this process alone evaluates.
    """
    run = only(project.runs)
    action = Action(id=f"evaluate/{run.id}/{run.evaluation_id}")
    recheck_evaluation(project, run)
    check_environment(project, run.evaluation_document)
    files, places = files_of(run, inputs), places_of(run, inputs)
    if own := is_script(run.model_class):  # a script evaluates itself
        result = _take_over(run, files, places)
    else:
        result = _evaluate(project, run, files, places, log, inputs)
    document = EvaluationResult(
        **structs.asdict(structs.replace(result, run=run.id)),
        files=UNSET if own else {run.model.name: file_sha256(files["model"])},
        identity=run.evaluation_document,
        action=action.record(),
    )
    write_json(Path(evaluation), sealed(document))


def _take_over(
    run: RunPlan, files: Mapping[str, Path], datasets: Sequence[DatasetPlace]
) -> Evaluated:
    from shardline.training.script_outputs import evaluation_of

    return evaluation_of(
        read_record(files["provenance"], TrainingProvenance, remedy=REMAKE).training,
        of_fold(read_record(datasets[0].manifest, Manifest, remedy=REMAKE), datasets[0].fold),
        run.settings.evaluation,
        run.name,
    )


def _evaluate(
    project: Project, run: RunPlan, files: Mapping[str, Path], datasets: Sequence[DatasetPlace],
    log: Path | None, inputs: Inputs,
) -> Evaluated:  # fmt: skip
    if log and _needs_ranks(project, run, datasets):
        return _evaluate_on_ranks(project, run, files["model"], datasets, log, inputs)
    if log and _is_warm(project, run):
        return _evaluate_on_ranks(project, run, files["model"], datasets, log, inputs, single=True)
    return _evaluate_here(project, run, files["model"], datasets, inputs)


def _needs_ranks(project: Project, run: RunPlan, datasets: Sequence[DatasetPlace]) -> bool:
    """Return whether a run's own ranks evaluate it: on GPUs, or with more than one block for several ranks."""
    settings = run.settings
    if not evaluates_on_ranks(run, project.runtime):
        return False
    if started_ranks.has_gpus(settings):
        return True
    manifests = [
        of_fold(read_record(one.manifest, Manifest, remedy=REMAKE), one.fold) for one in datasets
    ]
    rows = sum(manifest.splits[settings.evaluation.split] for manifest in manifests)
    is_split = rows > settings.evaluation.batch or settings.data.pack is not None
    return is_split and settings.nodes * settings.devices > 1


def _is_warm(project: Project, run: RunPlan) -> bool:
    """Return whether one forked rank evaluates a run in place of this process, with the same bits."""
    return (
        started_ranks.forks_ranks(project.runtime)
        and evaluates_on_ranks(run, project.runtime)
        and not started_ranks.has_gpus(run.settings)
    )


def _evaluate_on_ranks(
    project: Project, run: RunPlan, model: Path, datasets: Sequence[DatasetPlace], log: Path,
    inputs: Inputs, *, single: bool = False,
) -> Evaluated:  # fmt: skip
    rank_logs = project.layout.declared.logs_of_parts("evaluate", f"{run.id}-{run.evaluation_id}")
    with started_ranks.own_work(project, f"{run.id}-evaluation-{run.evaluation_id}") as work:
        write_watched_files(project, run, work)
        action = Evaluate(
            model=started_ranks.seen_by_all(model, run.settings, work),
            output=work / "found.json",
            has_test_step="measured_by" in run.evaluation_document,
            has_samples="samples" in run.evaluation_document["versions"],
        )
        spec = structs.replace(run.spec, members=members_of_ensemble(run, inputs))
        spec = seen_members(spec, work)
        started_ranks.run_on_ranks(
            project,
            spec,
            action,
            work=work,
            rank_logs=rank_logs,
            log=log,
            datasets=datasets,
            single=single,
        )
        report_warnings(log)
        return read_record(action.output, Evaluated, remedy=REMAKE)


def _evaluate_here(
    project: Project, run: RunPlan, model: Path, datasets: Sequence[DatasetPlace], inputs: Inputs
) -> Evaluated:
    if line := keep(run.lightning):  # before the first import of Lightning
        logging.info("%s", line)
    import torch

    from shardline.training.evaluate import evaluate as evaluate_model

    torch.set_num_threads(1)  # as on each rank: the number of threads changes the last bits of sums
    # `run.json` may be older: the class may have moved, or a setting that does not count changed
    watch(project, run)
    result = evaluate_model(
        structs.replace(run.spec, members=members_of_ensemble(run, inputs)),
        model_file=model,
        datasets=datasets,
        verify=project.runtime.verify,
        has_test_step="measured_by" in run.evaluation_document,
        has_samples="samples" in run.evaluation_document["versions"],
    )
    end_watch()
    assert result  # this is the only process
    return result

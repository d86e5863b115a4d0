"""The job that computes the missing parts of a prediction, on a run's ranks."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import UnsetType, structs

from shardline.config.checks import predicts_on_ranks
from shardline.config.job_plan import recheck_prediction
from shardline.config.plans import PredictionPlan
from shardline.config.project import Project
from shardline.config.resolved import DatasetPlace
from shardline.core.digests import file_sha256
from shardline.core.errors import DataError
from shardline.core.files import make_folder, write_json
from shardline.core.one_lightning import keep
from shardline.data.columns import stored_columns
from shardline.data.folds import of_fold
from shardline.data.prediction_parts import count_parts, count_rows, missing_parts
from shardline.pipeline import started_ranks
from shardline.pipeline.job_frame import REMAKE, check_environment, only
from shardline.pipeline.members import members_of_ensemble, seen_members
from shardline.pipeline.started_ranks import Inputs, files_of, places_of
from shardline.provenance.actions import Action
from shardline.records.base import encode, read_record
from shardline.records.datasets import Manifest
from shardline.records.evaluations import PredictionResult
from shardline.records.preprocessing import Preprocessing
from shardline.training.rank_task import Predict


def predict(project: Project, record: str, inputs: Inputs, log: Path) -> None:
    """Compute the parts of a prediction, and write their record.

    Args:
        project: the prediction's part of the project, with its run.
        inputs: `model`, `manifest` of the run's datasets, and `predicted`, the manifest of the rows.
    """
    run, prediction = only(project.runs), only(project.predictions)
    recheck_prediction(project, prediction)
    members = members_of_ensemble(run, inputs)
    spec = structs.replace(prediction.spec, members=members)
    prediction = replace(prediction, spec=spec)
    given = inputs.get("predicted")
    manifest = (
        Path(str(given)) if given else prediction.layout.declared.manifest(prediction.rows.id)
    )
    found = compute_parts(
        project,
        prediction,
        files_of(run, inputs)["model"],
        places_of(run, inputs),
        manifest,
        log,
    )
    write_json(Path(record), encode(found))


def compute_parts(
    project: Project, prediction: PredictionPlan, model: Path, trained_on: Sequence[DatasetPlace],
    manifest: Path, log: Path,
) -> PredictionResult:  # fmt: skip
    """Compute the parts of a prediction that are not in the store yet.

    Args:
        model: the sealed weights.
        trained_on: places of the run's datasets.
        manifest: manifest of the rows.
        log: log of the ranks.

    Returns:
        The record of the prediction.

    Raises:
        DataError: there are no rows, or their columns differ from those that the run was trained on.
        RankError: a rank failed.
    """
    action = Action(id=f"predict/{prediction.spec.run}/{prediction.id}")
    check_environment(project, prediction.document)
    sealed = of_fold(read_record(manifest, Manifest, remedy=REMAKE), prediction.fold)
    _check_rows(prediction, sealed, read_record(trained_on[0].manifest, Manifest, remedy=REMAKE))
    num_rows, batch = sealed.splits[prediction.split], prediction.spec.settings.evaluation.batch
    folder = prediction.parts
    make_folder(folder)
    rows = DatasetPlace(
        manifest=manifest,
        shards=project.layout.declared.shards(prediction.rows.id),
        fold=prediction.fold,
        python=prediction.rows.python,
    )
    missing = missing_parts(folder, num_rows, batch)
    if done := count_parts(num_rows, batch) - len(missing):
        logging.info("%d of %d parts already exist", done, done + len(missing))
    if missing and _needs_ranks(project, prediction, missing):
        _on_ranks(project, prediction, model, trained_on, rows, missing, log)
    elif missing and _is_warm(project, prediction):
        _on_ranks(project, prediction, model, trained_on, rows, missing, log, single=True)
    elif missing:
        _here(project, prediction, model, trained_on, rows, missing)
    if (rows_there := count_rows(folder, count_parts(num_rows, batch))) != num_rows:
        raise DataError(
            f"{folder} contains predictions of {rows_there} rows, expected {num_rows}, all rows of the split; run "
            "the pipeline again to predict the rest"
        )
    return PredictionResult(
        run=prediction.spec.run,
        rows=rows_there,
        parts=count_parts(num_rows, batch),
        classes=sealed.schema.classes,
        skipped=sealed.skipped,
        manifest_sha256=file_sha256(manifest),
        files={model.name: file_sha256(model)},
        identity=dict(prediction.document),
        action=action.record(),
    )


def _check_rows(prediction: PredictionPlan, rows: Manifest, trained_on: Manifest) -> None:
    name, split = prediction.rows.name, prediction.split
    found, expected = stored_columns(rows.schema), stored_columns(trained_on.schema)
    if names := _other_columns(rows.preprocessing, trained_on.preprocessing):
        raise DataError(
            f"{name}: source.preprocess makes features of {names[0]}, expected {names[1]} as in the data that "
            f"{prediction.spec.title} was trained on; predict rows with the same columns"
        )
    if "labels" not in found:
        expected.pop("labels", None)
    for column in expected.keys() | found.keys() - {"labels"}:
        if found.get(column) != expected.get(column):
            one, other = found.get(column, "missing"), expected.get(column, "no such column")
            raise DataError(
                f"{name}: column {column} is {one}, expected {other} as in the data that {prediction.spec.title} was "
                "trained on; predict rows with the same columns"
            )
    if not rows.splits[split]:
        raise DataError(
            f"{name}: its {split} split has no rows, expected at least one; predict another split"
        )


def _other_columns(
    rows: Preprocessing | UnsetType, trained_on: Preprocessing | UnsetType
) -> tuple[str, str] | None:
    """Return the stored columns of both, as texts, if they differ; files to predict have none of their own."""
    if not (rows and trained_on):
        return None
    found, expected = (
        ", ".join([one.name for one in of.numbers] + [one.column for one in of.categories])
        for of in (rows, trained_on)
    )
    return None if found == expected else (found, expected)


def _needs_ranks(project: Project, prediction: PredictionPlan, missing: Sequence[int]) -> bool:
    settings = prediction.spec.settings
    if not predicts_on_ranks(settings, project.runtime):
        return False
    return started_ranks.has_gpus(settings) or (
        len(missing) > 1 and settings.nodes * settings.devices > 1
    )


def _is_warm(project: Project, prediction: PredictionPlan) -> bool:
    """Return whether one forked rank predicts in place of this process, with the same bits."""
    return (
        started_ranks.forks_ranks(project.runtime)
        and predicts_on_ranks(prediction.spec.settings, project.runtime)
        and not started_ranks.has_gpus(prediction.spec.settings)
    )


def _on_ranks(
    project: Project, prediction: PredictionPlan, model: Path, trained_on: Sequence[DatasetPlace],
    rows: DatasetPlace, missing: Sequence[int], log: Path, *, single: bool = False,
) -> None:  # fmt: skip
    run = prediction.spec
    rank_logs = project.layout.declared.logs_of_parts("predict", f"{run.run}-{prediction.id}")
    with started_ranks.own_work(project, f"{run.run}-prediction-{prediction.id}") as work:
        action = Predict(
            model=started_ranks.seen_by_all(model, run.settings, work),
            rows=rows,
            split=prediction.split,
            parts=tuple(missing),
            folder=prediction.parts,
        )
        started_ranks.run_on_ranks(
            project,
            seen_members(run, work),
            action,
            work=work,
            rank_logs=rank_logs,
            log=log,
            datasets=trained_on,
            single=single,
        )


def _here(
    project: Project, prediction: PredictionPlan, model: Path, trained_on: Sequence[DatasetPlace],
    rows: DatasetPlace, missing: Sequence[int],
) -> None:  # fmt: skip
    keep(prediction.spec.lightning)  # before the first import of Lightning
    import torch

    from shardline.core.progress import ShardProgress
    from shardline.training.predict import predict

    torch.set_num_threads(1)  # as on each rank: the number of threads changes the last bits of sums
    found = predict(
        prediction.spec, model_file=model, trained_on=trained_on, rows=rows, split=prediction.split,
        folder=prediction.parts, parts=missing, verify=project.runtime.verify,
    )  # fmt: skip
    with ShardProgress(f"predictions {prediction.id}", len(missing)) as progress:
        for num_rows in found:
            progress.advance(num_rows)

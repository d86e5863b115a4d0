"""The job that merges the parts of a prediction into one file."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from shardline.config.plans import PredictionPlan
from shardline.config.project import Project
from shardline.core.digests import file_sha256
from shardline.core.files import write_json
from shardline.data.prediction_parts import part_file
from shardline.pipeline.job_frame import REMAKE, only
from shardline.provenance.actions import Action
from shardline.records.base import read_record, sealed
from shardline.records.evaluations import PredictionResult


def write_predictions(
    project: Project, record: str | Sequence[str], file: str, described: str
) -> None:
    """Merge the parts of a prediction, or the predictions of all folds, into one file.

    Args:
        record: see `PredictionPlan.read`.
    """
    prediction = only(project.predictions)
    if prediction.folds:
        write_folds(prediction, Path(file), Path(described), read=[*map(Path, record)])
        return
    document = read_record(Path(str(record)), PredictionResult, remedy=REMAKE)
    write_file(prediction, document, Path(file), Path(described))


def write_folds(
    prediction: PredictionPlan, file: Path, described: Path, *, read: Sequence[Path] = ()
) -> None:
    """Write the predictions of all folds into one file, and its record beside it.

    Args:
        prediction: prediction from `join_folds`.
        file: path of the predictions.
        described: path of the record.
        read: files and records of the folds; empty if the job was forced to run again.

    Raises:
        DataError: a file cannot be read, or two folds predict one row.
    """
    from shardline.data.prediction_file import join_predictions

    action = Action(id=f"write_predictions/{prediction.spec.run}/{prediction.id}")
    given = [*read] or prediction.read
    number = len(prediction.folds)
    records = [read_record(one, PredictionResult, remedy=REMAKE) for one in given[number:]]
    about = {
        "runs": [one.run for one in records],
        "rows": prediction.rows.id,
        "split": prediction.split,
        "prediction": prediction.id,
    }
    rows = join_predictions(file, given[:number], about=about)
    document = structs.replace(
        records[0],
        run=prediction.spec.run,
        rows=rows,
        parts=0,
        identity=dict(prediction.document),
        files={file.name: file_sha256(file)},
        action=action.record(),
    )
    write_json(described, sealed(document))


def write_file(
    prediction: PredictionPlan, record: PredictionResult, file: Path, described: Path
) -> None:
    """Merge the parts of a prediction into one file, write its record beside it, and delete the parts.

    Args:
        record: record from `compute_parts`.
        file: path of the predictions.
        described: path of the record.
    """
    from shardline.data.prediction_file import write_predictions

    folder = prediction.parts
    source = prediction.rows.source
    about = {
        "run": record.run,
        "model_sha256": record.files["model.safetensors"],
        "rows": prediction.rows.id,
        "source": prediction.rows.document["source"],
        "split": prediction.split,
        "classes": record.classes,
        "skipped_rows": record.skipped.count,
        "prediction": prediction.id,
    }
    write_predictions(
        file,
        [part_file(folder, part) for part in range(record.parts)],
        classes=record.classes or [],
        names=() if source.get("id_column") else source.get("names", ()),
        about=about,
    )
    files = {**record.files, file.name: file_sha256(file)}
    write_json(described, sealed(structs.replace(record, files=files)))
    shutil.rmtree(folder, ignore_errors=True)

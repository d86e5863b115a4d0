"""The job that merges the parts of a prediction into one file."""

import shutil
from pathlib import Path

from msgspec import structs

from shardline.config.plans import PredictionPlan
from shardline.config.project import Project
from shardline.core.digests import file_sha256
from shardline.core.files import write_json
from shardline.data.prediction_parts import part_file
from shardline.pipeline.job_frame import REMAKE, only
from shardline.records.base import read_record, sealed
from shardline.records.runs import PredictionResult


def write_predictions(project: Project, record: str, file: str, described: str) -> None:
    """Merge the parts of a prediction into one file; see `write_file`."""
    document = read_record(Path(record), PredictionResult, remedy=REMAKE)
    write_file(only(project.predictions), document, Path(file), Path(described))


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

"""Export of a run: checks, then a folder that appears completely or not at all."""

import importlib.util
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardline.config.project import Project
from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.config.settings.run_settings import Ensemble
from shardline.core.digests import file_sha256
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import (
    make_folder,
    renamed_when_complete,
    write_bytes,
    write_json,
)
from shardline.core.one_lightning import keep
from shardline.data.folds import of_fold
from shardline.records.base import read_record
from shardline.records.datasets import Manifest
from shardline.results.export import DESCRIPTION, FORMATS, ExportConfig
from shardline.results.export.card import make_card
from shardline.results.export.preprocessing import tokenizer_digest
from shardline.results.sealed_run import SealedRun, check_repeatable

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule

_ONNX = ("onnx", "onnxruntime", "onnxscript")
_TOLERANCE = 1e-4  # other runtimes sum in another order


@dataclass(frozen=True, kw_only=True)
class ExportCheck:
    """Comparison of an export's outputs with the original's.

    Attributes:
        split: Split of the compared rows.
        rows: Number of compared rows.
        max_difference: Largest absolute difference of two outputs.
        allowed: Largest allowed difference.
    """

    split: str
    rows: int
    max_difference: float
    allowed: float


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Result of an export.

    Attributes:
        run: Id of the run.
        format: Format of the model.
        folder: Written folder.
        files: Names of the files in the folder.
        check: Comparison with the original.
        code: Differences between the present code and that of the evaluation; empty without --force.
    """

    run: str
    format: str
    folder: Path
    files: list[str]
    check: ExportCheck
    code: list[str]


def export_run(
    project: Project, recorded: SealedRun, *, to: str, output: Path | None, force: bool
) -> Exported:
    """Export a sealed model with a model card, and compare it with the original.

    Verifies the sealed files, and the shards of the compared rows, against their checksums.

    Args:
        to: One of `FORMATS`.
        output: Folder to create; None for `exports/{run}-{to}`.
        force: Use the present code, even if it differs from that of the evaluation.

    Raises:
        ConfigError: The folder exists, packages are missing, the code has changed, or the format
            cannot represent the model. No file remains then.
        DataError: A sealed file is damaged, or the export's outputs differ from the original's.
    """
    folder = output or Path("exports") / f"{recorded.file_title}-{to}"
    _check_request(to, folder)
    if isinstance(recorded.run_spec.settings.combined, Ensemble):
        raise ConfigError(
            f"{recorded.title} is an ensemble, which has no weights of its own; export its members, or use average in "
            "place of ensemble"
        )
    changes = check_repeatable(project, recorded, "exported", force=force)
    keep(project.documents.lightning_of({"model": recorded.spec.model_class}))
    sealed = read_record(recorded.manifest, Manifest, remedy="run the pipeline again")
    manifest = of_fold(sealed, recorded.datasets[0].fold)
    tokenizer = find_tokenizer(project, manifest)
    with _whole(folder) as scratch:
        model, config, check = checked_export(
            recorded.run_spec, recorded.datasets, recorded.model, manifest,
            to=to, tokenizer=tokenizer, folder=scratch, title=recorded.title,
        )  # fmt: skip
        config["run"] = recorded.id
        write_json(scratch / DESCRIPTION.get(to, "config.json"), config)
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        card = make_card(recorded, manifest, config, changes, num_parameters)
        write_bytes(scratch / "README.md", card.encode())
        files = sorted(path.name for path in scratch.iterdir())
    return Exported(
        run=recorded.id, format=to, folder=folder, files=files, check=check, code=changes
    )


def _check_request(to: str, folder: Path) -> None:
    if to not in FORMATS:
        raise ConfigError(f"--to {to} is not a format; use one of {', '.join(FORMATS)}")
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder} exists already, and nothing is overwritten; delete it, or name another folder: --output DIR"
        )
    missing = [name for name in _ONNX if importlib.util.find_spec(name) is None]
    if to == "onnx" and missing:
        raise ConfigError(
            f"--to onnx needs packages that are not installed: {', '.join(missing)}; run "
            "pip install 'shardline[onnx]'"
        )


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder that is renamed when all files are written."""
    try:
        with renamed_when_complete(folder) as scratch:
            make_folder(scratch)
            yield scratch
    except OSError as error:
        raise DataError(
            f"{folder} could not be written ({error.strerror}); free space, or name another folder: --output DIR"
        ) from error


def find_tokenizer(project: Project, manifest: Manifest) -> Path | None:
    """Return the tokenizer.json that a dataset was built with, or None.

    Args:
        manifest: Manifest of the dataset.

    Raises:
        DataError: No dataset of the config names a file with the recorded content.
    """
    if not (wanted := tokenizer_digest(manifest)):
        return None
    named = [one.tokenizer for one in project.datasets.values() if one.tokenizer]
    for path in dict.fromkeys(named):
        if path.is_file() and file_sha256(path) == wanted:
            return path
    raise DataError(
        f"dataset {manifest.dataset} was built with a tokenizer of SHA-256 {wanted}, which no dataset of the config "
        "names now, and an export contains it; restore the file and its dataset in the config"
    )


def checked_export(
    spec: RunSpec, datasets: Sequence[DatasetPlace], weights: Path, manifest: Manifest, *,
    to: str, tokenizer: Path | None, folder: Path, title: str = "",
) -> tuple["LightningModule", ExportConfig, ExportCheck]:  # fmt: skip
    """Write a sealed model and its other files into a folder, and compare it with the original.

    Args:
        spec: The run.
        datasets: Places of the run's datasets.
        weights: File of the sealed weights.
        manifest: Manifest of the first dataset.
        to: One of `FORMATS`.
        tokenizer: Tokenizer of the dataset, or None.
        folder: Folder for the files.
        title: Name of the run in messages.

    Returns:
        The original model, the content of `config.json` (or of the file in `DESCRIPTION`), and the comparison.

    Raises:
        ConfigError: The format cannot represent the model.
        DataError: The export's outputs differ from the original's.
    """
    from shardline.results.export.description import describe
    from shardline.results.export.formats import AS_SEALED, outputs_of, write
    from shardline.results.export.original import load_original

    original = load_original(spec, datasets, weights, with_inside=to not in AS_SEALED)
    is_free = write(original, to, folder / FORMATS[to])
    check = ExportCheck(
        split=original.split,
        rows=original.num_rows,
        max_difference=original.difference(outputs_of(original, to, folder / FORMATS[to])),
        allowed=0.0 if to in AS_SEALED else _TOLERANCE * max(1.0, original.largest),
    )
    if not check.max_difference <= check.allowed:  # rejects NaN too
        raise DataError(
            f"{title}: the outputs of its export to {to} differ from the original's by {check.max_difference:.3g} on "
            f"{check.rows:,} {check.split} rows, at most {check.allowed:.3g} is allowed; its forward may depend on "
            "values or on the batch size in a way that the format cannot represent: fix it, or export --to safetensors"
        )
    if tokenizer:
        shutil.copyfile(tokenizer, folder / "tokenizer.json")
    config: ExportConfig = {
        **describe(original, manifest, to, is_free=is_free, tokenizer=tokenizer),
        "identity": spec.identity,
        "dataset": ", ".join(spec.datasets),
        "check": vars(check),
        "sha256": {path.name: file_sha256(path) for path in sorted(folder.iterdir())},
    }
    return original.model, config, check

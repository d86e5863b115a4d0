"""Exporting a run: checks first, then a folder that appears whole or not at all."""

import importlib.util
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardline.config.project import Project
from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.core.digests import file_sha256
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import (
    make_folder,
    renamed_when_complete,
    write_bytes,
    write_json,
)
from shardline.records.base import read_record
from shardline.records.datasets import Manifest
from shardline.results.export import DESCRIPTION, FORMATS, ExportConfig
from shardline.results.export.card import make_card
from shardline.results.export.preprocessing import tokenizer_digest
from shardline.results.sealed_run import SealedRun, check_repeatable

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule

_ONNX = ("onnx", "onnxruntime", "onnxscript")
_TOLERANCE = 1e-4  # another runtime sums in another order


@dataclass(frozen=True, kw_only=True)
class ExportCheck:
    """How far an export's outputs are from the original's.

    Attributes:
        split: the held-out rows that were put in.
        rows: their number.
        max_difference: largest absolute difference of two outputs.
        allowed: what it may be.
    """

    split: str
    rows: int
    max_difference: float
    allowed: float


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        files: names within the folder.
        code: how the code differs from that of the evaluation; none unless that was allowed.
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
    """Write a sealed model in another format, with its card, and hold it against the original.

    Sealed files are verified against their checksums, and the shards whose rows are put in as well.

    Args:
        to: one of `FORMATS`.
        output: folder to be made; `exports/{run}-{to}` if None.
        force: take the code of now, whatever it is.

    Raises:
        ConfigError: the folder is there, packages are missing, the code has changed, or the model
            cannot be written in this format; nothing is left then.
        DataError: a sealed file is damaged, or the export's outputs are not the original's.
    """
    folder = output or Path("exports") / f"{recorded.file_title}-{to}"
    _check_request(to, folder)
    changes = check_repeatable(project, recorded, "exported", force=force)
    manifest = read_record(recorded.manifest, Manifest, remedy="run the pipeline again")
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
        raise ConfigError(f"--to {to} is no format, expected one of {', '.join(FORMATS)}")
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder} is there, and nothing is overwritten; delete it, or name another folder: --output DIR"
        )
    missing = [name for name in _ONNX if importlib.util.find_spec(name) is None]
    if to == "onnx" and missing:
        raise ConfigError(
            f"--to onnx needs {', '.join(missing)}, not installed here; pip install 'shardline[onnx]'"
        )


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Give a scratch folder that takes its name only when all is written."""
    try:
        with renamed_when_complete(folder) as scratch:
            make_folder(scratch)
            yield scratch
    except OSError as error:
        raise DataError(
            f"{folder} could not be written ({error.strerror}); free space, or name another folder: --output DIR"
        ) from error


def find_tokenizer(project: Project, manifest: Manifest) -> Path | None:
    """Return the tokenizer.json that a dataset was made with; None where it was made without one.

    Args:
        manifest: the dataset's.

    Raises:
        DataError: no dataset of the config names a file with the recorded content.
    """
    if not (wanted := tokenizer_digest(manifest)):
        return None
    named = [one.tokenizer for one in project.datasets.values() if one.tokenizer]
    for path in dict.fromkeys(named):
        if path.is_file() and file_sha256(path) == wanted:
            return path
    raise DataError(
        f"dataset {manifest.dataset} was made with a tokenizer of SHA-256 {wanted}, which no dataset of the config "
        "names now; an export holds it: put the file back where it was, with its dataset in the config"
    )


def checked_export(
    spec: RunSpec, datasets: Sequence[DatasetPlace], weights: Path, manifest: Manifest, *,
    to: str, tokenizer: Path | None, folder: Path, title: str = "",
) -> tuple["LightningModule", ExportConfig, ExportCheck]:  # fmt: skip
    """Write a sealed model and what goes with it into a folder, and compare it with the original.

    Args:
        weights: the sealed ones.
        manifest: of the first dataset.
        tokenizer: the file that it was made with.
        title: what messages call the run.

    Returns:
        The original, what `config.json` is to hold, or the file of `DESCRIPTION`, and the comparison.

    Raises:
        ConfigError: the format cannot hold the model.
        DataError: the export's outputs are not the original's.
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
    if not check.max_difference <= check.allowed:  # not a number is refused as well
        raise DataError(
            f"{title}: the outputs of its export to {to} differ from the original's by {check.max_difference:.3g} on "
            f"{check.rows:,} {check.split} rows, at most {check.allowed:.3g} is allowed; its forward may depend on "
            "values or on the batch's size in a way that the format cannot hold: export it --to safetensors, or fix it"
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

"""Exporting a run: checks first, then a folder that appears whole or not at all."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardline.config.project import Project
from shardline.core.digests import file_sha256
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import (
    make_folder,
    read_json,
    renamed_when_complete,
    write_bytes,
    write_json,
)
from shardline.core.redaction import mask_values
from shardline.results.recorded import Recorded, check_repeatable

if TYPE_CHECKING:
    from shardline.results.export.formats import Original

FORMATS = {"onnx": "model.onnx", "torchscript": "model.pt", "safetensors": "model.safetensors"}
_ONNX = ("onnx", "onnxruntime", "onnxscript")
_TOLERANCE = 1e-4  # another runtime sums in another order


@dataclass(frozen=True, kw_only=True)
class Check:
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
    check: Check
    code: list[str]


def export_run(
    project: Project, recorded: Recorded, *, to: str, output: Path | None, anyway: bool
) -> Exported:
    """Write a sealed model in another format, with its card, and hold it against the original.

    Sealed files are verified against their checksums, and the shards whose rows are put in as well.

    Args:
        to: one of `FORMATS`.
        output: folder to be made; `exports/{run}-{to}` if None.
        anyway: take the code of now, whatever it is.

    Raises:
        ConfigError: the folder is there, packages are missing, the code has changed, or the model
            cannot be written in this format; nothing is left then.
        DataError: a sealed file is damaged, or the export's outputs are not the original's.
    """
    folder = output or Path("exports") / f"{recorded.file_title}-{to}"
    _check_request(to, folder)
    changes = check_repeatable(project, recorded, "exported", anyway=anyway)
    from shardline.results.export.formats import load_original

    original = load_original(recorded)
    with _whole(folder) as scratch:
        check = _write(original, recorded, to, scratch)
        _describe(original, recorded, to, check, changes, scratch)
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


def _write(original: "Original", recorded: Recorded, to: str, folder: Path) -> Check:
    from shardline.results.export import formats

    path, (write, read) = folder / FORMATS[to], formats.CONVERTERS[to]
    write(original, path)
    outputs, largest = read(original, path), float(original.outputs.abs().max())
    allowed = 0.0 if to == "safetensors" else _TOLERANCE * max(1.0, largest)
    check = Check(
        split=original.split,
        rows=len(original.features),
        max_difference=original.difference(outputs),
        allowed=allowed,
    )
    if not check.max_difference <= allowed:  # not a number is refused as well
        raise DataError(
            f"{recorded.title}: the outputs of its export to {to} differ from the original's by "
            f"{check.max_difference:.3g} on {check.rows:,} {check.split} rows, at most {allowed:.3g} is allowed; its "
            "forward may depend on values or on the batch's size in a way that the format cannot hold: export it "
            "--to safetensors, or fix it"
        )
    return check


def _describe(
    original: "Original",
    recorded: Recorded,
    to: str,
    check: Check,
    changes: list[str],
    folder: Path,
) -> None:
    """Write `config.json` and the card."""
    from shardline.results.export.card import make_card
    from shardline.training.model import arguments_of

    manifest = read_json(recorded.manifest, remedy="run the pipeline again")
    schema, spec = manifest["schema"], original.spec
    mode = spec.settings.data.normalize
    where = {"safetensors": "normalization.safetensors"}.get(to, "the model's first step")
    config = {
        "format": to,
        "file": FORMATS[to],
        "model_class": spec.model_class,
        "model_args": mask_values(arguments_of(spec, schema)),
        "input": {
            "name": "features",
            "dtype": str(original.features.dtype).removeprefix("torch."),
            "shape": list(original.features.shape[1:]),
        },
        "output": {"name": "outputs", "shape": list(original.outputs.shape[1:])},
        "task": schema["task"],
        "classes": schema["classes"],
        "normalization": {"mode": mode, "where": "none" if mode == "none" else where},
        "run": recorded.id,
        "identity": spec.identity,
        "dataset": ", ".join(spec.datasets),
        "check": vars(check),
        "sha256": {path.name: file_sha256(path) for path in sorted(folder.iterdir())},
    }
    write_json(folder / "config.json", config)
    num_parameters = sum(parameter.numel() for parameter in original.model.parameters())
    card = make_card(recorded, manifest, config, changes, num_parameters)
    write_bytes(folder / "README.md", card.encode())

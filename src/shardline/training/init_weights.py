"""Begin a training with the weights of another run, of a file or of a folder of transformers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytorch_lightning as pl
import torch
from msgspec import structs
from pytorch_lightning.utilities.model_helpers import is_overridden

from shardline.checkpoints.boundaries import after_hook
from shardline.checkpoints.folder import read_good
from shardline.checkpoints.manifest import MANIFEST
from shardline.checkpoints.sharded import whole_tensors
from shardline.checkpoints.writer import STATE
from shardline.config.base_files import files_of_folder
from shardline.config.resolved import InitWeights, RunSpec
from shardline.core.canonical import digest
from shardline.core.digests import file_sha256
from shardline.core.errors import DataError
from shardline.core.files import write_json
from shardline.records.base import encode, read_record
from shardline.records.origins import LoadedWeights
from shardline.training import named_weights
from shardline.training.weight_files import STATE_DICTS, FoundWeights, read_weights, take_part

_RECORD = "init.json"  # in the run's folder of the store: a resumed training loads nothing, but records the same


def attach_init(
    model: pl.LightningModule, spec: RunSpec, work: Path, *,
    look: Callable[[pl.LightningModule], None], is_first: bool, is_verified: bool,
) -> None:  # fmt: skip
    """Load the weights with which a new training begins, before its optimiser is made.

    Layers that the model makes in `setup` or `configure_model` get their weights behind this hook.

    Args:
        work: The run's folder of the store.
        look: Called before weights are loaded.
        is_first: Whether this is rank 0, which records and reports what is loaded.
        is_verified: Whether to verify the file against its digest.

    Raises:
        ConfigError, DataError: The file cannot be read, is another one, or does not fit the model.
    """
    init = spec.init
    if init is None:
        return

    def load() -> None:
        assert init is not None
        look(model)
        record = load_init(
            model, init, f'run "{spec.title}": init_from', verify=is_verified and is_first
        )
        if is_first:
            write_json(work / _RECORD, encode(record))
            for line in _lines(record, init):
                print(line, flush=True)

    for hook in ("configure_model", "setup"):
        if is_overridden(hook, model):
            after_hook(model, hook, load)
            return
    load()


def load_init(
    model: torch.nn.Module, init: InitWeights, where: str, *, verify: bool
) -> LoadedWeights:
    """Load initial weights into a model, and return the record of it; see `attach_init`."""
    path = init.file
    where = f"{where}={init.name or path}"
    if not path.exists():
        raise DataError(f"{where} does not exist; train its run first, or correct the path")
    sha256 = digest_of(path) if verify else init.sha256
    if init.sha256 and sha256 != init.sha256:
        raise DataError(
            f"{where} has SHA-256 {sha256[:12]}..., expected {init.sha256[:12]}... as when the project was loaded; "
            "start the pipeline again, which then trains with the present file"
        )
    found = _read(init, path, where)
    fit = named_weights.fit(
        model, found.tensors, rename=init.rename, ignore=init.ignore, where=where
    )
    named_weights.check_fit(fit.record, is_strict=init.strict, where=where)
    named_weights.load(model, found.tensors, fit, where=where)
    return structs.replace(
        fit.record, source=init.source, sha256=sha256, understood=found.understood
    )


def read_loaded(work: Path) -> LoadedWeights | None:
    """Return what the training of a run has loaded; None if it began with the model's own values."""
    path = work / _RECORD
    if not path.exists():
        return None
    return read_record(path, LoadedWeights, remedy=f"delete {work} to train the run from the start")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; of a training checkpoint's manifest; or of the files of a folder."""
    if path.is_file():
        return file_sha256(path)
    if _is_checkpoint(path):
        return file_sha256(read_good(path).path / MANIFEST)
    return digest({file.name: file_sha256(file) for file in files_of_folder(path)})


def _read(init: InitWeights, path: Path, where: str) -> FoundWeights:
    if not _is_checkpoint(path):
        return read_weights(path, part=init.part, where=where)
    saved = read_good(path)
    state = torch.load(saved.path / STATE, map_location="cpu", weights_only=True, mmap=True)
    # the optimiser's shards need not be read
    state |= {key: whole_tensors(state[key], saved.path) for key in STATE_DICTS if key in state}
    found = take_part(state, part=init.part, what=where)
    step = f"the training checkpoint of step {saved.step}"
    return replace(found, understood=[step, *found.understood])


def _is_checkpoint(path: Path) -> bool:
    return path.is_dir() and ((path / MANIFEST).is_file() or any(path.glob("step-*")))


def _lines(record: LoadedWeights, init: InitWeights) -> list[str]:
    """Return the lines of the log on what was loaded."""
    read = f", read as {', '.join(record.understood)}" if record.understood else ""
    sha256 = f", SHA-256 {record.sha256[:12]}" if record.sha256 else ""
    lines = [f"initial weights: {record.loaded} tensors of {init.name or init.file}{sha256}{read}"]
    parts = {
        "renamed": [f'"{prefix}" in {count} names' for prefix, count in record.renamed.items()],
        "ignored": record.ignored,
        "missing in the file": record.missing,
        "not in the model": record.unexpected,
        "of another shape": record.shapes,
        "of another kind": record.kinds,
        "tied in the model only": record.untied,
    }
    lines += [f"  {what}: {', '.join(names)}" for what, names in parts.items() if names]
    return lines

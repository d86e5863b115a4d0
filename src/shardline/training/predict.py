"""Predict the rows of a split with a sealed model, part by part; each part is one file, complete or missing.

A part is `BLOCKS` blocks of `evaluation.batch` rows, in row order. Its bytes do not depend on the rank
that computes the part.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import move_data_to_device
from pytorch_lightning.utilities.model_helpers import is_overridden
from safetensors.numpy import save

from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.core.errors import DataError
from shardline.core.files import write_bytes
from shardline.core.world import World
from shardline.data.collate import Batch, ColumnTuple
from shardline.data.datamodule import Normalizer, evaluated_dtype
from shardline.data.dataset import read_manifest
from shardline.data.integrity import Policy
from shardline.data.prediction_parts import BLOCKS, ID, LABEL, LENGTHS, OUTPUT, part_file
from shardline.data.run_batches import RunBatches
from shardline.data.statistics import ByColumn, pooled
from shardline.data.statistics_file import read_statistics
from shardline.records.datasets import Manifest
from shardline.training.ensembles import check_scored
from shardline.training.evaluation_ranks import EvaluationRanks
from shardline.training.model import inputs_of, is_scorable, sealed_model
from shardline.training.models.outputs import CLASSES, FLAGS, NotFiniteError, predicted_rows
from shardline_io.order.blocks import ChosenBlocks, count_blocks

Columns = dict[str, np.ndarray]


class TrainedOn:
    """Manifests and statistics of the datasets that a run was trained on; reads no shard.

    Args:
        places: Places of the datasets.
    """

    def __init__(self, places: Sequence[DatasetPlace]) -> None:
        self._places = places
        self._manifests = [read_manifest(one.manifest, one.fold) for one in places]
        self.manifest = self._manifests[0]

    @cached_property
    def statistics(self) -> ByColumn:
        """Statistics of the train rows by column, see `RunBatches.statistics`."""
        pairs = zip(self._manifests, self._places, strict=True)
        return pooled(
            [read_statistics(manifest, place.shards, place.fold) for manifest, place in pairs]
        )


def predict(
    spec: RunSpec, *, model_file: Path, trained_on: Sequence[DatasetPlace], rows: DatasetPlace, split: str,
    folder: Path, parts: Sequence[int], verify: Policy = "first", world: World | None = None,
) -> Iterator[int]:  # fmt: skip
    """Predict and write this rank's share of some parts.

    Args:
        spec: The run; `settings.evaluation.batch` is the number of rows of a forward pass.
        trained_on: Datasets of the training, whose statistics normalise the rows.
        rows: The dataset to predict.
        split: Split of `rows` to predict.
        folder: Folder for the parts.
        parts: Parts of all ranks together; rank i mod world size computes the i-th part.
        verify: When a shard is verified against its checksum.
        world: This rank's place in the job; None for one process on the CPU.

    Yields:
        Number of rows of each part, once the part is written.

    Raises:
        DataError: Outputs have the wrong shape or are not finite.
    """
    place = (world.rank, world.world_size) if world else (0, 1)
    own = parts[place[0] :: place[1]]
    if not own:
        return
    settings, known = spec.settings, TrainedOn(trained_on)
    read_as = known.manifest if known.manifest.preprocessing else None
    run_batches = RunBatches([rows], settings, verify=verify, read_as=read_as)
    device = EvaluationRanks.of(world, settings.accelerator, len(parts)).device
    dtype = evaluated_dtype(settings.precision)
    model = sealed_model(spec, known.manifest.schema, model_file).to(device, dtype)
    normalize = Normalizer(known, settings.data.normalize, dtype)
    last = count_blocks(run_batches.manifest.splits[split], settings.evaluation.batch)
    blocks = [range(part * BLOCKS, min((part + 1) * BLOCKS, last)) for part in own]
    chosen = tuple(block for of_part in blocks for block in of_part)
    stream, _ = run_batches.held_out(
        split,
        batch=settings.evaluation.batch,
        kind=partial(ChosenBlocks, chosen=chosen),
        num_epochs=1,
    )
    batches = stream.batches()
    outputs = Outputs(spec, model, normalize, run_batches.manifest, device)
    for part, of_part in zip(own, blocks, strict=True):
        found = [outputs.columns(next(batches), stream.batch_ids, block) for block in of_part]
        joined = {name: outputs.joined(name, found) for name in found[0]}
        write_bytes(part_file(folder, part), save(joined))
        yield len(joined[ID])


class Outputs:
    """Computes the columns of a prediction from batches.

    Args:
        manifest: Manifest of the rows; `has_labels` is false if their labels are placeholders.
        device: Device of the model and the batches.
    """

    def __init__(
        self, spec: RunSpec, model: pl.LightningModule, normalize: Normalizer,
        manifest: Manifest, device: torch.device,
    ) -> None:  # fmt: skip
        self._what, self._spec = f'run "{spec.title}"', spec
        self._model, self._normalize, self._device = model, normalize, device
        self._schema, self._has_labels = manifest.schema, manifest.has_labels is not False
        self._own_step = is_overridden("predict_step", model)

    @torch.inference_mode()
    def columns(self, batch: Batch, ids: np.ndarray, block: int) -> Columns:
        """Return the columns of a block.

        Args:
            ids: Ids of the block's rows [B].

        Raises:
            DataError: An output has another number of rows, or is not finite.
        """
        try:
            return {
                ID: ids,
                **self._labels(batch, len(ids)),
                **self._outputs(batch, len(ids), block),
            }
        except NotFiniteError as error:
            text = error.text(f"row id {ids[error.row]}")
            raise DataError(f"{self._what}: {text}") from None

    def _outputs(self, batch: Batch, rows: int, block: int) -> Columns:
        seen: Any = self._normalize.batch(move_data_to_device(batch, self._device))
        if self._own_step:
            found, what = self._model.predict_step(seen, block), "predict_step"
        elif isinstance(seen, dict):
            found, what = self._model(*inputs_of(self._model, seen)), "forward"
        else:
            found, what = self._model(seen[0]), "forward"
        is_scored = not self._own_step and (
            not isinstance(seen, dict)
            or "features" in seen
            or is_scorable(self._model, seen, self._schema)
        )
        check_scored(self._spec, is_scored=is_scored)
        if is_scored and isinstance(found, torch.Tensor):
            found = self._scored(found, rows)
        return self._named(found, rows, what)

    def joined(self, name: str, blocks: Sequence[Columns]) -> np.ndarray:
        """Join a column of some blocks; lists of varying length are padded to the longest.

        Raises:
            DataError: Blocks have values of different shapes, and the column has no lengths.
        """
        parts = [block[name] for block in blocks]
        shapes = {part.shape[1:] for part in parts}
        if name + LENGTHS in blocks[0] and len({shape[1:] for shape in shapes}) == 1:
            most = max(shape[0] for shape in shapes)
            others = [(0, 0)] * (parts[0].ndim - 2)
            filled = [((0, 0), (0, most - part.shape[1]), *others) for part in parts]
            parts = [np.pad(part, width) for part, width in zip(parts, filled, strict=True)]
        elif len(shapes) > 1:
            found = " and ".join(str(["rows", *shape]) for shape in sorted(shapes)[:2])
            raise DataError(
                f"{self._what}: the model returned {found} as {name}, expected one shape in all batches; return values "
                f"of one shape from predict_step, or return the rows' lengths [rows] too, as {name}{LENGTHS}"
            )
        return np.concatenate(parts)

    def _labels(self, batch: Batch, rows: int) -> Columns:
        named = batch.named if isinstance(batch, ColumnTuple) else batch
        labels = named.get("labels") if isinstance(named, dict) else named[1]
        if not self._has_labels or self._schema.task == "none":
            return {}
        shape = (rows, len(self._schema.targets)) if self._schema.targets else (rows,)
        if not isinstance(labels, torch.Tensor) or labels.shape != shape:
            return {}
        return {LABEL: labels.numpy().copy()}

    def _scored(self, output: torch.Tensor, rows: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return classes and probabilities of logits, flags and their probabilities, or numbers."""
        task, num_targets = self._schema.task, len(self._schema.targets or ())
        if task == "multilabel" and output.shape == (rows, num_targets):
            return predicted_rows(output.float().cpu(), FLAGS)
        if task == "classification" and output.shape == (rows, len(self._schema.classes)):
            return predicted_rows(output.float().cpu(), CLASSES)
        if task == "regression" and output.shape == (rows, 1):
            return output.squeeze(1)
        return output

    def _named(self, found: Any, rows: int, what: str) -> Columns:
        """Return each tensor of a model's output as a column."""
        if isinstance(found, Mapping):
            named = {str(name): one for name, one in found.items()}
        elif isinstance(found, list | tuple):
            named = {f"{OUTPUT}_{place}": one for place, one in enumerate(found)}
        else:
            named = {OUTPUT: found}
        for name, one in named.items():
            shape = tuple(one.shape) if isinstance(one, torch.Tensor) else None
            if not shape or shape[0] != rows or name in (ID, LABEL):
                text = f"a tensor {list(shape)}" if shape is not None else type(one).__name__
                raise DataError(
                    f"{self._what}: the model's {what} returned {text} as {name}, expected a tensor [{rows}, ...] with "
                    f"one entry for each row of the batch, not named {ID} or {LABEL}; change {what}, or define "
                    "predict_step"
                )
        return {name: _array(one) for name, one in named.items()}


def _array(values: torch.Tensor) -> np.ndarray:
    values = values.detach().cpu()
    is_half = values.dtype in (torch.bfloat16, torch.float16)
    # copied: outputs may be views of the input, whose memory the next batch reuses
    return np.array((values.float() if is_half else values).numpy(), order="C")

"""A sealed model with its outputs on held-out rows, for the comparison with an export."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from msgspec import structs

from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.core.errors import DataError
from shardline.data.columns import columns_of
from shardline.data.datamodule import Normalizer
from shardline.data.run_batches import RunBatches
from shardline.data.transforms.image_transforms import Normalize
from shardline.records.datasets import DatasetSchema
from shardline.results.export.calls import Call, Tensors, find_call, named_outputs
from shardline.results.export.exported_steps import ExportSteps, steps_of
from shardline.results.export.table_features import (
    TableFeatures,
    inputs_are_prepared,
    raw_inputs,
    raw_manifest,
)
from shardline.training.model import sealed_model

_ROWS, _BYTES = 512, 1 << 26  # limits of the compared rows, with their outputs
_TABLE_ROWS, _ROWS_OF_COLUMNS = 128, 4  # rows of a batch; rows of columns may be long

Constants = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Original:
    """A sealed model, held-out rows, and the model's outputs on them.

    Attributes:
        spec: The run.
        schema: Schema of the dataset.
        weights: File of the sealed weights.
        model: The model, in evaluation mode.
        call: Arguments of `forward`.
        steps: Steps before `forward`.
        constants: Shift and scale of `data.normalize` [*feature_shape] float32, or None.
        split: Split of the rows.
        batches: Inputs of the exported model, by name, for each batch.
        outputs: Outputs of the original model on the same rows, by name, for each batch.
        varying: Names of the tensors whose second dimension is the length of a row.
        prepare: Preprocessing of a table inside the exported model, or None.
    """

    spec: RunSpec
    schema: DatasetSchema
    weights: Path
    model: pl.LightningModule
    call: Call
    steps: ExportSteps
    constants: Constants | None
    split: str
    batches: list[Tensors]
    outputs: list[Tensors]
    varying: frozenset[str]
    prepare: TableFeatures | None = None

    def deployed(self, model: torch.nn.Module | None = None) -> "Deployed":
        """Return the model, or another one, with the normalisation inside."""
        return deployed(
            model or self.model,
            self.call,
            self.steps,
            self.constants,
            self.prepare,
            is_raw=self.is_raw,
        )

    @property
    def is_raw(self) -> bool:
        """Whether features that are integers stay integers."""
        return self.spec.settings.data.normalize == "raw"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the exported model's inputs."""
        return self.prepare.names if self.prepare else self.call.names

    @property
    def num_rows(self) -> int:
        """Number of compared rows."""
        return sum(len(next(iter(batch.values()))) for batch in self.batches)

    @property
    def sample(self) -> tuple[torch.Tensor, ...]:
        """Two rows for tracing; with one row, a tracer would take the batch size for fixed."""
        batch = max(
            self.batches, key=lambda one: sum(tensor[:2].numel() for tensor in one.values())
        )
        rows = [tensor[:2] for tensor in batch.values()]
        return tuple(one if len(one) > 1 else one.repeat_interleave(2, 0) for one in rows)

    @property
    def is_one_length(self) -> bool:
        """Whether all batches have rows of one length."""
        return len({tuple(self._lengths(batch).items()) for batch in self.batches}) == 1

    @property
    def lengths(self) -> dict[str, str]:
        """Name of the length of each varying tensor; lengths that are always equal share a name."""
        of_batches = [self._lengths(batch) for batch in self.batches]
        seen = {name: tuple(one[name] for one in of_batches) for name in sorted(self.varying)}
        known = list(dict.fromkeys(seen.values()))
        return {
            name: f"length_{known.index(of) + 1}" if len(known) > 1 else "length"
            for name, of in seen.items()
        }

    def _lengths(self, batch: Tensors) -> dict[str, int]:
        return {name: batch[name].shape[1] for name in sorted(self.varying)}

    def difference(self, outputs: Sequence[Sequence[torch.Tensor]]) -> float:
        """Return the largest absolute difference from given outputs; inf if a shape differs."""
        found = 0.0
        for batch, mine in zip(outputs, self.outputs, strict=True):
            for one, other in zip(batch, mine.values(), strict=True):
                if one.shape != other.shape:
                    return float("inf")
                if one.numel():
                    difference = (one.double() - other.double()).abs().max()
                    found = float(torch.maximum(torch.tensor(found), difference))  # keeps NaN
        return found

    @property
    def largest(self) -> float:
        """Largest absolute output."""
        found = [of.double().abs() for batch in self.outputs for of in batch.values()]
        return max((float(of.max()) for of in found if of.numel()), default=0.0)


def deployed(
    model: torch.nn.Module, call: Call, steps: ExportSteps, constants: Constants | None,
    prepare: TableFeatures | None = None, *, is_raw: bool = False,
) -> "Deployed":  # fmt: skip
    """Return a model with the normalisation inside, in evaluation mode."""
    first: dict[str, torch.nn.Module] = {
        name: Pixels(of) for name, of in steps.normalize.items() if name in call.names
    }
    if "features" in call.names and (call.is_table or constants):
        last = Features(constants, is_raw=is_raw)
        first["features"] = (
            torch.nn.Sequential(first["features"], last) if "features" in first else last
        )
    whole = Deployed(model, call, first, prepare)
    whole.eval()
    return whole


def load_original(
    spec: RunSpec, datasets: Sequence[DatasetPlace], weights: Path, *, with_inside: bool
) -> Original:
    """Load a sealed model, and evaluate it on held-out rows.

    Args:
        spec: The run.
        datasets: Places of the run's datasets.
        weights: File of the sealed weights.
        with_inside: Whether the export contains the transform's normalisation.

    Raises:
        DataError: A shard is damaged, or the split has no rows.
        ConfigError: The model cannot be created, or `forward` cannot be called with the batches.
    """
    # too few rows to tune the number of workers
    data = structs.replace(spec.settings.data, workers=0)
    spec = structs.replace(spec, settings=structs.replace(spec.settings, data=data))
    run_batches = RunBatches(datasets, spec.settings, verify="always")
    schema = run_batches.manifest.schema
    steps = steps_of(spec.settings.data, schema, with_inside=with_inside)
    model = sealed_model(spec, schema, weights)
    normalize = Normalizer(run_batches, spec.settings.data.normalize, torch.float32)
    fitted, prepare = run_batches.manifest.preprocessing, None
    call: Call | None = None
    batches: list[Tensors] = []
    outputs: list[Tensors] = []
    size = 0
    is_inside = bool(fitted) and with_inside and not (steps.before or steps.inside or steps.collate)
    for whole, batch in _pairs(run_batches, datasets, spec, steps, is_raw=is_inside):
        if call is None:
            call = find_call(model, whole)
            if fitted and is_inside and inputs_are_prepared(schema, call.names):
                prepare = TableFeatures(fitted)
        if prepare:
            batches.append(raw_inputs(prepare.fitted, batch))
        else:
            given = whole if is_inside else batch
            batches.append({name: of.clone() for name, of in call.tensors(given).items()})
        with torch.inference_mode():
            found = call(model, [*call.tensors(normalize.batch(whole)).values()])
        outputs.append({n: _float(of).clone() for n, of in named_outputs(model, found).items()})
        size += sum(of.nbytes for part in (batches[-1], outputs[-1]) for of in part.values())
        if size > _BYTES or sum(len(next(iter(one.values()))) for one in batches) >= _ROWS:
            break
    if call is None:
        raise DataError(
            f"the {spec.settings.evaluation.split} split of {run_batches.manifest.dataset} has no rows, expected "
            "some to compare the export with; give it a share in the dataset's `splits`"
        )
    return Original(
        spec=spec, schema=schema, weights=weights, model=model, call=call, steps=steps,
        constants=normalize.constants, split=spec.settings.evaluation.split,
        batches=batches, outputs=outputs, prepare=prepare,
        varying=frozenset() if prepare else _varying(spec, schema, call, batches),
    )  # fmt: skip


def _float(output: torch.Tensor) -> torch.Tensor:
    return output.float() if output.is_floating_point() else output


def _pairs(
    run_batches: RunBatches, datasets: Sequence[DatasetPlace], spec: RunSpec, steps: ExportSteps, *,
    is_raw: bool,
) -> Iterator[tuple[Any, Any]]:  # fmt: skip
    """Yield each held-out batch with all steps, and without the steps inside the export.

    Args:
        is_raw: Whether the second batch has the stored columns of a preprocessed table.
    """
    split = spec.settings.evaluation.split
    is_table = not run_batches.manifest.schema.columns
    place: dict[str, Any] = {
        "batch": _TABLE_ROWS if is_table else _ROWS_OF_COLUMNS,
        "num_epochs": 1,
    }
    whole, _ = run_batches.held_out(split, **place)
    if is_raw:
        read_as = raw_manifest(run_batches.manifest)
        stored = RunBatches(datasets, spec.settings, verify="off", read_as=read_as)
        before, _ = stored.held_out(split, **place)
        yield from zip(whole.batches(), before.batches(), strict=True)
        return
    if not steps.inside:
        yield from ((batch, batch) for batch in whole.batches())
        return
    written = [step.written for step in steps.before] or None
    data = structs.replace(spec.settings.data, eval_transform=written)
    # the other reader verifies the shards
    other = RunBatches(datasets, structs.replace(spec.settings, data=data), verify="off")
    before, _ = other.held_out(split, **place)
    yield from zip(whole.batches(), before.batches(), strict=True)


def _varying(
    spec: RunSpec, schema: DatasetSchema, call: Call, batches: Sequence[Tensors]
) -> frozenset[str]:
    data, columns = spec.settings.data, columns_of(schema)
    packed = {data.pack.column, *data.pack.with_} if data.pack else set()
    return frozenset(
        name
        for name in call.names
        if batches[0][name].ndim > 1
        and (
            name in packed
            or (name in columns and columns[name].varies and columns[name].kind == "array")
            or len({batch[name].shape[1] for batch in batches}) > 1
        )
    )


class Deployed(pl.LightningModule):
    """A model with the normalisation of its inputs.

    A LightningModule, since Lightning can trace its own modules.

    Args:
        model: The sealed model.
        call: Arguments of the model's `forward`.
        steps: First step of each input, by name.
        prepare: Preprocessing of a table, before the steps.
    """

    def __init__(
        self, model: torch.nn.Module, call: Call, steps: Mapping[str, torch.nn.Module],
        prepare: TableFeatures | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.call, self.prepare = model, call, prepare
        self.steps = torch.nn.ModuleList(steps.get(n, torch.nn.Identity()) for n in call.names)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return the model's outputs: a tensor, or a tuple in the order of `named_outputs`."""
        if self.prepare is not None:
            made = self.prepare(dict(zip(self.prepare.names, tensors, strict=True)))
            tensors = tuple(made[name] for name in self.call.names)
        ready = [step(tensor) for step, tensor in zip(self.steps, tensors, strict=True)]
        found = tuple(named_outputs(self.model, self.call(self.model, ready)).values())
        return found[0] if len(found) == 1 else found


class Features(torch.nn.Module):
    """Normalisation of a table's features.

    Args:
        constants: Shift and scale [*feature_shape] float32; None for no normalisation.
        is_raw: Whether integers stay integers.
    """

    shift: torch.Tensor | None
    scale: torch.Tensor | None

    def __init__(
        self, constants: tuple[torch.Tensor, torch.Tensor] | None, *, is_raw: bool = False
    ) -> None:
        super().__init__()
        self.is_raw = is_raw
        shift, scale = constants or (None, None)
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return stored features [B, *feature_shape] as normalised float32."""
        if self.is_raw and not features.is_floating_point():
            return features
        features = features.to(torch.float32)
        if self.shift is not None and self.scale is not None:
            features = (features - self.shift) * self.scale
        return features


class Pixels(torch.nn.Module):
    """The transform `normalize` for a batch of images."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, normalize: Normalize) -> None:
        super().__init__()
        self.register_buffer("scale", torch.from_numpy(normalize.scale.copy()))
        self.register_buffer("shift", torch.from_numpy(normalize.shift.copy()))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return [B, channels, height, width] float32 of pixels [B, height, width, channels]."""
        return pixels.permute(0, 3, 1, 2).to(torch.float32) * self.scale - self.shift

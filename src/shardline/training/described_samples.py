"""Let a model describe single samples of an evaluation by `test_step`: typical and hardest samples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import move_data_to_device
from msgspec import structs

from shardline.config.hub_models import open_tokenizer
from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.config.settings.run_settings import Pack
from shardline.core.errors import ConfigError
from shardline.data.columns import columns_of
from shardline.data.datamodule import Normalizer
from shardline.data.run_batches import RunBatches
from shardline.records.datasets import DatasetSchema
from shardline.records.evaluations import SampleView, ShownSamples
from shardline.training.evaluation_ranks import EvaluationRanks
from shardline.training.sample_views import SampleViews
from shardline_io.order.blocks import BlockOrder
from shardline_io.order.held_out import PickedOrder

MAX_SAMPLES = 8  # of each kind; fewer than for tables, since their images are larger
LOSSES = "sample_losses"


class DescribedSamples(pl.Callback):
    """Collects the losses that a `test_step` returns, and lets the model describe samples.

    Samples are chosen by loss and by place in the split alone, and rank 0 describes each of them in
    a batch of its own. So the record has the same bytes on any number of ranks.

    Args:
        spec: The run.
        run_batches: Reader of the run's datasets.
        order: Block order of this rank.
        datasets: Places of the datasets, in the order of `run_batches`.
    """

    def __init__(
        self,
        spec: RunSpec,
        run_batches: RunBatches,
        order: BlockOrder,
        datasets: Sequence[DatasetPlace],
    ) -> None:
        self._spec, self._run_batches, self._order, self._datasets = (
            spec,
            run_batches,
            order,
            datasets,
        )
        self._what = f'run "{spec.title}": the model\'s describe_sample'
        self._losses, self._places = np.zeros(0), np.zeros(0, np.int64)

    def on_test_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any,
        batch_idx: int, dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Keep the places of the block's largest losses."""
        if not isinstance(outputs, Mapping) or outputs.get(LOSSES) is None:
            return
        losses = torch.as_tensor(outputs[LOSSES]).detach().double().cpu().numpy()
        (first,), (last,) = self._order.bounds(
            np.array([self._order.rank + batch_idx * self._order.world_size])
        )
        if losses.shape != (last - first,):
            raise ConfigError(
                f'run "{self._spec.title}": the model\'s test_step returned {LOSSES} of shape {list(losses.shape)}, '
                f"expected [{last - first}], a loss for each sample of the batch; fix the shape, or leave {LOSSES} out"
            )
        self._keep(np.append(self._losses, losses), np.append(self._places, np.arange(first, last)))

    def _keep(self, losses: np.ndarray, places: np.ndarray) -> None:
        # NaN counts as the largest loss; equal losses are sorted by place
        chosen = np.lexsort((places, -np.where(np.isnan(losses), np.inf, losses)))[:MAX_SAMPLES]
        self._losses, self._places = losses[chosen], places[chosen]

    def result(
        self, model: pl.LightningModule, normalize: Normalizer, ranks: EvaluationRanks,
        convert: Callable[[Any], Any],
    ) -> ShownSamples | None:  # fmt: skip
        """Return the record of the described samples on rank 0, None on other ranks.

        All ranks must call this after their last block.

        Args:
            normalize: Normaliser of the batches of `test_step`.
            convert: Function that converts a batch to the run's precision.

        Raises:
            ConfigError: `describe_sample` returned an unknown key or a value of another form.
        """
        parts = ranks.gather((self._losses, self._places))
        if ranks.rank:
            return None
        self._keep(*(np.concatenate(of) for of in zip(*parts, strict=True)))
        count = min(self._order.num_rows, MAX_SAMPLES)
        typical = ((2 * np.arange(count) + 1) * self._order.num_rows // (2 * count)).tolist()
        hardest = self._places.tolist()
        wanted = tuple(sorted({*typical, *hardest}))
        model.to(ranks.device).eval()
        views = dict(
            zip(wanted, self._described(model, normalize, ranks, convert, wanted), strict=True)
        )
        found = ShownSamples(typical=[views[place] for place in typical])
        if hardest:
            losses = [
                float(f"{loss:.6g}") if np.isfinite(loss) else None
                for loss in self._losses.tolist()
            ]
            worst = [
                {"row": views[place]["row"], "loss": loss, **views[place]}
                for place, loss in zip(hardest, losses, strict=True)
            ]
            found = structs.replace(found, hardest=worst)
        return found

    @torch.inference_mode()
    def _described(
        self, model: Any, normalize: Normalizer, ranks: EvaluationRanks,
        convert: Callable[[Any], Any], places: tuple[int, ...],
    ) -> Iterator[SampleView]:  # fmt: skip
        schema = self._run_batches.manifest.schema
        views = SampleViews(what=self._what, classes=schema.classes)
        stream, _ = self._run_batches.held_out(
            self._spec.settings.evaluation.split,
            batch=1,
            kind=partial(PickedOrder, places=places),
            num_epochs=1,
        )
        for batch in stream.batches():
            part = 0 if (parts := stream.batch_parts) is None else int(parts[0])
            row = int(stream.batch_ids[0])
            moved = normalize.batch(move_data_to_device(convert(batch), ranks.device))
            image = batch.get("image") if isinstance(batch, dict) else None
            image = image[0] if isinstance(image, torch.Tensor) else None
            spell = _speller(self._datasets[part], schema, self._spec.settings.data.pack)
            yield {"row": row, **views.view(model.describe_sample(moved), image, spell)}


def _speller(
    place: DatasetPlace, schema: DatasetSchema, pack: Pack | None
) -> Callable[[Sequence[int]], str]:
    """Return the function that turns a dataset's tokens into text: its tokenizer, UTF-8, or numbers."""
    if place.tokenizer:
        return open_tokenizer(place.tokenizer).text
    columns = columns_of(schema)
    varying = [pack.column] if pack else [name for name, of in columns.items() if of.varies]
    if varying and all(columns[name].dtype == "uint8" for name in varying):
        return lambda tokens: bytes(one % 256 for one in tokens).decode(errors="replace")
    return lambda tokens: " ".join(map(str, tokens))

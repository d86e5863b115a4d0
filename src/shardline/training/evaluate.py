"""Evaluate a sealed model on held-out data: every sample once, in bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import move_data_to_device
from msgspec import structs

from shardline.config.resolved import DatasetPlace, RunSpec
from shardline.core.errors import ConfigError
from shardline.core.world import World
from shardline.data.collate import Batch, ColumnTuple
from shardline.data.datamodule import HeldOutLoader, Normalizer, evaluated_dtype
from shardline.data.integrity import Policy
from shardline.data.run_batches import RunBatches
from shardline.records.datasets import DatasetSchema
from shardline.records.evaluations import Evaluated, ShownSamples
from shardline.training.consumed import Scored
from shardline.training.described_samples import DescribedSamples
from shardline.training.diagnostics import MAX_SAMPLES, Hardest, RowValues, SampleRows, Spread
from shardline.training.ensembles import check_scored
from shardline.training.evaluate_steps import by_test_step, by_validation_step
from shardline.training.evaluation_ranks import EvaluationRanks
from shardline.training.headline import choose_headline
from shardline.training.model import inputs_of, is_scorable, sealed_model
from shardline.training.models.classifier_base import Classifier
from shardline.training.named_metrics import NamedMetrics
from shardline.training.row_scores import Columns
from shardline.training.scoring import Task, blocks, make_task
from shardline.training.scoring_labels import WeightedMeans
from shardline.training.trainer import quieten_lightning
from shardline_io.column_names import WEIGHT
from shardline_io.order.blocks import BlockOrder
from shardline_io.order.lengths import in_rows

# output of forward, labels, and weights of the rows
Scorable = tuple[Any, torch.Tensor, torch.Tensor | None]


def evaluate(
    spec: RunSpec, *, model_file: Path, datasets: Sequence[DatasetPlace], verify: Policy = "first",
    has_test_step: bool = False, has_samples: bool = False, world: World | None = None,
) -> Evaluated | None:  # fmt: skip
    """Evaluate a sealed model, on one rank or several.

    The first of these methods that applies is used:

    1. The model has a `test_step`: its logged metrics.
    2. Rows are features and a label, or the model is a `Classifier` of a column: `forward` returns
       logits [B, C] (classification), values [B], [B, 1] or [B, T] (regression) or logits [B, T]
       (multilabel), which Shardline scores. If rows have weights, there are weighted means too.
       `evaluation.metrics` adds metrics. For labels of other shapes these are the only metrics.
    3. Otherwise: the metrics that `validation_step` logs.

    Args:
        spec: The run; `settings.evaluation` names split, batch, metrics and headline.
        datasets: Datasets that the run was trained on.
        verify: When a shard is verified against its checksum.
        has_test_step: Whether the model's source defines `test_step`.
        has_samples: Whether the model describes samples, see `DescribedSamples`.
        world: This rank's place in the job; None for one process on the CPU.

    Returns:
        The evaluation on rank 0, None on other ranks.

    Raises:
        ConfigError: A metric or the headline does not fit the model.
        DataError: Outputs have the wrong shape or are not finite.
    """
    settings = spec.settings
    quieten_lightning()
    run_batches = RunBatches(datasets, settings, verify=verify)
    schema = run_batches.manifest.schema
    dtype = evaluated_dtype(settings.precision)
    model = sealed_model(spec, schema, model_file).to(dtype)
    limit = in_rows(settings.evaluation.limit_test_batches, settings.evaluation.batch)
    split = settings.evaluation.split
    place = {"rank": world.rank, "world_size": world.world_size} if world else {}
    stream, order = run_batches.held_out(
        split, batch=settings.evaluation.batch, kind=BlockOrder, num_epochs=1, limit=limit, **place
    )
    assert isinstance(order, BlockOrder)
    if order.rank >= order.num_blocks:
        return None
    ranks = EvaluationRanks.of(world, settings.accelerator, order.num_blocks)
    if has_test_step:
        samples = DescribedSamples(spec, run_batches, order, datasets) if has_samples else None
        return by_test_step(spec, model, run_batches, HeldOutLoader(stream, order), ranks, samples)
    batches = stream.batches()
    first = next(batches)
    named = NamedMetrics(settings.evaluation.metrics, spec.title)
    is_scored = schema.task != "none" and is_scorable(model, first, schema)
    check_scored(spec, is_scored=is_scored)
    if not (is_scored or named):
        return _alone(spec, model, run_batches) if ranks.rank == 0 else None
    ranks.join()
    model.to(ranks.device)
    normalize = Normalizer(run_batches, settings.data.normalize, dtype)
    scored = Scored(stream)
    outputs = _outputs(model, normalize, chain([first], batches), ranks.device, schema, scored)
    result: Evaluated | None
    if is_scored:
        as_floats = ((output.float(), *more) for output, *more in outputs)
        result = _by_forward(spec, run_batches, as_floats, order, named, ranks, model)
    else:
        result = _by_metrics(spec, outputs, named)
    total = scored.total(ranks, order.num_rows, f'run "{spec.title}": the evaluation')
    if ranks.rank or result is None:
        return None
    known = {"split": split, "task": schema.task, "reference": run_batches.manifest.reference}
    return structs.replace(result, num_samples=total, **known)


def _alone(spec: RunSpec, model: pl.LightningModule, run_batches: RunBatches) -> Evaluated:
    """Evaluate a model by its `validation_step` on one rank, which reads the whole split."""
    evaluation = spec.settings.evaluation
    stream, order = run_batches.held_out(
        evaluation.split,
        batch=evaluation.batch,
        num_epochs=1,
        limit=in_rows(evaluation.limit_test_batches, evaluation.batch),
    )
    return by_validation_step(spec, model, run_batches, HeldOutLoader(stream, order))


def _by_forward(
    spec: RunSpec, run_batches: RunBatches, outputs: Iterable[Scorable], order: BlockOrder,
    named: NamedMetrics, ranks: EvaluationRanks, model: pl.LightningModule,
) -> Evaluated | None:  # fmt: skip
    """Return the task's metrics, the named metrics and samples on rank 0, None on other ranks."""
    evaluation, num_rows = spec.settings.evaluation, order.num_rows
    task = make_task(
        run_batches.manifest.schema,
        num_rows,
        run=spec.title,
        is_shipped=isinstance(model, Classifier),
    )
    typical, hardest = Spread(num_rows, MAX_SAMPLES), Hardest()
    rows = RowValues(evaluation.headline.metric if evaluation.headline else "", num_rows)
    weighted = WeightedMeans(run_batches.manifest.schema.task)
    for block in blocks(ranks.in_order(_scored(outputs, task, named), order)):
        for part in (task, typical, hardest, rows, weighted):
            part.add(block)
    further = named.result()  # combines all ranks, so each rank must call it
    if ranks.rank:
        return None
    result = task.result()
    metrics = {**result.metrics, **weighted.result(), **further}
    headline = choose_headline(
        metrics,
        wanted=evaluation.headline,
        what=f'run "{spec.title}": the evaluation',
        usual=result.headline,
    )
    described = SampleRows(run_batches.datasets, evaluation.split)
    samples = ShownSamples(
        typical=described.describe(typical.rows), hardest=described.describe(hardest.rows)
    )
    headline = rows.with_interval(headline)
    return structs.replace(result, metrics=metrics, headline=headline, samples=samples)


def _by_metrics(spec: RunSpec, outputs: Iterable[Scorable], named: NamedMetrics) -> Evaluated:
    """Return the named metrics of outputs for which no task has metrics."""
    for output, labels, _ in outputs:
        named.update(output, labels)
    metrics = named.result()
    headline = choose_headline(
        metrics,
        wanted=spec.settings.evaluation.headline,
        what=f'run "{spec.title}": evaluation.metrics',
        modes=named.modes,
    )
    return Evaluated(metrics={**metrics}, headline=headline)


@torch.inference_mode()
def _call(model: pl.LightningModule, *inputs: Any) -> Any:
    return move_data_to_device(model(*inputs), torch.device("cpu"))


def _outputs(
    model: pl.LightningModule, normalize: Normalizer, batches: Iterable[Batch], device: torch.device,
    schema: DatasetSchema, scored: Scored,
) -> Iterator[Scorable]:  # fmt: skip
    """Yield outputs of `forward`, labels and, if rows have weights, weights of each batch, on the CPU.

    Args:
        schema: Schema of the dataset. A batch by column without the inputs of `forward` is passed whole.
        scored: Counter of the batches.
    """
    for batch in batches:
        scored.add()
        if not isinstance(batch, dict | ColumnTuple):
            yield _call(model, normalize(batch[0].to(device))), batch[1], None
            continue
        columns = batch.named if isinstance(batch, ColumnTuple) else batch
        if "labels" not in columns:
            raise ConfigError(
                f"evaluation.metrics is set, but the rows have the columns {', '.join(columns)}, expected a column "
                "`labels`; rename the labels' column, or define a test_step and log these metrics there"
            )
        seen: Any = normalize.batch(move_data_to_device(batch, device))
        weight = columns[WEIGHT] if schema.weighted else None
        inputs = inputs_of(model, seen) if isinstance(seen, dict) else [seen[0]]
        yield _call(model, *inputs), columns["labels"], weight


def _scored(outputs: Iterable[Scorable], task: Task, named: NamedMetrics) -> Iterator[Columns]:
    for output, labels, weight in outputs:
        columns = task.score(output, labels)  # checks the shapes first
        if weight is not None:
            columns = {**columns, WEIGHT: weight.double().numpy().copy()}
        if named:
            flat = output.ndim == 2 and output.shape[1] == 1 and columns["label"].ndim == 1
            flat = flat and "error" in columns
            named.update(output.squeeze(1) if flat else output, labels)
        yield columns

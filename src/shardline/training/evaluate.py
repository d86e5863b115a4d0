"""Evaluating a sealed model on held-out data, every sample once, in memory that no split fills."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.model_helpers import is_overridden
from safetensors.torch import load_file

from shardline.config.run_spec import DatasetPlace, RunSpec
from shardline.core.errors import ConfigError
from shardline.data.datamodule import HeldOutLoader, Normalizer
from shardline.data.feed import Feed
from shardline.data.integrity import Policy
from shardline.training.diagnostics import MAX_SAMPLES, Hardest, Samples, Spread
from shardline.training.model import make_model
from shardline.training.quiet import quieten_lightning
from shardline.training.scoring import Columns, Task, blocks, make_task


def evaluate(
    spec: RunSpec, *, model_file: Path, datasets: Sequence[DatasetPlace], verify: Policy = "first",
) -> dict[str, Any]:  # fmt: skip
    """Evaluate a sealed model.

    On batches of features and labels the model's `forward` gives logits [B, C] for classification
    and values [B] or [B, 1] for regression. On other columns its own step is the evaluation, see
    `_by_model`.

    Args:
        spec: the run; `settings.evaluation` names split and batch.
        datasets: those that the run was trained on.
        verify: when a shard is verified against its digest.

    Returns:
        Number of samples, metrics, the headline metric; for classification the
        `confusion` (see `Confusion.describe`) and the `calibration`, for
        regression the `residuals`; `samples`: `typical` ones, spread evenly
        over the split, and the `hardest`, those of the largest loss (of a
        classifier's mistakes).

    Raises:
        DataError: outputs have the wrong shape or are not finite.
    """
    settings = spec.settings
    feed = Feed(datasets, settings, verify=verify)
    schema = feed.manifest["schema"]
    model = make_model(spec, schema)
    model.load_state_dict(load_file(model_file))
    model.eval()
    split = settings.evaluation.split
    stream, order = feed.held_out(split, batch=settings.evaluation.batch, num_epochs=1)
    batches = stream.batches()
    first = next(batches)
    if not isinstance(first, tuple) or schema["task"] == "none":
        return _by_model(spec, model, feed, HeldOutLoader(stream, order))
    task = make_task(schema, order.num_rows, run=spec.title)
    typical, hardest = Spread(order.num_rows, MAX_SAMPLES), Hardest()
    normalize = Normalizer(feed, settings.data.normalize, torch.float32)
    scored = (_score(model, normalize, task, *batch) for batch in chain([first], batches))
    for block in blocks(scored):
        for part in (task, typical, hardest):
            part.add(block)
    samples = Samples(feed.datasets, split)
    return {
        "split": split,
        "task": schema["task"],
        "num_samples": order.num_rows,
        **task.result(),
        "samples": {
            "typical": samples.describe(typical.rows),
            "hardest": samples.describe(hardest.rows),
        },
        "reference": feed.manifest.get("reference"),
    }


@torch.inference_mode()
def _score(
    model: torch.nn.Module, normalize: Normalizer, task: Task, features: torch.Tensor, labels: torch.Tensor
) -> Columns:  # fmt: skip
    return task.score(model(normalize(features)).float(), labels)


def _by_model(
    spec: RunSpec, model: pl.LightningModule, feed: Feed, loader: HeldOutLoader
) -> dict[str, Any]:
    """Evaluate a model by what its `test_step` logs over a split, or else its `validation_step`.

    Of these metrics `checkpoint.monitor` is the headline, with `val_` read as `test_` where only
    that is logged.

    Raises:
        ConfigError: the model logs no such metric; the message names those that it logs.
    """
    settings = spec.settings
    has_test = is_overridden("test_step", model)
    quieten_lightning()
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        precision="64-true" if settings.precision == "64-true" else "32-true",
    )  # fmt: skip
    run = trainer.test if has_test else trainer.validate
    (logged,) = run(model, loader, verbose=False)
    metrics = {name: float(value) for name, value in logged.items()}
    monitor = settings.checkpoint.monitor
    names = [monitor, monitor.replace("val", "test", 1)]
    metric = next((name for name in names if name in metrics), None)
    if metric is None:
        raise ConfigError(
            f'run "{spec.title}": the model\'s {"test_step" if has_test else "validation_step"} logs '
            f"{', '.join(metrics) or 'nothing'}, expected {' or '.join(dict.fromkeys(names))}, by checkpoint.monitor; "
            "log it there, or set checkpoint.monitor to what is logged"
        )
    return {
        "split": settings.evaluation.split,
        "task": feed.manifest["schema"]["task"],
        "num_samples": loader.num_rows,
        "metrics": metrics,
        "headline": {"metric": metric, "value": metrics[metric], "mode": settings.checkpoint.mode},
        "measured_by": "model",
        "reference": feed.manifest.get("reference"),
    }

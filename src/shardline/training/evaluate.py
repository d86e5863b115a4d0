"""Evaluating a sealed model on held-out data, every sample once, in memory that no split fills."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from shardline.config.run_spec import RunSpec
from shardline.data.datamodule import Dataset, Normalizer
from shardline.data.integrity import Policy
from shardline.data.stream import Batch
from shardline.training.diagnostics import MAX_SAMPLES, Hardest, Samples, Spread
from shardline.training.model import make_model
from shardline.training.scoring import Columns, Task, blocks, make_task


def evaluate(
    spec: RunSpec, *, model_file: Path, manifest: Path, shards: Path,
    verify: Policy = "first",
) -> dict[str, Any]:  # fmt: skip
    """Evaluate a sealed model.

    The model's `forward` gives logits [B, C] for classification and values [B]
    or [B, 1] for regression.

    Args:
        spec: the run; `settings.evaluation` names split and batch.
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
    dataset = Dataset(manifest, shards, verify=verify)
    schema = dataset.manifest["schema"]
    model = make_model(spec, schema)
    model.load_state_dict(load_file(model_file))
    model.eval()
    split, batch = settings.evaluation.split, settings.evaluation.batch
    window_bytes = settings.data.window_bytes
    order = dataset.held_out_order(split, batch=batch, window_bytes=window_bytes)
    task = make_task(schema, order.num_rows, run=spec.title)
    typical, hardest = Spread(order.num_rows, MAX_SAMPLES), Hardest()
    normalize = Normalizer(dataset.manifest, settings.data.normalize, torch.float32)
    batches = dataset.stream(order, num_epochs=1).batches()
    for block in blocks(_score(model, normalize, task, batch) for batch in batches):
        for part in (task, typical, hardest):
            part.add(block)
    samples = Samples(dataset, split)
    return {
        "split": split,
        "task": schema["task"],
        "num_samples": order.num_rows,
        **task.result(),
        "samples": {
            "typical": samples.describe(typical.rows),
            "hardest": samples.describe(hardest.rows),
        },
        "reference": dataset.manifest.get("reference"),
    }


@torch.inference_mode()
def _score(model: torch.nn.Module, normalize: Normalizer, task: Task, batch: Batch) -> Columns:
    return task.score(model(normalize(batch[0])).float(), batch[1])

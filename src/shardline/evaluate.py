"""Judging a sealed model on held-out data, every sample once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional

from shardline.datamodule import Dataset, Normalizer
from shardline.errors import DataError
from shardline.evidence import MAX_SAMPLES, Samples, calibration, evenly, largest, residuals
from shardline.integrity import Policy
from shardline.modelling import make_model


def evaluate(
    spec: Mapping[str, Any], *, model_file: Path, manifest: Path, shards: Path,
    verify: Policy = "first",
) -> dict[str, Any]:  # fmt: skip
    """Evaluate a sealed model.

    The model's `forward` gives logits [B, C] for classification and values [B]
    or [B, 1] for regression.

    Args:
        spec: the run's `run.json`; `settings.evaluation` names split and batch.
        verify: when a shard is held against its digest.

    Returns:
        Number of samples, metrics, the headline metric; for classification the
        confusion matrix (rows: true class) and the `calibration`, for
        regression the `residuals`; `samples`: `typical` ones, spread evenly
        over the split, and the `hardest`, those of the largest loss (of a
        classifier's mistakes).

    Raises:
        DataError: outputs have the wrong shape or are not finite.
    """
    settings = spec["settings"]
    dataset = Dataset(manifest, shards, verify=verify)
    schema = dataset.manifest["schema"]
    model = make_model(spec, schema)
    model.load_state_dict(load_file(model_file))
    outputs, labels = _predict(model, dataset, settings)
    if not bool(torch.isfinite(outputs).all()):
        raise DataError(
            f'run "{spec["name"]}": the model gave NaN or infinite outputs; it cannot be judged'
        )
    judged = _classification if schema["task"] == "classification" else _regression
    result, columns = judged(outputs, labels, schema, spec["name"])
    split = settings["evaluation"]["split"]
    return {
        "split": split,
        "task": schema["task"],
        "num_samples": len(labels),
        **result,
        "samples": _samples(dataset, split, columns),
        "reference": dataset.manifest.get("reference"),
    }


@torch.inference_mode()
def _predict(
    model: torch.nn.Module, dataset: Dataset, settings: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    model.eval()
    normalize = Normalizer(dataset.manifest, settings["data"]["normalize"], torch.float32)
    order = dataset.held_out_order(
        settings["evaluation"]["split"],
        batch=settings["evaluation"]["batch"],
        window_bytes=settings["data"]["window_bytes"],
    )
    outputs, labels = [], []
    for batch in dataset.stream(order, num_epochs=1).batches():
        outputs.append(model(normalize(batch[0])).float())
        labels.append(batch[1].clone())
    return torch.cat(outputs), torch.cat(labels)


def _samples(
    dataset: Dataset, split: str, columns: Mapping[str, np.ndarray]
) -> dict[str, list[dict[str, Any]]]:
    samples, loss = Samples(dataset, split, columns), columns["loss"]
    is_mistake = columns["label"] != columns["predicted"]
    return {
        "typical": samples.describe(evenly(len(loss), MAX_SAMPLES)),
        "hardest": samples.describe(largest(loss, among=is_mistake)),
    }


def _classification(
    logits: torch.Tensor, labels: torch.Tensor, schema: Mapping[str, Any], name: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    classes = schema["classes"]
    if logits.shape != (len(labels), len(classes)):
        raise DataError(
            f'run "{name}": forward gave shape {tuple(logits.shape)}, expected logits '
            f"({len(labels)}, {len(classes)}); mend the model's forward"
        )
    predicted = logits.argmax(dim=1)
    confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(confusion, (labels.numpy(), predicted.numpy()), 1)
    accuracy = float(np.trace(confusion) / len(labels))
    logits = logits.double()
    loss = float(functional.cross_entropy(logits, labels))
    confidence = (logits.amax(dim=1) - logits.logsumexp(dim=1)).exp()
    columns = {
        "label": labels,
        "predicted": predicted,
        "confidence": confidence,
        "loss": functional.cross_entropy(logits, labels, reduction="none"),
    }
    result = {
        "metrics": {"accuracy": accuracy, "loss": loss},
        "headline": {"metric": "accuracy", "value": accuracy, "mode": "max"},
        "confusion": {"classes": list(classes), "counts": confusion.tolist()},
        "calibration": calibration(confidence.numpy(), (predicted == labels).numpy()),
    }
    return result, {name: column.numpy() for name, column in columns.items()}


def _regression(
    values: torch.Tensor, labels: torch.Tensor, schema: Mapping[str, Any], name: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    values = values.squeeze(1) if values.ndim == 2 and values.shape[1] == 1 else values
    if values.shape != labels.shape:
        raise DataError(
            f'run "{name}": forward gave shape {tuple(values.shape)}, expected ({len(labels)},); '
            "mend the model's forward"
        )
    error = (values - labels).double()
    mse, mae = float((error**2).mean()), float(error.abs().mean())
    columns = {"label": labels.numpy(), "predicted": values.numpy(), "loss": (error**2).numpy()}
    result = {
        "metrics": {"mse": mse, "mae": mae},
        "headline": {"metric": "mse", "value": mse, "mode": "min"},
        "residuals": residuals(columns["label"], columns["predicted"]),
    }
    return result, columns

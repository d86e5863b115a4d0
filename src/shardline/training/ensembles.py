"""Average the outputs of sealed models: an ensemble in the place of one model."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch.nn import ModuleList
from torch.nn.functional import logsigmoid

from shardline.config.resolved import RunSpec
from shardline.config.settings.run_settings import Ensemble
from shardline.core.errors import ConfigError, DataError


def check_scored(spec: RunSpec, *, is_scored: bool) -> None:
    """Reject an ensemble whose outputs have no known meaning.

    Args:
        is_scored: Whether Shardline scores what `forward` returns.

    Raises:
        ConfigError: The run is an ensemble, and the model computes its metrics or predictions itself.
    """
    if isinstance(spec.settings.combined, Ensemble) and not is_scored:
        raise ConfigError(
            f'run "{spec.title}": ensemble averages what forward returns for classes, flags or numbers, but the rows '
            f"or the model {spec.model_class} have outputs of another kind, or steps of their own; use average, which "
            "averages the weights"
        )


def join_outputs(
    models: Sequence[pl.LightningModule], task: str, outputs: Literal["probabilities", "logits"], run: str
) -> pl.LightningModule:  # fmt: skip
    """Return the first model, whose `forward` now returns the average outputs of all models.

    An average of probabilities is returned as logits of these probabilities, so all code that gets logits of a single
    model gives the same for an ensemble.

    Args:
        models: Models of one class.
        task: Task of the dataset, see `DatasetSchema`.
        outputs: What is averaged if outputs are logits. Numbers are averaged as they are.
        run: Name of the run, for errors.
    """
    first, *others = models
    own_forward, members = first.forward, ModuleList(others)
    first.add_module("_ensemble", members)  # moved and converted with the first model
    kinds = {"classification": _classes, "multilabel": _flags}
    join = kinds.get(task, _values) if outputs == "probabilities" else _values

    def forward(*inputs: Any, **named: Any) -> torch.Tensor:
        found = [own_forward(*inputs, **named), *(one(*inputs, **named) for one in members)]
        shapes = {tuple(one.shape) if isinstance(one, torch.Tensor) else None for one in found}
        if None in shapes or len(shapes) > 1:
            raise DataError(
                f'run "{run}": the members of the ensemble returned '
                f"{' and '.join(_shown(one) for one in found[:2])}, expected tensors of one shape; name runs whose "
                "models return one tensor of the same outputs"
            )
        return join(torch.stack([one.double() for one in found])).to(found[0].dtype)

    first.forward = forward  # type: ignore[method-assign]
    return first


def _shown(output: Any) -> str:
    return f"{[*output.shape]}" if isinstance(output, torch.Tensor) else type(output).__name__


def _values(stacked: torch.Tensor) -> torch.Tensor:
    return stacked.mean(dim=0)


def _classes(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of the average probabilities of classes [B, C]."""
    return logits.log_softmax(dim=2).logsumexp(dim=0) - math.log(len(logits))


def _flags(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits of the average probabilities of flags [B, T]."""
    return logsigmoid(logits).logsumexp(dim=0) - logsigmoid(-logits).logsumexp(dim=0)

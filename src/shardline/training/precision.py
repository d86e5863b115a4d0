"""Precisions of 64 and 16 bits: the types of weights, of inputs and of metrics."""

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torchmetrics import Metric

from shardline.core.dtypes import is_narrow
from shardline.data.datamodule import model_dtype

# unlike `Module.to`, these leave the states of metrics as they are
_ROUND = {torch.float64: "double", torch.bfloat16: "bfloat16", torch.float16: "half"}


def round_weights(model: pl.LightningModule, precision: str) -> None:
    """Give the weights of a model the type of a `precision` setting.

    Lightning does so only after restoring a state, which would round its weights.
    """
    if name := _ROUND.get(model_dtype(precision)):
        getattr(model, name)()


def keep_inputs(trainer: pl.Trainer, precision: str) -> None:
    """Keep Lightning from rounding batches to 16 bits before `Normalizer` has normalised them."""
    if is_narrow(model_dtype(precision)):
        trainer.precision_plugin.convert_input = lambda data: data  # type: ignore[method-assign]


def metric_callbacks(precision: str) -> list[Callback]:
    """Return the callback that an evaluation needs so that metrics are not summed in 16 bits."""
    return [WideMetrics()] if is_narrow(model_dtype(precision)) else []


class WideMetrics(Callback):
    """Makes metrics compute in 64 bits with weights of 64 bits, and in 32 bits with weights of 16 bits.

    A metric computes in the default type at the time of its last move. Lightning moves metrics with the model,
    and again after their first logged batch. With 64 bits, the first batches of an attempt would otherwise differ
    in the last bit. With 16 bits, Lightning rounds the sums of metrics too: a sum of ones in bfloat16 stays at 256.
    """

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move the metrics again, after Lightning has moved the model to the device."""
        metrics = [one for one in pl_module.modules() if isinstance(one, Metric)]
        with trainer.precision_plugin.forward_context():
            if torch.get_default_dtype() == torch.float64:
                for metric in metrics:
                    metric.to(metric.device)
                return
        for metric in metrics:
            metric.to(torch.float32)

    on_validation_start = on_fit_start  # of a Trainer that only validates
    on_test_start = on_fit_start

"""Evaluate a sealed model by the metrics that its `test_step` or `validation_step` logs."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

import pytorch_lightning as pl
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from msgspec import structs
from pytorch_lightning.utilities.model_helpers import is_overridden
from torchmetrics import Metric

from shardline.config.resolved import RunSpec
from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import ConfigError
from shardline.core.lightning_compat import new_trainer
from shardline.data.collate import Batch
from shardline.data.datamodule import HeldOutLoader, Normalizer, model_dtype
from shardline.data.run_batches import RunBatches
from shardline.records.evaluations import Evaluated, HeadlineValue
from shardline.training.consumed import Scored
from shardline.training.described_samples import DescribedSamples
from shardline.training.evaluation_ranks import EvaluationRanks
from shardline.training.headline import choose_headline
from shardline.training.logged import LoggedMetrics
from shardline.training.named_metrics import tell_kept_outputs
from shardline.training.precision import keep_inputs, metric_callbacks
from shardline.training.trainer import quieten_lightning
from shardline.training.unused_logger import UnusedLogger


class _HeldOut(pl.LightningDataModule):
    """A held-out split, normalised like the batches of the training."""

    def __init__(self, loader: HeldOutLoader, normalize: Normalizer) -> None:
        super().__init__()
        self._loader, self._normalize = loader, normalize

    def test_dataloader(self) -> HeldOutLoader:
        """Return the batches of the split."""
        return self._loader

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Normalise a batch on the device that uses it."""
        return self._normalize.batch(batch)


def by_test_step(
    spec: RunSpec, model: pl.LightningModule, run_batches: RunBatches, loader: HeldOutLoader,
    ranks: EvaluationRanks, samples: DescribedSamples | None = None,
) -> Evaluated | None:  # fmt: skip
    """Evaluate a model by the metrics that its `test_step` logs; return None except on rank 0.

    Ranks have different numbers of blocks, so a step must not wait for another rank. The process
    group is formed only after the last block.

    The headline is `evaluation.headline`, else `checkpoint.monitor`, else the first logged metric
    whose direction (higher or lower is better) is known.

    Args:
        samples: Callback that describes samples; None if the model describes none.

    Raises:
        ConfigError: Nothing is logged, the headline is not logged, the direction of no metric is
            known, or the step waits for other ranks.
    """
    settings = spec.settings
    what = f'run "{spec.title}": the model\'s test_step'
    normalize = Normalizer(run_batches, settings.data.normalize, model_dtype(settings.precision))
    metrics = {name: one for name, one in model.named_modules() if isinstance(one, Metric)}
    tell_kept_outputs(metrics)
    logged = LoggedMetrics(model, what, ranks)
    scored = Scored(loader.stream)
    trainer = _trainer(spec, [logged, scored, *([samples] if samples else [])], ranks)
    if ranks.size > 1:
        model.all_gather = partial(_refuse, what)  # type: ignore[method-assign]
    try:
        results = trainer.test(model, datamodule=_HeldOut(loader, normalize), verbose=False)
    except (RuntimeError, ValueError) as error:
        if ranks.size > 1 and "process group has not been initialized" in str(error):
            _refuse(what)
        raise
    total = scored.total(ranks, loader.num_rows, what)
    values = logged.result(*results)
    convert = trainer.precision_plugin.convert_input
    described = samples.result(model, normalize, ranks, convert) if samples else None
    if ranks.rank:
        return None
    headline = choose_headline(
        values,
        wanted=settings.evaluation.headline,
        what=what,
        modes=logged.modes,
        usual=_monitored(settings, values),
    )
    result = _result(spec, run_batches, total, values, headline)
    return structs.replace(result, samples=described) if described else result


def _refuse(what: str, *_: Any, **__: Any) -> NoReturn:
    raise ConfigError(
        f"{what} waits for other ranks (all_gather or all_reduce), expected a step without communication, since ranks "
        "have different numbers of batches; log a torchmetrics metric or a number, which Shardline combines over ranks"
    )


def by_validation_step(
    spec: RunSpec, model: pl.LightningModule, run_batches: RunBatches, loader: HeldOutLoader
) -> Evaluated:
    """Evaluate a model by the metrics that its `validation_step` logs over a split.

    The headline is `evaluation.headline`, else `checkpoint.monitor`. If the model inherits a
    `test_step` from an installed package, that step is used instead. The monitored metric may then
    have `test` in its name in place of `val`.

    Raises:
        ConfigError: The model has neither step, or does not log the headline.
    """
    settings = spec.settings
    is_test = is_overridden("test_step", model)
    if not is_test and not is_overridden("validation_step", model):
        raise ConfigError(
            f'run "{spec.title}": {spec.model_class} has neither a test_step nor a validation_step, and the rows are '
            "not features with a class or a number as label, so Shardline cannot evaluate the model; define a "
            "test_step that logs metrics (self.log), or set evaluation.metrics"
        )
    scored, ranks = Scored(loader.stream), EvaluationRanks()
    trainer = _trainer(spec, [scored], ranks)
    results = (trainer.test if is_test else trainer.validate)(model, loader, verbose=False)
    step = "test_step" if is_test else "validation_step"
    what = f'run "{spec.title}": the model\'s {step}'
    total = scored.total(ranks, loader.num_rows, what)
    (logged,) = results
    metrics = {name: float(value) for name, value in logged.items()}
    wanted, usual = settings.evaluation.headline, _monitored(settings, metrics)
    if usual is None and (wanted is None or not metrics):
        raise ConfigError(
            f'run "{spec.title}": the model\'s {step} logs '
            f"{', '.join(metrics) or 'nothing'}, expected {' or '.join(_names(settings))} (checkpoint.monitor); "
            "log this metric there, or set checkpoint.monitor to a logged metric"
        )
    headline = choose_headline(metrics, wanted=wanted, what=what, usual=usual)
    return _result(spec, run_batches, total, metrics, headline)


def _names(settings: RunSettings) -> dict[str, None]:
    """Return the names that the monitored metric may have in a test, in order."""
    monitor = settings.checkpoint.monitor
    return dict.fromkeys((monitor, monitor.replace("val", "test", 1)))


def _monitored(settings: RunSettings, metrics: Mapping[str, float]) -> HeadlineValue | None:
    """Return the monitored metric as a headline; None if it was not logged."""
    metric = next((name for name in _names(settings) if name in metrics), None)
    if metric is None:
        return None
    return HeadlineValue(metric=metric, value=metrics[metric], mode=settings.checkpoint.mode)


def _trainer(spec: RunSpec, callbacks: list[pl.Callback], ranks: EvaluationRanks) -> pl.Trainer:
    quieten_lightning()
    is_cpu = ranks.device.type == "cpu"
    precision = spec.settings.precision
    trainer = new_trainer(
        accelerator="cpu" if is_cpu else "gpu", devices=1 if is_cpu else [ranks.device.index],
        plugins=[LightningEnvironment()], logger=UnusedLogger(), enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        precision=precision if precision.endswith("-true") else "32-true",
        callbacks=[*callbacks, *metric_callbacks(precision)], inference_mode=spec.settings.trainer.inference_mode,
    )  # fmt: skip
    keep_inputs(trainer, precision)
    return trainer


def _result(
    spec: RunSpec, run_batches: RunBatches, num_samples: int, metrics: Mapping[str, float], headline: HeadlineValue,
) -> Evaluated:  # fmt: skip
    return Evaluated(
        split=spec.settings.evaluation.split,
        task=run_batches.manifest.schema.task,
        num_samples=num_samples,
        metrics={**metrics},
        headline=headline,
        measured_by="model",
        reference=run_batches.manifest.reference,
    )

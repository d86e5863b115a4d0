"""Evaluating a sealed model by its own step: what `test_step` logs, or else `validation_step`."""

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
from shardline.training.trainer import quieten_lightning


class _HeldOut(pl.LightningDataModule):
    """A held-out split, normalised as a training's batches are."""

    def __init__(self, loader: HeldOutLoader, normalize: Normalizer) -> None:
        super().__init__()
        self._loader, self._normalize = loader, normalize

    def test_dataloader(self) -> HeldOutLoader:
        """Return the batches of the split."""
        return self._loader

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Normalise a batch where it will be used."""
        return self._normalize.batch(batch)


def by_test_step(
    spec: RunSpec, model: pl.LightningModule, run_batches: RunBatches, loader: HeldOutLoader,
    ranks: EvaluationRanks, samples: DescribedSamples | None = None,
) -> Evaluated | None:  # fmt: skip
    """Evaluate a model by what its `test_step` logs over a split; None but on rank 0.

    Each rank tests its own blocks, and no process group stands until it has: ranks have unequally
    many, so a step must not wait for another rank.

    Of these metrics `evaluation.headline` ranks the run, or else `checkpoint.monitor`, or else the
    first that was logged of which it is known which end is better.

    Args:
        samples: describes samples, where the model does.

    Raises:
        ConfigError: nothing is logged, the headline is not among it, which end of it is better is
            not known, or the step would wait for other ranks.
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
        f"{what} waits for other ranks (all_gather, all_reduce), expected none that does: ranks have unequally many "
        "blocks; log a metric of torchmetrics, which is combined at the end, or a number, which Shardline combines"
    )


def by_validation_step(
    spec: RunSpec, model: pl.LightningModule, run_batches: RunBatches, loader: HeldOutLoader
) -> Evaluated:
    """Evaluate a model by what its `validation_step` logs over a split.

    Of these metrics `evaluation.headline` ranks the run, or else `checkpoint.monitor`. A `test_step`
    that the model's source does not show, as in an installed package, stands for the
    `validation_step`, and `val_` is read as `test_` where only that is logged.

    Raises:
        ConfigError: the model has no such step, or logs no such metric; the message names those that it logs.
    """
    settings = spec.settings
    is_test = is_overridden("test_step", model)
    if not is_test and not is_overridden("validation_step", model):
        raise ConfigError(
            f'run "{spec.title}": {spec.model_class} has neither a test_step nor a validation_step, and the rows are '
            "no features with a class or a number as the label, so nothing evaluates it; define test_step, and log "
            "there what is to be known of the model (self.log), or name evaluation.metrics for labels of other shapes"
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
            f"{', '.join(metrics) or 'nothing'}, expected {' or '.join(_names(settings))}, by checkpoint.monitor; "
            "log it there, or set checkpoint.monitor to what is logged"
        )
    headline = choose_headline(metrics, wanted=wanted, what=what, usual=usual)
    return _result(spec, run_batches, total, metrics, headline)


def _names(settings: RunSettings) -> dict[str, None]:
    """Return what the metric that chose the weights may be called in a test."""
    monitor = settings.checkpoint.monitor
    return dict.fromkeys((monitor, monitor.replace("val", "test", 1)))


def _monitored(settings: RunSettings, metrics: Mapping[str, float]) -> HeadlineValue | None:
    """Return the metric that chose the weights as a headline; None where it is not among the metrics."""
    metric = next((name for name in _names(settings) if name in metrics), None)
    if metric is None:
        return None
    return HeadlineValue(metric=metric, value=metrics[metric], mode=settings.checkpoint.mode)


def _trainer(spec: RunSpec, callbacks: list[pl.Callback], ranks: EvaluationRanks) -> pl.Trainer:
    quieten_lightning()
    is_cpu = ranks.device.type == "cpu"
    return new_trainer(
        accelerator="cpu" if is_cpu else "gpu", devices=1 if is_cpu else [ranks.device.index],
        plugins=[LightningEnvironment()], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        precision="64-true" if spec.settings.precision == "64-true" else "32-true",
        callbacks=callbacks,
    )  # fmt: skip


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

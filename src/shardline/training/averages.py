"""Average the sealed weights of other runs, in place of a training; one rank does so alone.

An ensemble averages outputs, so it has no weights of its own: its sealed file contains no tensor.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytorch_lightning as pl
from msgspec import structs
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers.logger import DummyLogger

from shardline.checkpoints.averages import Soup, Weights, check_alike, choose, mean_of
from shardline.checkpoints.boundaries import after_hook
from shardline.checkpoints.weights import load_weights, plain_name
from shardline.config.resolved import PlannedGeometry, RunSpec
from shardline.config.settings.run_settings import Average, Ensemble, RunSettings
from shardline.core.digests import file_sha256
from shardline.core.errors import ConfigError, Diverged
from shardline.core.files import write_bytes
from shardline.core.lightning_compat import batch_norms, ignore_signals, training_steps
from shardline.core.world import World
from shardline.data.datamodule import ShardDataModule
from shardline.launch.device import resolve_accelerator
from shardline.records.metrics import MetricLine
from shardline.records.origins import CombinedMember, CombinedRuns
from shardline.records.trainings import Training
from shardline.training.fit import check_validates, seal_weights
from shardline.training.heartbeat import Heartbeat
from shardline.training.model import make_model
from shardline.training.precision import round_weights
from shardline.training.rank_task import RankTask
from shardline.training.trainer import make_trainer
from shardline_io import heartbeat_memory

_TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """An average of weights.

    Attributes:
        record: How it was made.
        weights: The weights by name.
        metrics: Metrics of its validation.
        score: `checkpoint.monitor` of its validation; None for an ensemble.
        parameters: Names of the parameters in `weights`, which contains buffers too.
    """

    record: CombinedRuns
    weights: Weights = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    score: float | None = None
    parameters: frozenset[str] = frozenset()


def seal_combined(task: RankTask, results: Path, world: World) -> tuple[Training, frozenset[str]]:
    """Seal an average or an ensemble; return its record and the names of its parameters.

    Args:
        results: Folder for the sealed files.
        world: This rank's place in the job, without other ranks.

    Raises:
        ConfigError, DataError, Diverged: See `average`.
    """
    spec, wanted = task.run, task.run.settings.combined
    if isinstance(wanted, Ensemble):
        made = Averaged(
            record=CombinedRuns(kind="ensemble", members=_members(spec), how=wanted.outputs)
        )
    else:
        made = average(task, world)
    seal_weights(made.weights, spec, results / "model.safetensors")
    values = {name: value if math.isfinite(value) else None for name, value in made.metrics.items()}
    line = MetricLine(step=0, epoch=0, values=dict(sorted(values.items()))).to_json()
    text = f"{json.dumps(line)}\n" if values else ""
    write_bytes(task.work / "metrics.jsonl", text.encode())
    write_bytes(results / "metrics.jsonl", text.encode())
    training = Training(
        best_score=made.score, steps=0, epochs=0, stopped_early=False, resumed_step=0,
        combined=made.record,
    )  # fmt: skip
    return training, made.parameters


def _members(
    spec: RunSpec, chosen: Sequence[int] | None = None, scores: Sequence[Sequence[float]] = ()
) -> list[CombinedMember]:
    """Return the records of a run's members.

    Args:
        chosen: Positions of the members that count; None for all.
        scores: Of a greedy choice, `score` and `tried` of each member.
    """
    found = []
    for at, one in enumerate(spec.members):
        pair = [value if math.isfinite(value) else None for value in scores[at]] if scores else ()
        found.append(
            CombinedMember(
                run=one.run,
                sha256=file_sha256(one.file),
                is_chosen=chosen is None or at in chosen,
                **dict(zip(("score", "tried"), pair, strict=False)),
            )
        )
    return found


def average(task: RankTask, world: World) -> Averaged:
    """Average the weights of a run's members, as `settings.average` describes, and validate the average.

    The running statistics of batch norms are recomputed over an epoch of the training data, in the run's order of
    batches (the algorithm of `torch.optim.swa_utils.update_bn`). An average of one member is this member, unchanged.

    Args:
        world: This rank's place in the job, without other ranks.

    Raises:
        ConfigError: The members' weights differ in names or shapes, or the model cannot be validated.
        DataError: A file of weights cannot be read.
        Diverged: The average is NaN or infinite.
    """
    spec, wanted = task.run, task.run.settings.combined
    assert isinstance(wanted, Average)
    what = f'run "{spec.title}": average'
    check_alike({one.title: one.file for one in spec.members}, what)
    run, every = _Averages(task, world), range(len(spec.members))
    scores: list[float] = []
    if wanted.greedy:
        scores = [run.score_of([at]) for at in every]
        soup = choose(scores, run.score_of, spec.settings.checkpoint.mode)
    else:
        soup = Soup(chosen=tuple(every), score=run.score_of(every), tried=())
    metrics, statistics = run.measured[soup.chosen]
    weights = mean_of([spec.members[at].file for at in soup.chosen]) | statistics
    if not math.isfinite(soup.score):
        raise Diverged(
            f"{what}: {spec.settings.checkpoint.monitor} of the average is {soup.score}, so it cannot be sealed; "
            "average runs that begin from the same weights, or set greedy: validation"
        )
    pairs = [*zip(scores, soup.tried, strict=True)]
    is_mean = len(soup.chosen) > 1
    record = CombinedRuns(
        kind="average",
        members=_members(spec, soup.chosen, pairs),
        how="greedy" if wanted.greedy else "uniform",
        batch_norms=run.num_norms if is_mean else 0,
        batches=run.num_batches if is_mean else 0,
    )
    return Averaged(
        weights=weights, metrics=metrics, score=soup.score, record=record, parameters=run.parameters
    )


class _Averages:
    """Makes and validates averages of a run's members.

    Attributes:
        measured: Metrics and recomputed statistics by the positions of the members.
        num_norms: Number of batch norms of the model with running statistics.
        num_batches: Number of training batches of an epoch, as far as they were read.
        parameters: Names of the model's parameters.
    """

    def __init__(self, task: RankTask, world: World) -> None:
        self._task, self._files = task, [one.file for one in task.run.members]
        self._settings = _on_one_rank(task.run.settings)
        self._world = world
        self.measured: dict[tuple[int, ...], tuple[dict[str, float], Weights]] = {}
        self.num_norms = self.num_batches = 0
        self.parameters: frozenset[str] = frozenset()
        pin = resolve_accelerator(self._settings.accelerator, devices=1) == "gpu"
        self._data = ShardDataModule(
            self._settings, task.datasets, self._world, verify=task.runtime.verify, pin=pin
        )

    def score_of(self, members: Sequence[int]) -> float:
        """Return `checkpoint.monitor` of the average of members by position; NaN if it is none."""
        spec, settings = self._task.run, self._settings
        pl.seed_everything(settings.seed, workers=True, verbose=False)
        model = make_model(spec, self._data.manifest.schema)
        round_weights(model, settings.precision)
        model.configure_callbacks = list  # type: ignore[method-assign]  # weights alone, no callbacks
        check_validates(settings, model)
        weights = mean_of([self._files[at] for at in members])
        callback = _Averaging(weights, self._data, is_mean=len(members) > 1)
        trainer = make_trainer(
            settings, self._world, [callback, Heartbeat()], DummyLogger(), 1, timeout_s=_TIMEOUT_S
        )
        ignore_signals(trainer)
        trainer.validate(model, datamodule=self._data, verbose=False)
        monitor = settings.checkpoint.monitor
        found = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if monitor not in found:
            raise ConfigError(
                f'run "{spec.title}": checkpoint.monitor={monitor} was never logged, so no average can be validated; '
                f"set it to a metric that the model logs ({', '.join(sorted(found)) or 'none so far'})"
            )
        self.num_norms, self.num_batches = len(batch_norms(model)), callback.num_batches
        self.parameters = frozenset(
            plain_name(name) for name, _ in model.named_parameters(remove_duplicate=False)
        )
        self.measured[tuple(members)] = found, callback.statistics
        named = ", ".join(spec.members[at].title for at in members)
        print(f"average of {named}: {monitor} {found[monitor]:.6g}", flush=True)
        return found[monitor]


def _on_one_rank(settings: RunSettings) -> RunSettings:
    """Return settings with which one rank reads one pass in the micro-batches that all ranks would compute.

    A run with strategy=fsdp may have no device with room for a whole model, as in its evaluation.
    """
    trainer = structs.replace(
        settings.trainer,
        accumulate=PlannedGeometry.of(settings).parts,
        max_epochs=1,
        max_steps=-1,
    )
    data = structs.replace(settings.data, epoch="pass")  # an epoch may be a part of the data
    is_sharded = settings.strategy == "fsdp"
    accelerator = "cpu" if is_sharded else settings.accelerator
    return structs.replace(
        settings, nodes=1, devices=1, strategy="ddp", accelerator=accelerator, trainer=trainer, data=data
    )  # fmt: skip


class _Averaging(Callback):
    """Loads weights before a validation, and recomputes the running statistics of batch norms in them.

    Args:
        weights: The weights.
        data: Data module with the training data.
        is_mean: Whether the weights are an average, so that the statistics must be recomputed.

    Attributes:
        statistics: Recomputed statistics by name.
        num_batches: Number of training batches that were read.
    """

    def __init__(self, weights: Weights, data: ShardDataModule, *, is_mean: bool) -> None:
        self._weights, self._data, self._is_mean = weights, data, is_mean
        self.statistics: Weights = {}
        self.num_batches = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Act after the model's own hook, which may exchange weights."""
        after_hook(pl_module, "on_validation_start", lambda: self._begin(trainer, pl_module))

    def _begin(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        try:
            load_weights(module, self._weights)
        except RuntimeError as error:
            raise ConfigError(
                f"the members' weights do not fit the model of the average: {' '.join(str(error).split())}; give this "
                "row the members' model and model_args"
            ) from None
        if not (self._is_mean and batch_norms(module)):
            return
        if not module.automatic_optimization:
            raise ConfigError(
                f"the model {type(module).__name__} has batch norms and automatic_optimization = False, so its "
                "training_step cannot recompute their statistics; use a norm without running statistics, such as "
                "GroupNorm, or an ensemble of the runs"
            )
        self._renew(trainer, module)

    def _renew(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        norms = {
            name: one for name, one in module.named_modules() if one in set(batch_norms(module))
        }
        momenta = {name: norm.momentum for name, norm in norms.items()}
        modes = {one: one.training for one in module.modules()}
        for norm in norms.values():
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over all batches
        memory, loader = heartbeat_memory.mine(), self._data.train_dataloader()
        for _ in training_steps(trainer, loader.again()):
            self.num_batches += 1
            memory.tick(0, "validation")
        for one, mode in modes.items():
            one.training = mode
        for name, norm in norms.items():
            norm.momentum = momenta[name]
            for buffer, value in norm.named_buffers(prefix=name, recurse=False):
                if plain_name(buffer) in self._weights:
                    self.statistics[plain_name(buffer)] = value.detach().to("cpu", copy=True)

"""Checks of settings that depend on each other: geometry, environment, samples and evaluation."""

import os
import re
from collections.abc import Callable, Iterator
from math import lcm

from shardline.config.code_paths import COLLATE
from shardline.config.plans import RunPlan, WeightedDataset
from shardline.config.resolved import REMEDY as ELASTIC
from shardline.config.scripts import is_script
from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import Data, RunSettings
from shardline.config.validate import Problems
from shardline.core.errors import ConfigError
from shardline.core.machine import num_cpus, num_gpus
from shardline.core.suggest import suggest
from shardline.core.variables import check_given


def check_geometry(settings: RunSettings, where: str) -> None:
    """Reject a batch that ranks cannot split evenly, and strategies that cannot run."""
    nodes, devices = settings.nodes, settings.devices
    accumulate, batch = settings.trainer.accumulate, settings.global_batch
    parts, streams = nodes * devices * accumulate, settings.data.streams
    both = lcm(parts, streams)  # so that one remedy satisfies both checks
    lower, upper = batch // both * both, (batch // both + 1) * both
    if batch % parts:
        over = f"{nodes * devices} ranks (nodes={nodes} x devices={devices})"
        if accumulate > 1:
            over += f" in trainer.accumulate={accumulate} parts each"
        sizes = f"{lower} or {upper}" if lower else f"{upper}"
        raise ConfigError(
            f"{where}: global_batch={batch} cannot be split over {over}; "
            f"use {sizes}, or change nodes/devices"
        )
    if batch % streams:
        raise ConfigError(
            f"{where}: global_batch={batch} is not divisible by data.streams={streams}; "
            f"use {upper}, or change data.streams"
        )
    precision = settings.precision
    if settings.strategy == "fsdp" and precision not in ("32-true", "bf16-mixed"):
        raise ConfigError(
            f"{where}: strategy=fsdp does not support precision={precision}; use 32-true or bf16-mixed, or strategy=ddp"
        )
    if settings.strategy == "fsdp" and settings.divergence.policy == "skip":
        raise ConfigError(
            f"{where}: divergence.policy=skip cannot skip a step of sharded weights (strategy=fsdp); "
            "use divergence.policy=lower or stop"
        )
    if precision == "16-mixed" and settings.accelerator == "cpu":
        raise ConfigError(
            f"{where}: precision=16-mixed needs GPUs, and accelerator=cpu; use bf16-mixed or 32-true"
        )


def check_environment(runtime: Runtime, where: str) -> None:
    """Reject an environment that the launcher does not support, and variables that would change results."""
    environment, launcher = runtime.environment, runtime.launcher
    check_given(runtime.variables, where)
    if launcher == "azureml" and environment != "job":
        raise ConfigError(
            f"{where}: runtime.environment={environment}, but runtime.launcher=azureml starts the ranks in the "
            "environment of their Azure ML job; set runtime.environment=job, and name the image with azureml-image"
        )


def check_shards(settings: RunSettings, dataset: str, shards: int, where: str) -> None:
    """Reject fewer shards than an epoch visits, or than ranks that read their own shards."""
    data, ranks = settings.data, settings.nodes * settings.devices
    if data.epoch == "partition" and data.partition_shards > shards:
        raise ConfigError(
            f"{where}: data.partition_shards={data.partition_shards} is more than "
            f"datasets.{dataset}.shards={shards}; use at most {shards}, or cut the dataset into more shards"
        )
    if data.streams == 1:
        return
    visited = data.partition_shards if data.epoch == "partition" else shards
    needed = max(data.streams, ranks)
    if visited < needed:
        what = f"data.partition_shards={visited}"
        if shards < needed:  # an epoch cannot have more
            what = f"datasets.{dataset}.shards={shards}"
        raise ConfigError(
            f"{where}: {what} is too few for data.streams={data.streams} read by {ranks} ranks, "
            f"each of which needs its own shard; use at least {needed}, or data.streams=1"
        )


def check_devices(settings: RunSettings, runtime: Runtime, where: str) -> None:
    """Reject more ranks than this machine has devices, for local jobs."""
    nodes, launcher, hosts = settings.nodes, runtime.launcher, runtime.hosts
    if launcher == "none" and settings.devices > 1 and nodes == 1:
        raise ConfigError(
            f"{where}: devices={settings.devices}, but runtime.launcher=none starts one rank; "
            "use devices=1 or launcher=torchrun"
        )
    if launcher == "srun" and "SLURM_JOB_ID" not in os.environ:
        raise ConfigError(
            f"{where}: runtime.launcher=srun, but jobs run on this machine, outside of Slurm; "
            "use --profile profiles/slurm, or launcher=torchrun"
        )
    if nodes > max(1, len(hosts)) and not (settings.elastic and hosts):
        listed = (
            f"runtime.hosts lists {len(hosts)}" if hosts else "this profile runs on one machine"
        )
        raise ConfigError(
            f"{where}: nodes={nodes}, but {listed}; use nodes={max(1, len(hosts))}, list more hosts, "
            "or use a cluster profile"
        )
    gpus = num_gpus() if settings.accelerator != "cpu" else 0
    if settings.accelerator == "gpu" and not gpus:
        raise ConfigError(f"{where}: accelerator=gpu, but this machine has no GPU; use cpu or auto")
    if settings.trainer.sync_batchnorm and not gpus and nodes * settings.devices > 1:
        raise ConfigError(
            f"{where}: trainer.sync_batchnorm=true needs GPUs, and this machine has no GPU; drop it"
        )
    available, kind = (gpus, "GPUs") if gpus else (num_cpus(), "CPU cores")
    is_too_many = settings.devices > available and (gpus or not runtime.oversubscribe)
    if is_too_many and not settings.elastic:
        remedy = "" if gpus else ", or set runtime.oversubscribe: true"
        raise ConfigError(
            f"{where}: devices={settings.devices}, but this machine has {available} {kind}; "
            f"use at most {available}{remedy}, {ELASTIC}"
        )


_WORKERS = re.compile(r"auto|[0-9]{1,4}|(threads|processes):[1-9][0-9]{0,3}")


_NOT_OF_SCRIPTS = (
    "transform", "eval_transform", "collate", "pack", "class_weights", "epoch_samples",
)  # fmt: skip


def check_samples(
    settings: RunSettings, parts: tuple[WeightedDataset, ...], model_class: str, where: str, *,
    uses_io: bool = False,
) -> None:  # fmt: skip
    """Reject settings of samples that cannot be combined.

    Args:
        uses_io: Whether `model_class` is a script that imports `shardline_io`.
        where: File and row, the start of messages.

    Raises:
        ConfigError: Settings cannot be combined; one line for each.
    """
    data, problems = settings.data, Problems()
    is_mix, found = len(parts) > 1, problems.found
    if is_script(model_class) and not uses_io:
        found += _samples_of_script(data, is_mix=is_mix)
        if any(getattr(part.dataset.settings.splits, "folds", 0) for part in parts):
            found.append(
                "the dataset has splits.folds, but the training script does not import shardline_io, and so would read "
                "the rows of all folds; let the script get its batches from shardline_io.train()"
            )
    else:
        found += _of_mix(settings, is_mix=is_mix)
        found += _of_pack(data)
    found += _of_preprocessing(data, parts)
    if isinstance(data.class_weights, str) and data.class_weights != "balanced":
        hint = suggest(data.class_weights, ["balanced"])
        found.append(
            f"data.class_weights={data.class_weights} is neither `balanced` nor a table {{class: weight}}; {hint}"
        )
    if data.class_weights == {}:
        found.append("data.class_weights={} names no class; name one, or leave it out")
    if not _WORKERS.fullmatch(str(data.workers)):
        found.append(
            f"data.workers={data.workers} is not auto, 0, a number of threads, threads:n or processes:n; write one, "
            "such as threads:4"
        )
    problems.found = [f"{where}: {text}" for text in found]
    problems.refuse()


def _samples_of_script(data: Data, *, is_mix: bool) -> Iterator[str]:
    """Yield problems of a script that reads its samples itself."""
    reason = "the training script does not import shardline_io, and so reads its samples itself"
    remedy = "let the script get its batches from shardline_io.train()"
    if is_mix:
        yield f"dataset names a mix, but {reason}; name one dataset, or {remedy}"
    for key in _NOT_OF_SCRIPTS:
        if getattr(data, key) is not None:
            yield f"data.{key} is given, but {reason}; leave it out, or {remedy}"


def _of_mix(settings: RunSettings, *, is_mix: bool) -> Iterator[str]:
    """Yield problems of settings with samples drawn by weight."""
    data, weighted = settings.data, settings.data.class_weights is not None
    what = "a mix" if is_mix else "data.class_weights"
    if is_mix and weighted:
        yield "data.class_weights is given for a mix, which has weights of datasets instead; leave it out"
    if not is_mix and not weighted:
        if data.epoch_samples is not None:
            yield (
                f"data.epoch_samples={data.epoch_samples} is given, but an epoch of one dataset is a pass through it; "
                "leave it out, or give data.class_weights or a mix"
            )
        return
    if data.streams > 1:
        yield f"data.streams={data.streams} cannot be combined with {what}; use data.streams=1"
    if data.epoch == "partition":
        yield f"data.epoch=partition cannot be combined with {what}; set its length with data.epoch_samples"
    if data.last_batch == "pad":
        yield (
            f"data.last_batch=pad cannot be combined with {what}, whose batches are all full; "
            "use data.last_batch=drop"
        )
    if data.epoch_samples is not None and data.epoch_samples < settings.global_batch:
        yield (
            f"data.epoch_samples={data.epoch_samples} is less than global_batch={settings.global_batch}; "
            f"use at least {settings.global_batch}"
        )


def _of_preprocessing(data: Data, parts: tuple[WeightedDataset, ...]) -> Iterator[str]:
    """Yield problems of datasets that preprocess their features."""
    names = [one.dataset.names[0] for one in parts if one.dataset.source.get("preprocess")]
    if names and len(parts) > 1:
        yield (
            f"dataset {names[0]} of the mix has source.preprocess, which is fitted on one dataset alone; make one "
            "dataset of all files, or drop source.preprocess"
        )
    if names and data.normalize == "global":
        yield (
            f"data.normalize=global, but source.preprocess of dataset {names[0]} scales its features already; drop one "
            "of them, or set source.preprocess.scale"
        )


def _of_pack(data: Data) -> Iterator[str]:
    """Yield problems of settings with packing."""
    if data.pack is None:
        return
    if data.pack.column in data.pack.with_:
        yield f"data.pack.with names {data.pack.column}, which is data.pack.column itself; name others, or leave it out"
    if data.class_weights is not None:
        yield "data.class_weights is given with data.pack, whose samples contain rows of many classes; leave one out"
    if isinstance(data.collate, str) and data.collate in COLLATE and data.collate != "pad":
        yield f"data.collate={data.collate} is given with data.pack, whose samples have one length; leave one out"


def check_evaluation(
    settings: RunSettings, parts: tuple[WeightedDataset, ...], model_class: str, where: str,
    *, has_method: Callable[[str, str], bool | None],
) -> None:  # fmt: skip
    """Reject settings of the evaluation without effect, and runs without an evaluation.

    Args:
        where: File and row, the start of messages.
        has_method: Whether the class of an import path has a method, see `identity.resolution`.

    Raises:
        ConfigError: Settings have no effect, or nothing evaluates the model; one line for each.
    """
    found = _evaluation_of_script if is_script(model_class) else _evaluation_of_model
    problems = Problems()
    problems.found = [
        f"{where}: {text}" for text in found(settings, parts, model_class, has_method)
    ]
    problems.refuse()


def _evaluation_of_script(settings: RunSettings, *_: object) -> Iterator[str]:
    if settings.evaluation.metrics is not None:
        yield (
            "evaluation.metrics is given, but a training script evaluates its model itself; leave it out, and write "
            "its metrics to evaluation.json"
        )


def _evaluation_of_model(
    settings: RunSettings, parts: tuple[WeightedDataset, ...], model_class: str,
    has_method: Callable[[str, str], bool | None],
) -> Iterator[str]:  # fmt: skip
    if settings.evaluation.metrics is not None:
        if has_method(model_class, "test_step"):
            yield (
                f"evaluation.metrics is given, but {model_class} has a test_step, which is its evaluation; leave it "
                "out, and log these metrics in test_step"
            )
        return
    unlabelled = [part.dataset.name for part in parts if part.dataset.source.get("type") == "text"]
    steps = ("test_step", "validation_step")
    if unlabelled and all(has_method(model_class, step) is False for step in steps):
        yield (
            f"model={model_class} has neither a test_step nor a validation_step, and the rows of dataset "
            f"{unlabelled[0]} have no labels, so nothing would evaluate it; define test_step, and log its "
            "metrics there (self.log)"
        )


def evaluates_on_ranks(run: RunPlan, runtime: Runtime) -> bool:
    """Return whether a run may be evaluated on its own ranks; otherwise one CPU process evaluates it.

    One process evaluates sharded models, runs in a separate environment, jobs of Azure ML, and elastic
    runs whose metrics depend on the number of ranks.
    """
    settings = run.settings
    depends = "measured_by" in run.evaluation_document or settings.evaluation.metrics is not None
    return (
        predicts_on_ranks(settings, runtime)
        and not is_script(run.model_class)
        and not (settings.elastic and depends)
    )


def predicts_on_ranks(settings: RunSettings, runtime: Runtime) -> bool:
    """Return whether the ranks of a run may predict; otherwise one CPU process predicts."""
    return not (
        settings.strategy == "fsdp" or runtime.launcher == "azureml" or runtime.environment != "job"
    )

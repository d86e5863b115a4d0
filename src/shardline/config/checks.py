"""What a run's settings rule out together, and the code that its evaluation needs."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from math import lcm
from pathlib import Path
from typing import Any

from shardline.config.geometry import REMEDY as ELASTIC
from shardline.config.settings.run_settings import RunSettings
from shardline.config.settings.runtime import Runtime
from shardline.core.errors import ConfigError
from shardline.core.machine import num_cpus, num_gpus
from shardline.core.suggest import suggest
from shardline.core.variables import check_given
from shardline.identity import CodeIndex
from shardline.identity.code_index import INSTALLED

SHIPPED_MODELS = {
    "linear": "shardline.training.models.linear:Linear",
    "mlp": "shardline.training.models.mlp:MLP",
    "cnn": "shardline.training.models.cnn:CNN",
    "resnet": "shardline.training.models.resnet:ResNet",
    "gpt": "shardline.training.models.gpt:GPT",
    "unet": "shardline.training.models.unet:UNet",
    "hf:AutoModelForCausalLM": "shardline.training.models.hf_causal_lm:CausalLM",
    "hf:AutoModelForSequenceClassification": (
        "shardline.training.models.hf_sequence_classification:SequenceClassification"
    ),
    "hf:AutoModelForTokenClassification": "shardline.training.models.hf_token_classification:TokenClassification",
    "hf:AutoModelForMaskedLM": "shardline.training.models.hf_masked_lm:MaskedLM",
    "hf:AutoModelForImageClassification": "shardline.training.models.hf_image_classification:ImageClassification",
}
_IMAGE = "shardline.data.transforms.image_transforms"
SHIPPED_TRANSFORMS = {
    "decode": f"{_IMAGE}:Decode",
    "random_resized_crop": f"{_IMAGE}:RandomResizedCrop",
    "resize": f"{_IMAGE}:Resize",
    "center_crop": f"{_IMAGE}:CenterCrop",
    "flip": f"{_IMAGE}:Flip",
    "color_jitter": f"{_IMAGE}:ColorJitter",
    "normalize": f"{_IMAGE}:Normalize",
}


def check_geometry(settings: RunSettings, where: str) -> None:
    """Refuse a batch that the ranks cannot share, and strategies that cannot run."""
    nodes, devices = settings.nodes, settings.devices
    accumulate, batch = settings.trainer.accumulate, settings.global_batch
    parts, streams = nodes * devices * accumulate, settings.data.streams
    both = lcm(parts, streams)  # else the remedy of one check leads to the other
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
            f"{where}: global_batch={batch} cannot be shared by data.streams={streams}; "
            f"use {upper}, or change data.streams"
        )
    every, epochs = settings.trainer.validate_every_epochs, settings.trainer.max_epochs
    if every > epochs:
        raise ConfigError(
            f"{where}: trainer.validate_every_epochs={every} is more than trainer.max_epochs={epochs}, "
            f"so no weights could be chosen; use at most {epochs}"
        )
    precision = settings.precision
    if settings.strategy == "fsdp" and precision not in ("32-true", "bf16-mixed"):
        raise ConfigError(
            f"{where}: strategy=fsdp does not take precision={precision}; use 32-true or bf16-mixed, or strategy=ddp"
        )
    if settings.strategy == "fsdp" and settings.divergence.policy == "skip":
        raise ConfigError(
            f"{where}: divergence.policy=skip cannot leave out a step of sharded weights (strategy=fsdp); "
            "use divergence.policy=lower or stop"
        )
    if precision == "16-mixed" and settings.accelerator == "cpu":
        raise ConfigError(
            f"{where}: precision=16-mixed needs GPUs, and accelerator=cpu; use bf16-mixed or 32-true"
        )


def check_environment(runtime: Runtime, where: str) -> None:
    """Refuse an environment that the launcher cannot start ranks in, or that would change what they train."""
    environment, launcher = runtime.environment, runtime.launcher
    check_given(runtime.variables, where)
    if launcher == "azureml" and environment != "job":
        raise ConfigError(
            f"{where}: runtime.environment={environment}, but runtime.launcher=azureml starts the ranks in the "
            "environment of their Azure ML job; set runtime.environment=job, and name the image with azureml-image"
        )


def check_shards(settings: RunSettings, dataset: str, shards: int, where: str) -> None:
    """Refuse fewer shards than an epoch visits, or than ranks that read shards of their own."""
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
        if shards < needed:  # which an epoch cannot have more of
            what = f"datasets.{dataset}.shards={shards}"
        raise ConfigError(
            f"{where}: {what} is too few for data.streams={data.streams} read by {ranks} ranks, "
            f"each of which needs a shard of its own; use at least {needed}, or data.streams=1"
        )


def check_devices(settings: RunSettings, runtime: Runtime, where: str) -> None:
    """Refuse more ranks than this machine has devices, where jobs run on this machine."""
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
        raise ConfigError(
            f"{where}: accelerator=gpu, but this machine shows no GPU; use cpu or auto"
        )
    available, kind = (gpus, "GPUs") if gpus else (num_cpus(), "CPU cores")
    is_too_many = settings.devices > available and (gpus or not runtime.oversubscribe)
    if is_too_many and not settings.elastic:
        remedy = "" if gpus else ", or set runtime.oversubscribe: true"
        raise ConfigError(
            f"{where}: devices={settings.devices}, but this machine has {available} {kind}; "
            f"use at most {available}{remedy}, {ELASTIC}"
        )


def resolve_class(path: str, shipped: Mapping[str, str], code: CodeIndex, where: str) -> str:
    """Return the import path `module:Class` of a shipped name or a user's path.

    The class is looked up in the parsed source, so a misspelt model is found
    before any data is built; nothing is imported.

    Raises:
        ConfigError: no such shipped name, module or class.
    """
    if path in shipped:
        return shipped[path]
    module, _, name = path.partition(":")
    if not name or not all(part.isidentifier() for part in [*module.split("."), name]):
        raise ConfigError(
            f"{where}={path} is neither one of {', '.join(shipped)} nor an import path "
            f"such as mypkg.models:Net; {suggest(path, shipped)}"
        )
    if code.find(module) is None:
        if _is_installed(module.partition(".")[0], code):
            return path
        searched = ", ".join(map(str, code.roots[:3]))
        raise ConfigError(
            f"{where}={path}: no module {module} in {searched}; run from the folder that holds it, "
            "or set PYTHONPATH"
        )
    names = code.names(module)
    if name not in names and "*" not in names:
        raise ConfigError(
            f"{where}={path}: {code.find(module)} has no {name}; {suggest(name, names)}"
        )
    return path


def _is_installed(package: str, code: CodeIndex) -> bool:
    if code.find(package) is not None:
        return False  # the project's own, which lacks the module
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
    return any(INSTALLED & set(Path(place).parts) for place in places)


def metrics_of(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return `evaluation.metrics` in its one form: a list of tables with `type` and arguments."""
    listed = evaluation.get("metrics") or []
    return [{"type": one} if isinstance(one, str) else dict(one) for one in listed]


def metric_name(metric: Mapping[str, object]) -> str:
    """Return what a metric is called among those of an evaluation."""
    return str(metric.get("name") or str(metric.get("type")).rpartition(":")[2])


def import_path(metric: Mapping[str, object]) -> str:
    """Return the import path of a metric; without a module it is a class of torchmetrics."""
    kind = str(metric["type"])
    return kind if ":" in kind else f"torchmetrics:{kind}"

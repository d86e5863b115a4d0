"""Optimiser and schedule of a config of LightningCLI, for a model without its own."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import UNSET

from shardline.config.code_paths import SHIPPED_MODELS
from shardline.core.errors import ConfigError
from shardline.core.objects import NamedObject
from shardline.results.data_init.written import flow
from shardline.results.project_init.looked import LookedClass, look
from shardline.results.project_init.own_configs import OwnConfigs


def optimizer_lines(net: LookedClass, own: OwnConfigs, folder: Path) -> Iterator[str]:
    """Yield the lines of the config for a model without `configure_optimizers`."""
    if net.path in SHIPPED_MODELS or "configure_optimizers" in net.methods:
        return
    if not (given := own.named_section("optimizer")):
        yield "  optim: {name: adam, lr: 0.001} # the model has no configure_optimizers"
        return
    file, one = given
    arguments = dict(one.arguments)
    optim: dict[str, Any] = {"name": _of_torch(one, "torch.optim")}
    defaults = _defaults(optim["name"], folder)
    for name in ("lr", "weight_decay"):  # Shardline has defaults of its own for these
        value = arguments.pop(name, defaults.get(name, UNSET))
        optim |= {} if value is UNSET else {name: value}
    yield f"  optim: {flow(optim | ({'args': arguments} if arguments else {}))} # as in {file}"
    if schedule := own.named_section("lr_scheduler"):
        file, one = schedule
        arguments = dict(one.arguments)
        table = {"name": _of_torch(one, "torch.optim.lr_scheduler"), "interval": "epoch"}
        table |= {"monitor": arguments.pop("monitor")} if "monitor" in arguments else {}
        yield f"  schedule: {flow(table | ({'args': arguments} if arguments else {}))} # as in {file}"


def _defaults(path: str, folder: Path) -> dict[str, Any]:
    with suppress(ConfigError):  # the check reports a class that does not import
        return {one.name: one.value for one in look([path], folder)[0].arguments}
    return {}


def _of_torch(one: NamedObject, module: str) -> str:
    """Return an import path; LightningCLI accepts the bare name of a class of torch."""
    return one.colon_path if "." in one.path or ":" in one.path else f"{module}:{one.path}"

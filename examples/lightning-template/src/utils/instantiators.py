"""Objects from tables with `_target_`, as Hydra makes them."""

from functools import partial
from importlib import import_module
from typing import Any


def instantiate(config: Any, **more: Any) -> Any:
    """Return the object that a table describes; `_partial_: true` gives a partial object."""
    if isinstance(config, list):
        return [instantiate(one) for one in config]
    if not isinstance(config, dict):
        return config
    arguments = {key: instantiate(value) for key, value in config.items()} | more
    if "_target_" not in arguments:
        return arguments
    module, _, name = arguments.pop("_target_").rpartition(".")
    target = getattr(import_module(module), name)
    if arguments.pop("_partial_", False):
        return partial(target, **arguments)
    return target(**arguments)

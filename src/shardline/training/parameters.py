"""Parameters by patterns of their names: groups of the optimiser, and parameters that are not trained."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from types import MethodType
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import nn

from shardline.checkpoints.weights import plain_name
from shardline.config.checked_optim import MATCH
from shardline.core.errors import ConfigError
from shardline.core.suggest import did_you_mean

_SHOWN = 6


def parameter_groups(
    model: nn.Module, groups: Sequence[Mapping[str, Any]], scale: float, where: str
) -> list[dict[str, Any]]:
    """Return the groups of a model's trainable parameters, those without options first.

    The order of groups depends on the settings alone, and that of parameters on the model.

    Args:
        groups: `optim.groups`: a pattern and options each.
        scale: Factor of learning rates.
        where: Start of messages.

    Raises:
        ConfigError: A pattern matches no trainable parameter, or there is none.
    """
    by_matches: dict[tuple[int, ...], list[nn.Parameter]] = {}
    trained = {value: names for value, names in _names(model).items() if value.requires_grad}
    for value, names in trained.items():
        matches = tuple(i for i, one in enumerate(groups) if _is_match(one[MATCH], names))
        by_matches.setdefault(matches, []).append(value)
    if not trained:
        raise ConfigError(
            f"{where}: the model has no trainable parameter, expected at least one; freeze fewer parameters"
        )
    for place, one in enumerate(groups):
        if not any(place in matches for matches in by_matches):
            known = [name for names in trained.values() for name in names]
            raise _unmatched(
                f"{where}: optim.groups.{place}.match", one[MATCH], known, "trainable "
            )
    return [
        {"params": values, **_options(groups, matches, scale)}
        for matches, values in sorted(by_matches.items())
    ]


def _options(
    groups: Sequence[Mapping[str, Any]], matches: tuple[int, ...], scale: float
) -> dict[str, Any]:
    found = {key: value for i in matches for key, value in groups[i].items() if key != MATCH}
    return {**found, "lr": found["lr"] * scale} if "lr" in found else found


def freeze_parameters(model: pl.LightningModule, patterns: Sequence[str], where: str) -> None:
    """Freeze the parameters whose names match a pattern; those that `configure_model` makes, behind it.

    Raises:
        ConfigError: A pattern matches no parameter. For a model with `configure_model`, Lightning's call raises it.
    """
    if not patterns:
        return

    def freeze() -> None:
        names = _names(model)
        for place, pattern in enumerate(patterns):
            frozen = [value for value, known in names.items() if _is_match(pattern, known)]
            if not frozen:
                known = [name for of in names.values() for name in of]
                raise _unmatched(f"{where}: freeze.{place}", pattern, known, "")
            for value in frozen:
                value.requires_grad_(False)

    if not is_overridden("configure_model", model):
        freeze()
        return
    own = model.configure_model

    def configure_model(self: pl.LightningModule) -> None:
        own()
        freeze()

    model.configure_model = MethodType(configure_model, model)  # type: ignore[method-assign]


def _names(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Return the names of each parameter; tied parameters have several."""
    found: dict[nn.Parameter, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        found.setdefault(value, []).append(plain_name(name))
    return found


def _is_match(pattern: str, names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _unmatched(key: str, pattern: str, known: Sequence[str], kind: str) -> ConfigError:
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    remedy = did_you_mean(pattern, known, otherwise="write a pattern of one of these")
    shown = ", ".join(known[:_SHOWN])
    return ConfigError(
        f"{key}={pattern} matches no {kind}parameter of the model, which has {shown}{more}; {remedy}"
    )

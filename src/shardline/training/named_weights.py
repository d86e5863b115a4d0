"""Compare weights by name with those of a model, and load the weights that fit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from msgspec import structs
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from shardline.checkpoints.weights import plain_name
from shardline.core.errors import ConfigError
from shardline.core.suggest import did_you_mean
from shardline.records.origins import LoadedWeights
from shardline.training.weight_files import averages_in, is_lazy

_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Which weights of a file a model gets.

    Attributes:
        names: Name in the file by name in the model, of the weights that are loaded.
        record: What is loaded and what does not fit, without the file.
    """

    names: dict[str, str]
    record: LoadedWeights


def fit(
    model: nn.Module, weights: Mapping[str, torch.Tensor], *, rename: Mapping[str, str],
    ignore: Sequence[str], where: str,
) -> Fit:  # fmt: skip
    """Return which weights a model gets.

    Args:
        weights: Weights of the file, by plain name.
        rename: Prefix in the model by prefix in the file. The longest prefix applies.
        ignore: Patterns of names that keep their initial values.
        where: Start of messages.

    Raises:
        ConfigError: A prefix or pattern matches nothing, or two names of the file become one.
    """
    own = _own(model)
    source, renamed = _renamed(weights, rename, where)
    aliases: dict[int, list[str]] = {}
    for name, value in own.items():
        aliases.setdefault(id(value), []).append(name)
    known = [*own, *(name for name in source if name not in own)]
    _check_patterns(ignore, known, where)
    ignored = {name for name in known if _is_match(name, ignore)}
    # a tied weight has one value: one ignored name keeps it
    ignored |= {other for of in aliases.values() if ignored & {*of} for other in of}
    names: dict[str, str] = {}
    found = LoadedWeights(
        source="", sha256="", loaded=0, renamed=renamed, ignored=[name for name in known if name in ignored]
    )  # fmt: skip
    read: set[int] = set()
    for name, origin in source.items():
        if name in ignored:
            continue
        if name not in own:
            found.unexpected.append(name)
            continue
        mine, value = own[name], weights[origin]
        read.add(id(mine))
        if not is_lazy(mine) and mine.shape != value.shape:
            found.shapes.append(
                f"{name} {[*mine.shape]} in the model, {[*value.shape]} in the file"
            )
        elif _kind(mine) != _kind(value):
            found.kinds.append(f"{name} {_type(mine)} in the model, {_type(value)} in the file")
        else:
            names[name] = origin
    found.missing.extend(
        f"{name} {[] if is_lazy(value) else [*value.shape]}"
        for name, value in own.items()
        if id(value) not in read and name not in ignored
    )
    for tied in aliases.values():
        _check_tied([name for name in tied if name in names], weights, names, found)
    return Fit(names=names, record=structs.replace(found, loaded=len(names)))


def check_fit(found: LoadedWeights, *, is_strict: bool, where: str) -> None:
    """Reject weights that do not fit the model.

    Args:
        is_strict: Whether each weight must fit. Otherwise one must.
        where: Start of messages.

    Raises:
        ConfigError: The message lists all names that do not fit.
    """
    if not found.loaded:
        raise ConfigError(
            f"{where} has no weight that fits the model: {_listed(found)}; map prefixes with init.rename"
            f"{_suggested(found)}"
        )
    if is_strict and found.differences:
        averages = averages_in(found.unexpected)
        named = f" ({averages[0]} is of an average of weights)" if averages else ""
        raise ConfigError(
            f"{where} does not fit the model: {_listed(found)}{named}; map prefixes with init.rename"
            f"{_suggested(found)}, name what keeps its initial values in init.ignore, or set init.strict to false"
        )


def load(model: nn.Module, weights: Mapping[str, torch.Tensor], found: Fit, *, where: str) -> None:
    """Load the weights that fit into a model, which may be compiled, frozen or sharded in part.

    Raises:
        ConfigError: A parameter is on the meta device.
    """
    own = {plain_name(name): name for name in model.state_dict()}
    tensors = _own(model)
    for name in found.names:
        if tensors[name].is_meta:
            raise ConfigError(
                f"{where} cannot be loaded into {name}, which is on the meta device and has no values; make the "
                "model's parameters on the CPU, or allocate them in configure_model with to_empty"
            )
    values = {
        own[name]: _placed(weights[origin], tensors[name]) for name, origin in found.names.items()
    }
    model.load_state_dict(values, strict=False)


def _own(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a model by plain name; tied names have the same object."""
    return {
        plain_name(name): value
        for name, value in model.state_dict(keep_vars=True).items()
        if isinstance(value, torch.Tensor)
    }


def _renamed(
    weights: Mapping[str, Any], rename: Mapping[str, str], where: str
) -> tuple[dict[str, str], dict[str, int]]:
    """Return the names in the file by their names in the model, and how many names each prefix has changed."""
    counts = dict.fromkeys(rename, 0)
    by_length = sorted(rename, key=len, reverse=True)
    found: dict[str, str] = {}
    for name in weights:
        prefix = next((one for one in by_length if name.startswith(one)), None)
        target = name
        if prefix is not None:
            counts[prefix] += 1
            target = rename[prefix] + name.removeprefix(prefix)
        if target in found:
            raise ConfigError(
                f"{where} has {found[target]} and {name}, which init.rename makes both {target}; map one of them to "
                "another prefix"
            )
        found[target] = name
    for prefix in (one for one, count in counts.items() if not count):
        raise ConfigError(
            f'{where} has no name that begins with "{prefix}" (init.rename), but {_few([*weights])}; correct the '
            "prefix, or leave it out"
        )
    return found, counts


def _check_patterns(patterns: Sequence[str], known: Sequence[str], where: str) -> None:
    for place, pattern in enumerate(patterns):
        if not any(fnmatchcase(name, pattern) for name in known):
            remedy = did_you_mean(pattern, known, otherwise="write a pattern of one of these")
            raise ConfigError(
                f"{where}: init.ignore.{place}={pattern} matches no name of the model or of the file, which have "
                f"{_few(known)}; {remedy}"
            )


def _check_tied(
    tied: list[str],
    weights: Mapping[str, torch.Tensor],
    names: dict[str, str],
    found: LoadedWeights,
) -> None:
    """Keep one of the names that share a tensor, or none if their values in the file differ."""
    if len(tied) < 2:
        return
    first, *others = (weights[names[name]] for name in tied)
    if all(torch.equal(first, other) for other in others):
        return
    found.untied.append(" and ".join(tied))
    for name in tied:
        del names[name]


def _placed(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a value as the parameter needs it, whose shards lie on all ranks if the model made such."""
    if not isinstance(like, DTensor):
        return value
    value = value.to(like.device, like.dtype)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def _kind(value: torch.Tensor) -> str:
    """Return the kind of numbers of a tensor, within which a value keeps its meaning."""
    if value.dtype.is_complex:
        return "complex"
    if value.dtype.is_floating_point:
        # numbers of 8 bits have their scales elsewhere
        return "float8" if value.dtype.itemsize == 1 else "float"
    return "bool" if value.dtype == torch.bool else "integer"


def _type(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _is_match(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(found: LoadedWeights) -> str:
    return "; ".join(
        f"{what} ({len(names)}): {', '.join(names)}" for what, names in found.differences.items()
    )


def _suggested(found: LoadedWeights) -> str:
    """Return the prefix by which most names differ, as an example for `init.rename`; or nothing."""
    missing = [name.rpartition(" [")[0] for name in found.missing]
    for one in found.unexpected[:_SHOWN]:
        for other in missing:
            longer, shorter = (other, one) if len(other) > len(one) else (one, other)
            if not longer.endswith(f".{shorter}"):
                continue
            prefix = longer.removesuffix(shorter)
            pair = ("", prefix) if longer is other else (prefix, "")
            return f' such as {{"{pair[0]}": "{pair[1]}"}}'
    return ""


def _few(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")

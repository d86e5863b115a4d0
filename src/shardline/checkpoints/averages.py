"""Averages of sealed weights: the uniform average, and the choice of a greedy soup."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from shardline.core.errors import ConfigError, DataError

Weights = dict[str, torch.Tensor]

_LISTED = 20  # differences in a message


def check_alike(files: Mapping[str, Path], what: str) -> None:
    """Reject files whose weights differ in names, shapes or types.

    Args:
        files: Files of sealed weights by the title of their run, the first one as the standard.
        what: Start of the message.

    Raises:
        ConfigError: Weights differ; the message lists all differences.
        DataError: A file cannot be read.
    """
    (first, known), *others = [(title, _described(path)) for title, path in files.items()]
    found = []
    for title, other in others:
        for name in dict.fromkeys((*known, *other)):
            mine, its = known.get(name, "missing"), other.get(name, "missing")
            if mine != its:
                found.append(f"{name} is {its} in {title}, and {mine} in {first}")
    if found:
        more = f" (and {len(found) - _LISTED} more)" if len(found) > _LISTED else ""
        raise ConfigError(
            f"{what}: {'; '.join(found[:_LISTED])}{more}; expected weights of the same names, shapes and types; name "
            "runs of one model with the same model_args"
        )


def _described(path: Path) -> dict[str, str]:
    """Return type and shape of each weight of a file, by name."""
    try:
        with safe_open(path, framework="pt") as file:
            names = sorted(file.keys())
            parts = {name: file.get_slice(name) for name in names}
            return {
                name: f"{one.get_dtype()}{list(one.get_shape())}" for name, one in parts.items()
            }
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{path} cannot be read as weights ({error}); run `shardline verify`, which names damaged results"
        ) from None


def mean_of(files: Sequence[Path]) -> Weights:
    """Return the average of weights, by name; of a single file, exactly its weights.

    Numbers are added up in 64 bits in the order of the files, and rounded once to their own type. Integers and
    booleans, such as counts in buffers, are those of the first file.

    Args:
        files: Files that `check_alike` accepts; one weight of each is in memory at a time.
    """
    opened: list[Any] = [safe_open(path, framework="pt") for path in files]
    found = {}
    for name in sorted(opened[0].keys()):
        first = opened[0].get_tensor(name)
        if len(opened) > 1 and (first.is_floating_point() or first.is_complex()):
            total = first.to(_wide(first))
            for other in opened[1:]:
                total += other.get_tensor(name).to(total.dtype)
            first = (total / len(opened)).to(first.dtype)
        found[name] = first
    return found


def _wide(value: torch.Tensor) -> torch.dtype:
    return torch.complex128 if value.is_complex() else torch.float64


@dataclass(frozen=True, kw_only=True)
class Soup:
    """A choice of members.

    Attributes:
        chosen: Positions of the members in the average, ascending.
        score: Validation metric of their average.
        tried: For each member, the metric with which the choice was made: of the average of all members chosen
            before and this one. The best member has its own metric.
    """

    chosen: tuple[int, ...]
    score: float
    tried: tuple[float, ...]


def choose(scores: Sequence[float], score_of: Callable[[Sequence[int]], float], mode: str) -> Soup:
    """Choose the members of a greedy soup (Wortsman et al. 2022, arXiv:2203.05482, recipe 1).

    Members are tried from the best to the worst; of equal ones, in their order. A member is added if the metric of
    the average does not get worse.

    Args:
        scores: Validation metric of each member; NaN is worse than any number.
        score_of: Function that returns the metric of the average of members, given by ascending position.
        mode: `max` if higher metrics are better, else `min`.
    """

    def badness(score: float) -> float:
        return math.inf if math.isnan(score) else (-score if mode == "max" else score)

    best, *others = sorted(range(len(scores)), key=lambda at: badness(scores[at]))
    chosen, score, tried = [best], scores[best], {best: scores[best]}
    for member in others:
        with_it = sorted((*chosen, member))
        tried[member] = score_of(with_it)
        if badness(tried[member]) <= badness(score):
            chosen, score = with_it, tried[member]
    return Soup(
        chosen=tuple(sorted(chosen)),
        score=score,
        tried=tuple(tried[at] for at in range(len(scores))),
    )

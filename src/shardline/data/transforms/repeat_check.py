"""Transforms are run twice, to find those that depend on more than the sample and its generator."""

import hashlib
import math
import os
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from shardline.core.errors import ConfigError
from shardline.data.transforms.transform_steps import (
    Sample,
    TransformSpec,
    TransformSteps,
    Where,
    transform_all,
)
from shardline_io.order.chance import Key

Traced = tuple[str, str, bytes]

FEW = 4  # samples in opposite orders: of an even number none has as many before it in both
VARIABLE = "SHARDLINE_CHECK_TRANSFORMS"


def is_each_call_checked() -> bool:
    """Return whether the environment asks for a check of each call."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def check_samples(
    spec: TransformSpec, samples: Iterable[tuple[Key, Sample]], where: Where, *, limit_s: float = math.inf
) -> int:  # fmt: skip
    """Transform samples twice, and refuse a transform whose results are not a function of sample and generator.

    Two transforms are made, and are given each few samples in opposite orders, under other states of
    the global generators. To be called where no other thread draws random numbers.

    Args:
        samples: some samples, with their keys; no more than are looked at are taken.
        where: names the sample of a key.
        limit_s: seconds after which no further samples are taken.

    Returns:
        How many samples were looked at.

    Raises:
        ConfigError: a step draws from a generator of the whole process, or two calls gave different
            results; the message names step, sample, what differs and the remedy.
        DataError: a sample cannot be transformed.
    """
    end, number, left = time.monotonic() + limit_s, 0, iter(samples)
    one, other = spec.make(), spec.make()
    while (few := list(islice(left, FEW))) and (number == 0 or time.monotonic() < end):
        first = transform_all(partial(trace, one), few, where)
        with _other_states():
            second = transform_all(partial(trace, other), few[::-1], where)
        for (key, _), *traces in zip(few, first, second[::-1], strict=True):
            _compare(spec, where(key), *traces)
        number += len(few)
    return number


def _compare(
    spec: TransformSpec, place: str, first: Sequence[Traced], second: Sequence[Traced]
) -> None:
    for (name, once, result), (_, drawn, other) in zip(first, second, strict=True):
        if drawn := once or drawn:  # the first call may have imported torch
            raise refusal(
                spec,
                place,
                f"{name} draws random numbers from the global generator of {drawn}",
            )
        if result != other:
            raise refusal(
                spec, place, f"{name} gives two results for one sample and equal generators"
            )


def refusal(spec: TransformSpec, place: str, found: str) -> ConfigError:
    """Return the error of a transform whose results are not a function of sample and generator.

    Args:
        place: the sample.
        found: the step, and what it does.
    """
    remedy = "draw all chance from the generator that it is given, and keep nothing between calls"
    if not spec.has_chance:
        remedy = f"leave chance out of {spec.what}, and keep nothing between calls"
    inputs = "the sample" + " and the generator" * spec.has_chance
    return ConfigError(f"{place}: {found}, expected a function of {inputs} alone; {remedy}")


def trace(steps: TransformSteps, key: Key, sample: Sample) -> list[Traced]:
    """Return of each step its name, whose global generator it drew from, and its result as a digest.

    Raises:
        DataError, ConfigError: it cannot be transformed; the message names the step.
    """
    traced: list[Traced] = []
    before = _global_states()

    def note(name: str, result: Sample) -> None:
        nonlocal before
        now = _global_states()
        drawn = " and ".join(of for of, state in now.items() if before.get(of, state) != state)
        traced.append((name, drawn, digest_of(result)))
        before = now

    steps(key, sample, note=note)
    return traced


@contextmanager
def _other_states() -> Iterator[None]:
    """Give the global generators other states, and restore these."""
    kept = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    of_torch = torch.get_rng_state() if torch else None
    stir()
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        if torch:
            torch.set_rng_state(of_torch)


def stir() -> None:
    """Seed the global generators by the system's chance."""
    random.seed()
    np.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


def digest_of(sample: Sample) -> bytes:
    """Return the digest of a sample's content, whatever objects hold it."""
    digest = hashlib.sha256()
    _digest(sample, digest)
    return digest.digest()


def _global_states() -> dict[str, Any]:
    of_numpy: Any = np.random.get_state()
    words = of_numpy[1].tobytes(), *of_numpy[2:]
    states: dict[str, Any] = {"random": random.getstate(), "numpy.random": words}
    if torch := sys.modules.get("torch"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _digest(value: Any, digest: "hashlib._Hash") -> None:
    """Digest a value by its content, whatever objects hold it."""
    digest.update(type(value).__name__.encode())
    if isinstance(value, Mapping):
        for name, one in value.items():
            digest.update(repr(name).encode())
            _digest(one, digest)
    elif isinstance(value, list | tuple):
        digest.update(str(len(value)).encode())
        for one in value:
            _digest(one, digest)
    elif isinstance(value, bytes | str | int | float | None):
        digest.update(repr(value).encode())
    else:
        array = np.asarray(value)
        if array.dtype.hasobject:  # no array: what it holds, or its text without addresses
            found = getattr(value, "__dict__", None)
            text = re.sub(r"0x[0-9a-f]+", "", repr(value))
            return _digest(text if found is None else found, digest)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return None

"""Check that transforms are deterministic: run each twice and compare the results."""

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

FEW = 4  # samples per comparison; even, so that no sample has the same position in both orders
VARIABLE = "SHARDLINE_CHECK_TRANSFORMS"


def is_each_call_checked() -> bool:
    """Return whether the environment variable for a check of each call is set."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def check_samples(
    spec: TransformSpec, samples: Iterable[tuple[Key, Sample]], where: Where, *, limit_s: float = math.inf
) -> int:  # fmt: skip
    """Check that results of a transform depend on sample and generator alone, by transforming samples twice.

    Two instances get the same samples in opposite orders, with different states of the global
    generators. No other thread may draw random numbers during the call.

    Args:
        spec: Transform to check.
        samples: Samples with their keys. Only checked samples are consumed.
        where: Function that describes the sample of a key.
        limit_s: Seconds after which no further samples are checked.

    Returns:
        Number of checked samples.

    Raises:
        ConfigError: A step draws from a global generator, or two results differ. The message
            names step, sample and remedy.
        DataError: A sample cannot be transformed.
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
    """Return the error for a transform with results that depend on more than sample and generator.

    Args:
        spec: The transform.
        place: Description of the sample.
        found: Name of the step and what it does.
    """
    remedy = "draw all random numbers from the generator argument, and keep no state between calls"
    if not spec.has_chance:
        remedy = f"do not use random numbers in {spec.what}, and keep no state between calls"
    inputs = "the sample" + " and the generator" * spec.has_chance
    return ConfigError(f"{place}: {found}, expected a function of {inputs} alone; {remedy}")


def trace(steps: TransformSteps, key: Key, sample: Sample) -> list[Traced]:
    """Return for each step its name, the global generators that it used, and a digest of its result.

    Raises:
        DataError, ConfigError: The sample cannot be transformed. The message names the step.
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
    """Change the states of the global generators, and restore them at the end."""
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
    """Seed the global generators with the operating system's entropy."""
    random.seed()
    np.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


def digest_of(sample: Sample) -> bytes:
    """Return the digest of the content of a sample."""
    digest = hashlib.sha256()
    _digest(sample, digest)
    return digest.digest()


def _global_states() -> dict[str, tuple[Any, ...] | bytes]:
    of_numpy: Any = np.random.get_state()
    words = of_numpy[1].tobytes(), *of_numpy[2:]
    states: dict[str, tuple[Any, ...] | bytes] = {
        "random": random.getstate(),
        "numpy.random": words,
    }
    if torch := sys.modules.get("torch"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _digest(value: Any, digest: "hashlib._Hash") -> None:
    """Update a digest with the content of a value, independent of object identity."""
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
        if array.dtype.hasobject:  # not an array: use its attributes, or its text without addresses
            found = getattr(value, "__dict__", None)
            text = re.sub(r"0x[0-9a-f]+", "", repr(value))
            return _digest(text if found is None else found, digest)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return None

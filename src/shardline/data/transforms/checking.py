"""Transforms are run twice, to find those that depend on more than the sample and its generator."""

import hashlib
import os
import pickle
import random
import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from shardline.core.errors import ConfigError
from shardline.data.transforms.steps import Sample, Samples, TransformSpec, Where, transform_all
from shardline_io.order.chance import Key

_Traced = tuple[str, str, bytes]

VARIABLE = "SHARDLINE_CHECK_TRANSFORMS"


def is_each_call_checked() -> bool:
    """Return whether the environment asks for a check of each call."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def check_samples(spec: TransformSpec, samples: Samples, where: Where) -> None:
    """Transform samples twice, and refuse a transform whose results are not a function of sample and generator.

    To be called where no other thread draws random numbers.

    Args:
        samples: some samples, with their keys.
        where: names the sample of a key.

    Raises:
        ConfigError: a step draws from a generator of the whole process, or two calls gave different
            results; the message names step, sample, what differs and the remedy.
        DataError: a sample cannot be transformed.
    """
    for key, sample in samples:
        first, second = _trace(spec, key, sample, where), _trace(spec, key, sample, where)
        for (name, once, result), (_, drawn, other) in zip(first, second, strict=True):
            if drawn := once or drawn:  # the first call may have imported torch
                found = f"draws random numbers from the global generator of {drawn}"
            elif result != other:
                found = "gives two results for one sample and equal generators"
            else:
                continue
            remedy = "draw all chance from the generator that it is given, and keep nothing between calls"
            if not spec.has_chance:
                remedy = f"leave chance out of {spec.what}, and keep nothing between calls"
            inputs = "the sample" + " and the generator" * spec.has_chance
            raise ConfigError(
                f"{where(key)}: {name} {found}, expected a function of {inputs} alone; {remedy}"
            )


def _trace(spec: TransformSpec, key: Key, sample: Sample, where: Where) -> list[_Traced]:
    """Return of each step its name, whose global generator it drew from, and its result as a digest."""
    traced: list[_Traced] = []
    before = _global_states()

    def note(name: str, result: Sample) -> None:
        nonlocal before
        now = _global_states()
        drawn = " and ".join(of for of, state in now.items() if before.get(of, state) != state)
        digest = hashlib.sha256()
        _digest(result, digest)
        traced.append((name, drawn, digest.digest()))
        before = now

    transform_all(partial(spec.make(), note=note), [(key, sample)], where)
    return traced


def _global_states() -> dict[str, bytes]:
    states = {
        "random": repr(random.getstate()).encode(),
        "numpy.random": pickle.dumps(np.random.get_state()),
    }
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

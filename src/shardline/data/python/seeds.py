"""States of the global random generators, while code of the user runs that draws from them."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch (on the CPU)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch := sys.modules.get("torch"):
        # torch.manual_seed would also remember a seed for each GPU until CUDA starts
        torch.default_generator.manual_seed(seed % 2**63)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread: the number of threads changes the last bits of sums."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    if torch:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(before)


@contextmanager
def kept_generators(seed: int | None = None) -> Iterator[None]:
    """Restore the global generators at the end.

    Args:
        seed: seed to begin with; None leaves the generators as they are.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    of_torch = torch.get_rng_state() if torch else None
    if seed is not None:
        seed_globals(seed)
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if torch:
            torch.set_rng_state(of_torch)

"""Speedups of Snakemake for thousands of jobs. No result depends on them."""

import atexit
import functools
import gc
import inspect
import sys
from typing import Any


def begin() -> None:
    """Speed up the building of the graph; call this before anything is loaded, and `end` after it.

    The graph contains no garbage, but Python's collector searches all of it each time it has grown by a
    quarter, and again at exit. Snakemake also parses the path of each job's script three times, for
    which smart_open creates a class each time: 0.1 ms. It reads the parameters of each input function,
    resource and parameter of a rule anew for every job.
    """
    from snakemake import sourcecache

    gc.disable()
    atexit.register(gc.freeze)
    parse = getattr(sourcecache, "parse_uri", None)  # private, so it may be removed
    if parse and not hasattr(parse, "cache_info"):
        sourcecache.parse_uri = functools.cache(parse)
    _keep_parameters()


def _keep_parameters() -> None:
    """Let Snakemake read the parameters of a function once."""
    from snakemake import common

    read = getattr(common, "get_function_params", None)
    if read is None or hasattr(read, "__wrapped__"):
        return
    known = functools.lru_cache(maxsize=4096)(read)

    @functools.wraps(read)
    def parameters(function: Any) -> Any:
        try:
            return known(function)
        except TypeError:  # an object without a hash
            return read(function)

    for name, module in [*sys.modules.items()]:
        if name.startswith("snakemake.") and vars(module).get("get_function_params") is read:
            module.get_function_params = parameters  # type: ignore[attr-defined]


def end() -> None:
    """Collect garbage from now on, but never search the graph."""
    gc.freeze()
    gc.enable()


def with_signature(function: Any) -> Any:
    """Return a function with a stored signature, which Snakemake inspects twice per call."""
    kept = functools.partial(function)
    kept.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return kept


def keep_signatures(functions: Any) -> None:
    """Store the signatures of an object's public methods."""
    for name in dir(type(functions)):
        if not name.startswith("_"):
            setattr(functions, name, with_signature(getattr(functions, name)))

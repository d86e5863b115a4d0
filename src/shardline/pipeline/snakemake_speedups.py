"""What Snakemake does again and again for each of thousands of jobs, done once. No result depends on it."""

import atexit
import functools
import gc
import inspect
from collections.abc import Iterable
from types import FunctionType
from typing import Any


def begin() -> None:
    """Call it before anything is loaded, and `end` when the graph of jobs is built.

    Nothing of the graph is garbage, but Python's collector looks through all of it each time that it
    has grown by a quarter, and again when Python ends. And Snakemake parses the path of each job's
    script three times, for which smart_open makes a class each time: 0.1 ms.
    """
    from snakemake import sourcecache

    gc.disable()
    atexit.register(gc.freeze)
    parse = getattr(sourcecache, "parse_uri", None)  # private, so it may go
    if parse and not hasattr(parse, "cache_info"):
        sourcecache.parse_uri = functools.cache(parse)


def end() -> None:
    """Collect garbage from now on, but never look through the graph."""
    gc.freeze()
    gc.enable()


def keep_signatures(functions: Iterable[Any], namespace: dict[str, Any]) -> None:
    """Keep the signatures of functions, which Snakemake inspects twice for each call.

    Args:
        functions: among other things.
        namespace: of the Snakefile; functions that others have defined stay as they are.
    """
    for function in functions:
        if isinstance(function, FunctionType) and function.__globals__ is namespace:
            function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]

"""What Snakemake does again and again for each of thousands of jobs, done once. No result depends on it."""

import atexit
import functools
import gc
import inspect
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


def with_signature(function: Any) -> Any:
    """Return a function whose signature, which Snakemake inspects twice for each call, is known."""
    kept = functools.partial(function)
    kept.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return kept


def keep_signatures(functions: Any) -> None:
    """Keep the signatures of an object's public methods."""
    for name in dir(type(functions)):
        if not name.startswith("_"):
            setattr(functions, name, with_signature(getattr(functions, name)))

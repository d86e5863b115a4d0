"""Shardline: reproducible experiment pipeline for distributed deep learning, on Snakemake.

The public names are the modules `shardline.errors`, `shardline.ledger`, `shardline.losses`,
`shardline.models`, `shardline.sources` and `shardline.transforms`. `import shardline` loads none of
these modules; each is loaded when it is first used.
"""

import importlib
from types import ModuleType

__version__ = "0.1.0"
__all__ = ["__version__", "errors", "ledger", "losses", "models", "sources", "transforms"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

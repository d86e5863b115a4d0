"""Shardline: reproducible experiment pipeline for distributed deep learning, on Snakemake.

The public names are `shardline.open`, which opens a project, and the modules `shardline.errors`,
`shardline.ledger`, `shardline.losses`, `shardline.models`, `shardline.projects`, `shardline.sources` and
`shardline.transforms`. `import shardline` loads none of these modules; each is loaded when it is first used.
"""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = [
    "__version__", "errors", "ledger", "losses", "models", "open", "projects", "sources", "transforms",
]  # fmt: skip


_FUNCTIONS = {"open": ("projects", "Project")}  # module and name


def __getattr__(name: str) -> Any:
    if name in __all__:
        module, _, attribute = ".".join(_FUNCTIONS.get(name, (name,))).partition(".")
        found = importlib.import_module(f"{__name__}.{module}")
        return getattr(found, attribute) if attribute else found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

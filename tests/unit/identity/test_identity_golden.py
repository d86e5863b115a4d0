"""Code keeps its digests, and its imports are followed as before: what users have sealed stays fresh.

The golden file holds, of each package, the digest of the code that an entry point reaches, as
identities have it, the modules of the import closure and the installed packages.
"""

import json
from pathlib import Path

import pytest

from shardline.identity import CodeIndex
from shardline.identity.user_code import reach

GOLDEN = Path(__file__).parents[2] / "golden" / "identity" / "user_code.json"
PACKAGES = {
    "model": {
        "net/__init__.py": '"""A model."""\nfrom .model import Net\n\n__all__ = ["Net"]\n',
        "net/model.py": '''"""The model."""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from . import blocks
from .blocks.conv import Conv as ConvBlock
from .registry import register, registered

if TYPE_CHECKING:
    from .never import Hint

T = TypeVar("T")


class Kind(str, Enum):
    """A docstring."""

    WIDE = "wide"
    DEEP = "deep"


@dataclass(frozen=True, kw_only=True)
class Options:
    width: int = 8
    """An attribute's docstring."""
    names: list[str] = field(default_factory=list)


@dataclass
class State(Generic[T]):
    value: T


class Sized(Protocol):
    def __len__(self) -> int: ...


class Meta(type):
    pass


class Base(nn.Module, metaclass=Meta):
    pass


@register("net")
@torch.jit.ignore
class Net(pl.LightningModule):
    def __init__(self, width: int = 8, *, depth: int = 2, **rest: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList([ConvBlock(width) for _ in range(depth)])

    @property
    def size(self) -> int:
        return sum(p.numel() for p in self.parameters())

    @size.setter
    def size(self, value: int) -> None:
        raise AttributeError(f"size={value!r:>{10}}")

    @overload
    def forward(self, x: Tensor) -> Tensor: ...

    @overload
    def forward(self, x: list[Tensor]) -> Tensor: ...

    def forward(self, x):
        match x:
            case [first, *rest] if rest:
                return self.forward(first)
            case _:
                pass
        for layer in self.layers:
            x = layer(x) if (y := layer) else x
        return math.pi * x

    async def later(self) -> Iterator[int]:
        async with self.lock:
            yield 1


def helper(a, /, b=1, *args, c, d=2, **kwargs):
    global STATE
    STATE = u"text"
    del (a, b)

    def inner():
        nonlocal c
        c = {**kwargs, "x": [*args]}
        return lambda q=1: q

    try:
        return inner()
    except* (ValueError, TypeError) as error:
        "a stray string"
        raise error from None
    finally:
        assert c, "message"


if __name__ == "__main__":
    helper(1, c=2)
''',
        "net/never.py": "class Hint: ...\n",
        "net/registry.py": (
            "import importlib\n\nNAMES = {}\n\n\ndef register(name):\n    return lambda cls: NAMES.setdefault(name, "
            "cls)\n\n\ndef registered():\n    importlib.import_module('net.plugins')\n"
            "    importlib.import_module('.lazy', __package__)\n    return NAMES\n"
        ),
        "net/plugins.py": "import yaml\nfrom sklearn import datasets\n",
        "net/lazy.py": "def load():\n    from net.blocks import norm\n    return norm\n",
        "net/blocks/__init__.py": "from .conv import *\nfrom . import norm\n",
        "net/blocks/conv.py": (
            "__all__ = ['Conv']\n\n\nclass Conv:\n    def __init__(self, width): self.width = width\n"
            ""
        ),
        "net/blocks/norm.py": (
            "import numpy as np\n\nEPS = 1e-5\n\n\nclass Norm:\n    eps = EPS\n\n    def f(self): return np.ones(3)\n"
            ""
        ),
    },
    "namespace": {
        "space/model.py": "from space.sub.part import value\nfrom . import other\nimport space.sub.more as more\n",
        "space/other.py": "import helpers\n",
        "space/sub/part.py": "from .. import other\n\nvalue = 1\n",
        "space/sub/more.py": "try:\n    import apex\nexcept ImportError:\n    apex = None\n",
        "helpers.py": "import json\nfrom scipy import stats\n",
    },
    "script": {
        "model.py": (
            "import argparse\nimport os\nfrom functools import partial\n\nfrom lib import data\n\n"
            "def main():\n    parser = argparse.ArgumentParser(description='Train.')\n"
            "    load = partial(data.load, kind='csv')\n    return load(os.environ.get('X'))\n"
        ),
        "lib/__init__.py": "",
        "lib/data.py": "def load(path, kind):\n    return open(path).read(), kind\n",
    },
}  # fmt: skip
ENTRIES = {"model": "net.model:Net", "namespace": "space.model:other", "script": "model:main"}


def found(folder: Path, name: str) -> dict[str, object]:
    """Write a package and return what is found of it."""
    for path, text in PACKAGES[name].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    index = CodeIndex((folder,))
    found, (modules, closure) = (
        reach(index, ENTRIES[name]),
        index.closure(ENTRIES[name].partition(":")[0]),
    )
    return {
        "digest": found.digest, "definitions": found.definitions, "packages": sorted(found.third_party),
        "modules": sorted(modules), "packages of all modules": sorted(closure),
    }  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_digests_of_earlier_versions_are_kept(tmp_path: Path, name: str) -> None:
    assert found(tmp_path, name) == json.loads(GOLDEN.read_text())[name]

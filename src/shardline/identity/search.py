"""Where Python finds a module: the folders that it looks into, and what it takes there."""

import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path

_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)  # in Python's order


@dataclass(frozen=True)
class Found:
    """A module or package.

    Attributes:
        file: its file, of a package `__init__`; None for a namespace package.
        folders: where the submodules of a package lie; none for a module.
    """

    file: Path | None
    folders: tuple[Path, ...]


def find_in(folders: Sequence[Path], name: str, *, top: bool) -> Found | None:
    """Return what Python takes for a name without dots in these folders, in their order.

    A package with an `__init__` and a module win wherever they lie; folders
    without `__init__` are one namespace package, if nothing else was found.

    Args:
        folders: as in `sys.path` or in a package's `__path__`.
        top: whether the name is looked up in `sys.path`, where what is installed
            and the standard library come after the project's folders.
    """
    portions = []
    for folder in folders:
        base = folder / name
        is_folder = base.is_dir()
        if is_folder and (init := _with_suffix(base / "__init__")):
            return Found(init, (base,))
        if file := _with_suffix(base):
            return Found(file, ())
        if is_folder:
            portions.append(base)
    if not portions or (top and _is_installed(name)):
        return None
    return Found(None, tuple(portions))


def portions_of(folders: Sequence[Path], name: str) -> tuple[Path, ...]:
    """Return all folders of a name, as `pkgutil.extend_path` puts them together."""
    return tuple(folder / name for folder in folders if (folder / name).is_dir())


def _with_suffix(base: Path) -> Path | None:
    beside = (base.with_name(base.name + suffix) for suffix in _SUFFIXES)
    return next((path for path in beside if path.is_file()), None)


@cache
def _is_installed(name: str) -> bool:
    """Return whether a regular package or module of this name is among what is installed."""
    if name in sys.stdlib_module_names:
        return True
    folders = {Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")}
    return any(
        _with_suffix(folder / name) or _with_suffix(folder / name / "__init__")
        for folder in folders
    )

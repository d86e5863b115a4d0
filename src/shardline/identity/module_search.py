"""Where Python finds a project's own code: the folders that it looks into, and what it takes there."""

import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path

LIBRARY = Path(__file__).parents[2]  # the folder that holds the packages of `OURS`
OURS = ("shardline", "shardline_io")
INSTALLED = {"site-packages", "dist-packages"}  # folders whose packages count by version
# Lines of a .pth file that Python's `site` reads otherwise.
_NO_FOLDER = ("#", "import ", "import\t")
_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)  # in Python's order


def import_roots(workdir: Path) -> tuple[Path, ...]:
    """Return the folders that hold a project's own code, in import order.

    These are the working directory, the folders of PYTHONPATH and those of
    editable installs; what is installed counts through the environment digest.
    `sys.path` would not do: Snakemake adds its scripts' folders to it in jobs
    only, and a job must find the identity that the parse found.
    """
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    entries: list[str | Path] = [workdir, *named, *_editable_folders()]
    roots: list[Path] = []
    for entry in entries:
        path = (workdir / entry).resolve()
        if holds_own_code(path) and path not in roots:
            roots.append(path)
    return tuple(roots)


def holds_own_code(path: Path) -> bool:
    """Return whether a folder's modules are the project's, and not what is installed."""
    stdlib = {Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib")}
    # os.path.isdir takes any text for a path, also one that is too long
    return os.path.isdir(path) and path.name not in INSTALLED and path not in stdlib  # noqa: PTH112


def _editable_folders() -> Iterator[Path]:
    """Yield what editable installs add: lines of `.pth` files, or an import hook's mapping."""
    for folder in {Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")}:
        for file in sorted(folder.glob("*.pth")):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            named = (line.strip() for line in lines if not line.startswith(_NO_FOLDER))
            yield from (folder / line for line in named if line)
    for finder in sys.meta_path:
        module = getattr(finder, "__module__", "")
        if module.startswith("__editable__"):
            mapping = getattr(sys.modules[module], "MAPPING", {})
            yield from (Path(target).parent for target in mapping.values())


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


def root_number(roots: Sequence[Path], file: Path, name: str) -> int:
    """Return which of the import roots a module was found in; 0 also where it was none of them."""
    depth = name.count(".") + (file.stem == "__init__")
    root = file.parents[depth] if depth < len(file.parents) else None
    return roots.index(root) if root in roots else 0


def in_later_roots(roots: Sequence[Path], files: Mapping[str, Path]) -> list[str]:
    """Return which modules lie in another import root than the first, each with the root's number.

    Where code edits `sys.path`, this may decide whether Python still finds a module.

    Args:
        files: by the module's dotted name, with what was put behind a space.
    """
    numbers = {label: root_number(roots, files[label], label.partition(" ")[0]) for label in files}
    return [f"{label} in root {number}" for label, number in sorted(numbers.items()) if number]


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

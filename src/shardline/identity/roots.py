"""The folders that hold a project's own code, as Python would search them."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

LIBRARY = Path(__file__).parents[2]  # the folder that holds the package shardline
INSTALLED = {"site-packages", "dist-packages"}  # folders whose packages count by version
# Lines of a .pth file that Python's `site` reads otherwise.
_NO_FOLDER = ("#", "import ", "import\t")


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

"""Files whose reads `runtime.watch_reads` does not report: those of an identity, of the machine, of packages."""

# A path is looked at whenever a file is opened, for which pathlib takes several times as long.
# ruff: noqa: PTH118

import json
import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import source_from_cache
from pathlib import Path

from shardline.core.files import read_json, write_bytes
from shardline.identity.module_search import INSTALLED, LIBRARY, OURS

COUNTED_FILE = "counted_files.json"  # in a run's folder of the store: what its ranks may read
# What belongs to the machine, and what packages keep for this user.
_MACHINE = (
    "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/tmp",
    "/nix/store", "/opt/rocm", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local/cuda", "/usr/share", "/var/tmp",
    "~/.config", "~/.cache/matplotlib", "~/.nv", "~/.triton",
)  # fmt: skip
_OF_PROJECT = (".git", ".snakemake", "benchmarks", "logs")
_OF_PREFIX = ("bin", "etc", "include", "lib", "lib64", "share", "ssl")


@dataclass(frozen=True, kw_only=True)
class CountedFiles:
    """The files whose reads are not reported.

    Attributes:
        files: that an identity holds, absolute.
        folders: real paths; True: what is read below is not reported. The deepest folder decides.
        packages: real paths; True: the code below is installed, and not the user's. The deepest folder decides.
    """

    files: Set[str]
    folders: Mapping[str, bool]
    packages: Mapping[str, bool] = field(default_factory=dict)

    def holds(self, path: str) -> bool:
        """Return whether an absolute path leads to such a file, through links and `..`."""
        return path in self.files or self.holds_real(os.path.realpath(path))

    def holds_real(self, path: str) -> bool:
        """Return the same of a real path."""
        path = source_of(path)
        return self.is_left_alone(path) or path in self._real

    def is_left_alone(self, real: str) -> bool:
        """Return whether a real path lies in a folder whose files are not reported."""
        return _deepest(self.folders, real)

    def is_installed(self, real: str) -> bool:
        """Return whether a real path is code of a package or of Python, wherever the user's own code lies."""
        return _deepest(self.packages, real)

    @cached_property
    def _real(self) -> frozenset[str]:
        return frozenset(map(os.path.realpath, self.files))


def _deepest(folders: Mapping[str, bool], real: str) -> bool:
    """Return the value of the deepest folder around a real path; True in a folder of installed packages."""
    while real not in folders:
        parent, name = os.path.split(real)
        if name in INSTALLED:
            return True
        if parent == real:
            return False
        real = parent
    return folders[real]


def source_of(path: str) -> str:
    """Return the module that cached bytecode was compiled from; other paths as they are."""
    if not path.endswith(".pyc"):
        return path
    try:
        return source_from_cache(path)
    except ValueError:
        return path


def counted(workdir: Path, files: Iterable[str], folders: Iterable[str]) -> CountedFiles:
    """Return what is not reported in a stage.

    Args:
        workdir: the project's folder, from which relative paths start.
        files: that the stage's identities hold.
        folders: of the stage's own inputs and results.
    """
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    packages = [
        *(os.path.join(prefix, name) for prefix in prefixes for name in _OF_PREFIX),
        *(sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(site.getusersitepackages(), *(str(LIBRARY / name) for name in OURS)),
    ]
    machine = [*map(os.path.expanduser, _MACHINE), tempfile.gettempdir()]
    known = _without_project(workdir, [*machine, *packages])
    own = (workdir / folder for folder in (*_OF_PROJECT, *folders))
    known |= dict.fromkeys(map(os.path.realpath, own), True)
    named = frozenset(os.path.normpath(workdir / one) for one in files)
    return CountedFiles(files=named, folders=known, packages=_without_project(workdir, packages))


def _without_project(workdir: Path, folders: Iterable[str]) -> dict[str, bool]:
    """Return folders that are left alone, without the project and what lies around it in one of them.

    A project may lie below the folder for temporary files. The data and code beside it are no more temporary
    than the project.
    """
    found = dict.fromkeys(map(os.path.realpath, folders), True)
    project = os.path.realpath(workdir)
    for folder in [*found]:
        if project.startswith(folder + os.sep):
            beside = project[len(folder) + 1 :].partition(os.sep)[0]
            found.setdefault(os.path.join(folder, beside), False)
    return {**found, project: False}


def write_counted(
    path: Path, workdir: Path, files: Iterable[Path], folders: Iterable[Path]
) -> None:
    """Write down what `counted` is to get in other processes, whose project may lie elsewhere."""
    named = {"files": files, "folders": folders}
    texts = {key: [_from(workdir, one) for one in paths] for key, paths in named.items()}
    # in ASCII: a name may hold bytes that are no text
    write_bytes(path, json.dumps(texts).encode())


def _from(workdir: Path, path: Path) -> str:
    return str(path.relative_to(workdir) if path.is_relative_to(workdir) else path)


def read_counted(path: Path) -> CountedFiles:
    """Return what `write_counted` wrote.

    Raises:
        DataError: it is not there.
    """
    texts = read_json(path, remedy="start the training by the pipeline, which writes it")
    return counted(Path.cwd(), texts["files"], texts["folders"])

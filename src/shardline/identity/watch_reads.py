"""`runtime.watch_reads`: an audit hook that finds files which are read and stand in no identity.

Python raises an audit event for each file that it opens (PEP 578). A hook cannot be removed, so one
hook is added per process, and it does nothing while nothing is watched. Reads by compiled code raise
no event: see `compiled_reads`, and `look`.

As a program (`python -m shardline.identity.watch_reads MODE COUNTED SCRIPT ...`) it runs a training script.
"""

# A path is looked at whenever a file is opened, for which pathlib takes several times as long.
# ruff: noqa: PTH109, PTH110, PTH113, PTH118, PTH120

import contextlib
import json
import logging
import os
import runpy
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any

from shardline.core.errors import ConfigError
from shardline.core.files import read_json, write_bytes
from shardline.core.redaction import mask
from shardline.identity.code_index import INSTALLED, LIBRARY, OURS
from shardline.identity.compiled_reads import opened_files, wrap_all

COUNTED_FILE = "counted_files.json"  # in a run's folder of the store: what its ranks may read
# What belongs to the machine, and what packages keep for this user.
_MACHINE = (
    "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/tmp",
    "/nix/store", "/opt/rocm", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local/cuda", "/usr/share", "/var/tmp",
    "~/.config", "~/.cache/matplotlib", "~/.nv", "~/.triton",
)  # fmt: skip
_OF_PROJECT = (".git", ".snakemake", "benchmarks", "logs")
_OF_PREFIX = ("bin", "etc", "include", "lib", "lib64", "share", "ssl")
MODEL_REMEDY = "list it in the column code_files, or read it by a literal path beside its module"
SOURCE_REMEDY = "list it in source.files, or read it by a literal path beside its module"
REFUSED = "runtime.watch_reads=error"
_MAX_NAMED = 10
_MAX_REMEMBERED = 100_000  # paths that need not be looked at again
# Events beside `open`, as which flags of it they count. `import` has the file of a compiled module alone.
_FLAGS = {
    "import": os.O_RDONLY,
    "ctypes.dlopen": os.O_RDONLY,
    "sqlite3.connect": os.O_RDWR | os.O_CREAT,
    "os.rename": os.O_RDONLY,
}


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
    texts = read_json(path, remedy="start the training through the pipeline, which writes this file")
    return counted(Path.cwd(), texts["files"], texts["folders"])


@dataclass
class WatchedReads:
    """What one process reads.

    Attributes:
        known: whose reads are not reported.
        mode: `warn` or `error`.
        remedy: what to do about a file.
        is_spawned: whether user code started this process, so that nobody asks it at its end.
        found: where a file was first read (file and line, may be empty), by its path.
    """

    known: CountedFiles
    mode: str
    remedy: str = MODEL_REMEDY
    is_spawned: bool = False
    found: dict[str, str] = field(default_factory=dict)
    _passed: set[str] = field(default_factory=set)
    _written: set[str] = field(default_factory=set)
    _process: int = field(default_factory=os.getpid)
    _before: set[str] = field(default_factory=opened_files)

    def look(self) -> None:
        """Report what the process has open or mapped by now, and had not when the watch began.

        Raises:
            ConfigError: as `hear`.
        """
        for path in opened_files() - self._before:
            if not self._is_counted(path):
                self._report(path)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event.

        Raises:
            ConfigError: a file is read that no identity holds, and the mode is `error`.
        """
        path = path_of(arguments[1 if event == "import" else 0])
        if not path or path in self._passed:
            return
        with contextlib.suppress(OSError, ValueError):  # then it cannot be opened either
            path = os.path.join(os.getcwd(), path)
            flags = arguments[2] if event == "open" else _FLAGS[event]
            if event == "os.rename":
                self._rename(path, path_of(arguments[1]))
            elif is_made(path, flags):
                self._note_written(path)
            elif is_read(flags) and not self._is_counted(path) and os.path.isfile(path):
                self._report(path)

    def _rename(self, path: str, target: str) -> None:
        if target and (os.path.realpath(path) in self._written or self.known.holds(path)):
            self._note_written(target)

    def _note_written(self, path: str) -> None:
        real = os.path.realpath(path)
        if not self.known.is_left_alone(real):
            self._written.add(real)

    def _is_counted(self, path: str) -> bool:
        if path in self._passed or path in self.known.files:
            return True
        real = os.path.realpath(path)
        if real in self._written:
            return True
        is_known = self.known.holds_real(real)
        if is_known:
            self._remember(path)
        return is_known

    def _remember(self, path: str) -> None:
        if len(self._passed) < _MAX_REMEMBERED:
            self._passed.add(path)

    def _report(self, asked: str) -> None:
        path = source_of(os.path.realpath(asked))
        is_new = path not in self.found
        if is_new:
            self.found[path] = self._reader()
        if self.mode == "error":
            raise ConfigError(self.message({path: self.found[path]}))
        is_child = self.is_spawned or os.getpid() != self._process
        self._remember(asked)
        if is_new and is_child and len(self.found) <= _MAX_NAMED:
            logging.warning("%s", mask(self.message({path: self.found[path]})))

    def _reader(self) -> str:
        """Return the line of the user's code that reads, as far as there is one on the stack.

        That code may lie anywhere, also where files are left alone: below the folder for temporary files.
        """
        frame = sys._getframe()
        while frame := frame.f_back:  # type: ignore[assignment]
            file = frame.f_code.co_filename
            if not file.startswith("<") and not self.known.is_installed(os.path.realpath(file)):
                return f"{file}, line {frame.f_lineno}"
        return ""

    def message(self, found: Mapping[str, str]) -> str:
        """Return what files were read, and what to do about them."""
        named = [
            f"{shown(path)} (read by {shown(reader)})" if reader else shown(path)
            for path, reader in list(found.items())[:_MAX_NAMED]
        ]
        more = [f"{len(found) - _MAX_NAMED} more"] if len(found) > _MAX_NAMED else []
        what = "1 file was" if len(found) == 1 else f"{len(found)} files were"
        way_out = ", or set runtime.watch_reads=warn to continue anyway"
        return (
            f"runtime.watch_reads={self.mode}: {what} read that no identity contains: {', '.join([*named, *more])}; "
            f"{self.remedy}{way_out if self.mode == 'error' else ''}"
        )


def path_of(argument: object) -> str:
    """Return the path that an audit event names; nothing for a descriptor or no name at all."""
    try:
        return os.fsdecode(argument)  # type: ignore[arg-type]
    except TypeError:
        return ""


def is_read(flags: int) -> bool:
    """Return whether these flags of `open` may read what the file holds already."""
    return flags & os.O_ACCMODE != os.O_WRONLY and not flags & (os.O_TRUNC | os.O_EXCL)


def is_made(path: str, flags: int) -> bool:
    """Return whether opening a file with these flags makes it, or all that it holds."""
    if flags & os.O_ACCMODE == os.O_RDONLY:
        return False
    is_new = flags & os.O_CREAT and not os.path.exists(path)
    return bool(is_new or flags & (os.O_TRUNC | os.O_EXCL))


def shown(path: str) -> str:
    """Return a path as messages show it: from the present folder, control characters spelled."""
    with contextlib.suppress(ValueError):
        path = str(Path(path).relative_to(Path.cwd()))
    return path if path.isprintable() else repr(path)[1:-1]


# --- the process's one watch ----------------------------------------------------------------------

_watch: WatchedReads | None = None
_has_hook = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if (event == "open" or event in _FLAGS) and _watch is not None:
        _watch.hear(event, arguments)


def start(watch: WatchedReads | None) -> None:
    """Watch the reads of this process, of its threads and of what it is forked into; None ends it."""
    global _watch, _has_hook
    _watch = watch
    if watch and not _has_hook:
        sys.addaudithook(_hook)
        wrap_all(lambda path: _hook("open", (path, None, os.O_RDONLY)))
        _has_hook = True


def start_rank(work: Path, mode: str, *, is_spawned: bool = False) -> None:
    """Watch the reads of a rank, unless `mode` is `off`.

    Args:
        work: the folder in which the job has written what its ranks may read.

    Raises:
        DataError: it has not.
    """
    if mode != "off":
        start(
            WatchedReads(known=read_counted(work / COUNTED_FILE), mode=mode, is_spawned=is_spawned)
        )


def look() -> None:
    """Report files that compiled code has open or mapped, where reads are watched.

    Raises:
        ConfigError: as `WatchedReads.hear`.
    """
    if _watch:
        _watch.look()


def found() -> dict[str, str]:
    """Return the files that were reported so far, see `WatchedReads.found`."""
    look()
    return dict(_watch.found) if _watch else {}


def check() -> None:
    """Refuse to go on where user code has caught the error of a read.

    Raises:
        ConfigError: names the files.
    """
    if _watch and _watch.found and _watch.mode == "error":
        raise ConfigError(_watch.message(_watch.found))


def finish(others: Mapping[str, str] | None = None) -> str:
    """End the watch; return the warning, if any.

    Args:
        others: what was found in other processes.

    Raises:
        ConfigError: see `check`.
    """
    reads = {**(others or {}), **found()}
    check()
    watch = _watch
    start(None)
    return mask(watch.message(reads)) if watch and reads else ""


# --- a training script ----------------------------------------------------------------------------


def command_of_script(mode: str, work: Path) -> list[str]:
    """Return what stands between Python and a script, so that it is watched."""
    if mode == "off":
        return []
    return ["-m", __name__, mode, str((work / COUNTED_FILE).absolute())]


def main() -> None:
    """Run a script as Python would, and watch what it reads."""
    _, mode, file, script, *arguments = sys.argv
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    start(WatchedReads(known=read_counted(Path(file)), mode=mode))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
    if warning := finish():
        print(f"warning: {warning}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

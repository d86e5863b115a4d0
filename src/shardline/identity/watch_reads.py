"""`runtime.watch_reads`: an audit hook that finds files which are read and are in no identity.

Python raises an audit event for each file that it opens (PEP 578). A hook cannot be removed, so a
process adds one hook, which does nothing without a watch. Reads by compiled code raise no event: see
`compiled_reads` and `look`.

The program `python -m shardline.identity.watch_reads MODE COUNTED SCRIPT ...` runs a training script.
"""

# The hook runs whenever a file is opened, and pathlib takes several times as long as os.path.
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

COUNTED_FILE = (
    "counted_files.json"  # in a run's folder of the store: the files that its ranks may read
)
# Files of the machine, and files that packages keep for the user.
_MACHINE = (
    "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/tmp",
    "/nix/store", "/opt/rocm", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local/cuda", "/usr/share", "/var/tmp",
    "~/.config", "~/.cache/matplotlib", "~/.nv", "~/.triton",
)  # fmt: skip
_OF_PROJECT = (".git", ".snakemake", "benchmarks", "logs")
_OF_SNAKEMAKE = f"{os.sep}.snakemake{os.sep}"
_OF_PREFIX = ("bin", "etc", "include", "lib", "lib64", "share", "ssl")
MODEL_REMEDY = (
    "list it in the column code_files, or in source.files of the dataset whose class reads it; or read it by a literal "
    "path beside its module"
)
SOURCE_REMEDY = "list it in source.files, or read it by a literal path beside its module"
PYTHON_REMEDY = "write in the dataset's source:"  # followed by the lines
REFUSED = "runtime.watch_reads=error"
_MAX_NAMED = 10
_MAX_LISTED = 5  # files that are listed by name in lines for the config
_MAX_REMEMBERED = 100_000  # paths that need no second check
# Events besides `open`, with the flags of `open` that they count as. `import` has only files of compiled modules.
_FLAGS = {
    "import": os.O_RDONLY,
    "ctypes.dlopen": os.O_RDONLY,
    "sqlite3.connect": os.O_RDWR | os.O_CREAT,
    "os.rename": os.O_RDONLY,
}


@dataclass(frozen=True, kw_only=True)
class CountedFiles:
    """Files whose reads are not reported.

    Attributes:
        files: absolute paths of files in an identity.
        folders: real paths; True if reads below are not reported. The deepest folder decides.
        packages: real paths; True if the code below is installed, not user code. The deepest folder decides.
    """

    files: Set[str]
    folders: Mapping[str, bool]
    packages: Mapping[str, bool] = field(default_factory=dict)

    def holds(self, path: str) -> bool:
        """Return whether reads of an absolute path are not reported; links and `..` are resolved."""
        return path in self.files or self.holds_real(os.path.realpath(path))

    def holds_real(self, path: str) -> bool:
        """Return whether reads of a real path are not reported."""
        path = source_of(path)
        return self.is_left_alone(path) or path in self._real

    def is_left_alone(self, real: str) -> bool:
        """Return whether a real path is in a folder whose files are not reported."""
        return _deepest(self.folders, real)

    def is_installed(self, real: str) -> bool:
        """Return whether a real path is code of an installed package or of Python."""
        return _deepest(self.packages, real)

    @cached_property
    def _real(self) -> frozenset[str]:
        return frozenset(map(os.path.realpath, self.files))


def _deepest(folders: Mapping[str, bool], real: str) -> bool:
    """Return the value of the deepest folder that contains a real path; True in a folder of installed packages."""
    while real not in folders:
        parent, name = os.path.split(real)
        if name in INSTALLED:
            return True
        if parent == real:
            return False
        real = parent
    return folders[real]


def source_of(path: str) -> str:
    """Return the source file of cached bytecode, or any other path unchanged."""
    if not path.endswith(".pyc"):
        return path
    try:
        return source_from_cache(path)
    except ValueError:
        return path


def counted(workdir: Path, files: Iterable[str], folders: Iterable[str]) -> CountedFiles:
    """Return the files whose reads are not reported in a stage.

    Args:
        workdir: the project's folder, to which paths are relative.
        files: files in the stage's identities.
        folders: folders of the stage's own inputs and results.
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
    """Return folders whose reads are not reported, except for the project and its siblings in such a folder.

    A project may be below the folder for temporary files. Data and code beside it are not temporary either.
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
    """Write the arguments of `counted` for other processes, whose project may be in another folder."""
    named = {"files": files, "folders": folders}
    texts = {key: [_from(workdir, one) for one in paths] for key, paths in named.items()}
    # in ASCII, since a name may contain bytes that are not text
    write_bytes(path, json.dumps(texts).encode())


def _from(workdir: Path, path: Path) -> str:
    return str(path.relative_to(workdir) if path.is_relative_to(workdir) else path)


def read_counted(path: Path) -> CountedFiles:
    """Return the files that `write_counted` wrote.

    Raises:
        DataError: the file is missing.
    """
    texts = read_json(
        path, remedy="start the training through the pipeline, which writes this file"
    )
    return counted(Path.cwd(), texts["files"], texts["folders"])


@dataclass
class WatchedReads:
    """Watch of the files that one process reads.

    Attributes:
        known: files whose reads are not reported.
        mode: `warn` or `error`.
        remedy: remedy for a reported file.
        is_spawned: whether user code started this process, so that it must report by itself.
        found: the place of the first read (file and line, may be empty) by path of the file.
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
        """Report files that the process has opened or mapped since the watch began.

        Raises:
            ConfigError: see `hear`.
        """
        for path in opened_files() - self._before:
            if not self._is_counted(path):
                self._report(path)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Handle an audit event.

        Raises:
            ConfigError: the mode is `error`, and a file is read that no identity contains.
        """
        path = path_of(arguments[1 if event == "import" else 0])
        if not path or path in self._passed:
            return
        with contextlib.suppress(OSError, ValueError):  # the open fails too
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
        """Return the file and line of the innermost user code on the stack; empty if there is none.

        User code may be anywhere, also below the folder for temporary files.
        """
        frame = sys._getframe()
        while frame := frame.f_back:  # type: ignore[assignment]
            file = frame.f_code.co_filename
            if file.startswith("<") or _OF_SNAKEMAKE in file:  # a copy of the rule's script
                continue
            if not self.known.is_installed(os.path.realpath(file)):
                return f"{file}, line {frame.f_lineno}"
        return ""

    def message(self, found: Mapping[str, str]) -> str:
        """Return the message about files that were read, with the remedy."""
        named = [
            f"{shown(path)} (read by {shown(reader)})" if reader else shown(path)
            for path, reader in list(found.items())[:_MAX_NAMED]
        ]
        more = [f"{len(found) - _MAX_NAMED} more"] if len(found) > _MAX_NAMED else []
        what = "1 file was" if len(found) == 1 else f"{len(found)} files were"
        way_out = ", or set runtime.watch_reads=warn to continue anyway"
        remedy = self.remedy
        if remedy == PYTHON_REMEDY:
            remedy = f"{remedy} files: [{', '.join(lines_to_paste(found))}]"
        return (
            f"runtime.watch_reads={self.mode}: {what} read that no identity contains: {', '.join([*named, *more])}; "
            f"{remedy}{way_out if self.mode == 'error' else ''}"
        )


def path_of(argument: object) -> str:
    """Return the path in an audit event; empty for a descriptor or no name."""
    try:
        return os.fsdecode(argument)  # type: ignore[arg-type]
    except TypeError:
        return ""


def is_read(flags: int) -> bool:
    """Return whether flags of `open` may read the earlier content of a file."""
    return flags & os.O_ACCMODE != os.O_WRONLY and not flags & (os.O_TRUNC | os.O_EXCL)


def is_made(path: str, flags: int) -> bool:
    """Return whether flags of `open` create a file or replace its content."""
    if flags & os.O_ACCMODE == os.O_RDONLY:
        return False
    is_new = flags & os.O_CREAT and not os.path.exists(path)
    return bool(is_new or flags & (os.O_TRUNC | os.O_EXCL))


def shown(path: str) -> str:
    """Return a path for messages: relative to the current folder, with control characters escaped."""
    with contextlib.suppress(ValueError):
        path = str(Path(path).relative_to(Path.cwd()))
    return path if path.isprintable() else repr(path)[1:-1]


def lines_to_paste(paths: Iterable[str]) -> list[str]:
    """Return the entries of `source.files` that match files: their names, or patterns for many files."""
    names = sorted(map(shown, paths))
    if len(names) > _MAX_LISTED:
        endings: dict[str, list[str]] = {}
        for name in names:
            endings.setdefault(Path(name).suffix, []).append(name)
        names = [
            of[0]
            if len(of) == 1
            else f"{os.path.commonpath(map(os.path.dirname, of)) or '.'}/**/*{ending}"
            for ending, of in endings.items()
        ]
    return [json.dumps(name, ensure_ascii=False) for name in names]


# --- the watch of this process ---------------------------------------------------------------------

_watch: WatchedReads | None = None
_has_hook = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if (event == "open" or event in _FLAGS) and _watch is not None:
        _watch.hear(event, arguments)


def start(watch: WatchedReads | None) -> None:
    """Watch the reads of this process, its threads and its forks; None ends the watch."""
    global _watch, _has_hook
    _watch = watch
    if watch and not _has_hook:
        sys.addaudithook(_hook)
        wrap_all(lambda path: _hook("open", (path, None, os.O_RDONLY)))
        _has_hook = True


def start_rank(work: Path, mode: str, *, is_spawned: bool = False) -> None:
    """Watch the reads of a rank, unless `mode` is `off`.

    Args:
        work: folder with the job's list of files that its ranks may read.
        mode: `off`, `warn` or `error`.
        is_spawned: see `WatchedReads`.

    Raises:
        DataError: the list is missing.
    """
    if mode != "off":
        start(
            WatchedReads(known=read_counted(work / COUNTED_FILE), mode=mode, is_spawned=is_spawned)
        )


@dataclass(frozen=True)
class WatchOfProcess:
    """Watch of a process that this one starts, which asks it for the files that it read.

    Attributes:
        known, mode, remedy: as in `WatchedReads`.
    """

    known: CountedFiles
    mode: str
    remedy: str

    def start(self) -> None:
        """Watch the reads of the process from now on."""
        start(WatchedReads(known=self.known, mode=self.mode, remedy=self.remedy))

    def found(self) -> dict[str, str]:
        """Return the files reported so far, see `WatchedReads.found`."""
        return found()


def current() -> WatchOfProcess | None:
    """Return the watch of this process for processes that it starts, if reads are watched."""
    return WatchOfProcess(_watch.known, _watch.mode, _watch.remedy) if _watch else None


def look() -> None:
    """Report files that compiled code has open or mapped, if reads are watched.

    Raises:
        ConfigError: see `WatchedReads.hear`.
    """
    if _watch:
        _watch.look()


def found() -> dict[str, str]:
    """Return the files reported so far, see `WatchedReads.found`."""
    look()
    return dict(_watch.found) if _watch else {}


def check() -> None:
    """Raise the error of a read again, in case user code caught it.

    Raises:
        ConfigError: the mode is `error`, and files were reported; the message names them.
    """
    if _watch and _watch.found and _watch.mode == "error":
        raise ConfigError(_watch.message(_watch.found))


def finish(others: Mapping[str, str] | None = None) -> str:
    """End the watch, and return the warning, if any.

    Args:
        others: files found in other processes.

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
    """Return the arguments of Python before a script that make the script watched."""
    if mode == "off":
        return []
    return ["-m", __name__, mode, str((work / COUNTED_FILE).absolute())]


def main() -> None:
    """Run a script as Python does, and watch its reads."""
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

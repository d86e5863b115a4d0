"""What the imports of a server have read and left, on which the ranks that it forks depend."""

import os
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Status = tuple[int, int] | None
_VIRTUAL = ("/proc/", "/sys/", "/dev/")
_OF_MAPPINGS = (os.getenv.__code__.co_filename, Mapping.get.__code__.co_filename)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What imports have read and left.

    Attributes:
        files: time and size of each file that they read; None for a file that did not exist.
        variables: value of each variable that they read by its name, of those that differ between jobs.
        changed: variables that they have set, or removed (None).
        left: what a forked rank lacks, or must not share with others; empty for nothing.
    """

    files: Mapping[str, Status]
    variables: Mapping[str, str | None]
    changed: Mapping[str, str | None]
    left: str

    def changed_file(self) -> str:
        """Return a file that has changed since; empty for none."""
        return next((file for file, known in self.files.items() if _status(file) != known), "")

    def differs(self, env: Mapping[str, str]) -> str:
        """Return a variable that the imports have read with another value; empty for none."""
        return next((name for name, v in self.variables.items() if env.get(name) != v), "")


def watch_imports(
    do: Callable[[], None], *, of_jobs: Collection[str], threads: Collection[str] = ()
) -> Imported:
    """Import modules, and return what that has read and left.

    Args:
        do: imports the modules.
        of_jobs: variables that differ between the jobs of a server.
        threads: names of threads that may exist when ranks are forked.
    """
    before, ends = dict(os.environ), _ends()
    with _watched_files() as opened, _watched_variables(of_jobs) as read:
        do()
    now = dict(os.environ)
    return Imported(
        files={file: _status(file) for file in {*_modules(), *_real(opened), *_package_folders()}},
        variables={name: before.get(name) for name in read},
        changed={
            name: now.get(name)
            for name in {*before, *now} - {*of_jobs}
            if before.get(name) != now.get(name)
        },
        left=_left(threads, ends),
    )


def set_changed(changed: Mapping[str, str | None], folder: str) -> None:
    """Change the environment of a rank as its own imports would have changed it.

    Args:
        changed: see `Imported`.
        folder: the server's folder for temporary files; the rank's may be another.
    """
    for name, value in changed.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            own = folder in value and tempfile.gettempdir()
            os.environ[name] = value.replace(folder, own) if own else value


@contextmanager
def _watched_files() -> Iterator[set[str]]:
    opened: set[str] = set()
    is_watching = True

    def note(event: str, args: tuple[Any, ...]) -> None:
        if is_watching and event == "open" and isinstance(args[0], str | bytes):
            flags = args[2] if isinstance(args[2], int) else 0
            if flags & os.O_ACCMODE == os.O_RDONLY:
                opened.add(os.path.abspath(os.fsdecode(args[0])))  # noqa: PTH100, called often

    sys.addaudithook(note)  # it stays until the end of the process
    try:
        yield opened
    finally:
        is_watching = False


@contextmanager
def _watched_variables(names: Collection[str]) -> Iterator[set[str]]:
    """Collect the names of variables that Python code reads by their names.

    Libraries also copy all variables, or look through them for a prefix of their own. So a line that reads all that
    there are reads none by its name.
    """
    read: set[str] = set()
    by_line: dict[tuple[str, int], set[str]] = {}
    plain = type(os.environ)

    class Watched(plain):  # type: ignore[misc, valid-type]
        def __getitem__(self, name: str) -> str:
            frame = sys._getframe(1)
            while (
                frame.f_back and frame.f_code.co_filename in _OF_MAPPINGS
            ):  # `get`, `getenv`, `items`
                frame = frame.f_back
            by_line.setdefault((frame.f_code.co_filename, frame.f_lineno), set()).add(name)
            return str(super().__getitem__(name))

    os.environ.__class__ = Watched
    try:
        yield read
    finally:
        os.environ.__class__ = plain
        everywhere = {*os.environ}
        some = (
            found for found in by_line.values() if len(found & everywhere) < len(everywhere) // 2
        )
        # `tempfile` reads the last three again in each rank
        read |= set().union(*some).intersection(names) - {"TMPDIR", "TEMP", "TMP"}


def _modules() -> set[str]:
    return {file for module in [*sys.modules.values()] if (file := getattr(module, "__file__", None))}  # fmt: skip


def _real(opened: Collection[str]) -> set[str]:
    """Return files that a later import would read again, of those that were opened."""
    return {file for file in opened if not file.startswith(_VIRTUAL) and not file.endswith(".pyc")}


def _package_folders() -> set[str]:
    """Return the folders whose entries tell which packages are installed."""
    return {folder for folder in sys.path if folder.endswith("-packages") and Path(folder).is_dir()}


def _status(file: str) -> Status:
    try:
        found = os.stat(file)  # noqa: PTH116, thousands of files for each rank
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _left(threads: Collection[str], ends: set[str]) -> str:
    if others := thread_names() - {*threads}:
        return f"imports have started threads ({', '.join(sorted(others))})"
    with suppress(OSError):  # a kernel without this file
        if Path(f"/proc/self/task/{os.getpid()}/children").read_text().strip():
            return "imports have started processes"
    if others := _ends() - ends:
        return f"imports have opened connections ({', '.join(sorted(others))})"
    return ""


def thread_names() -> set[str]:
    """Return the names of this process's threads besides its main thread."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != os.getpid():
            with suppress(OSError):  # it has ended
                found.add((task / "comm").read_text().strip())
    return found


def _ends() -> set[str]:
    """Return the sockets and pipes that are open, which forked processes would share."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself
            mode = os.fstat(int(link.name)).st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                found.add(str(link.readlink()))
    return found

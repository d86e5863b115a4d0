"""Locks on the devices of this machine, for the jobs of one user.

A lock is a file of the user on the machine's own disk, named by the device. The kernel releases it when the last
process that has its descriptor ends, however it ends.
"""

import fcntl
import logging
import os
import stat
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shardline.core.errors import LaunchError

FOLDER = "SHARDLINE_LOCKS"  # environment variable
DESCRIPTORS = "SHARDLINE_LOCK_DESCRIPTORS"  # environment variable of a launcher
_POLL_S = 0.2
_TEXT_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class Locked:
    """Devices that a job has locked.

    Attributes:
        units: names of the devices.
        descriptors: descriptors of the locks, for the processes that use the devices.
        beside: descriptions of other jobs that had devices of this kind when the locks were taken.
    """

    units: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()
    beside: tuple[str, ...] = ()


def lock_folder() -> Path:
    """Return the folder of this user's locks on this machine.

    Raises:
        LaunchError: the folder belongs to another user, or cannot be made.
    """
    # fixed, since TMPDIR may differ between two terminals
    folder = Path(os.environ.get(FOLDER) or f"/tmp/shardline-locks-{os.geteuid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        reason = error.strerror
    else:
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            return folder
        reason = "it is no folder of this user"
    raise LaunchError(
        f"{folder}, the folder of the locks on devices, cannot be used: {reason}; remove it, or set {FOLDER} to a "
        "folder on this machine's own disk"
    )


@contextmanager
def locked(
    kind: str, units: Sequence[str], count: int, *, title: str, waits: bool = True
) -> Iterator[Locked]:
    """Lock some devices of this machine, all or none.

    Jobs that wait are served one after the other, so a job that needs all devices is not passed over.

    Args:
        kind: kind of the devices, `gpu` or `core`.
        units: names of the devices to choose from, in order of preference.
        count: number of devices.
        title: description of the job, for the messages of other jobs.
        waits: whether to wait for devices that other jobs have; otherwise nothing is locked.

    Raises:
        LaunchError: there are fewer devices.
    """
    if count > len(units):
        raise LaunchError(
            f"{title} needs {count} {kind}s, and this machine offers {len(units)} ({', '.join(units)}); lower devices"
        )
    folder = lock_folder()
    with ExitStack() as stack:
        found = _take(folder, kind, units, count, title, waits=waits)
        for descriptor in found.descriptors:
            stack.callback(_close, descriptor)
        yield found


def others(kind: str, own: Collection[str]) -> tuple[str, ...]:
    """Return descriptions of the other jobs that have devices of a kind on this machine."""
    names = sorted(path.name for path in lock_folder().glob(f"{kind}-*.lock"))
    mine = {_name(kind, unit) for unit in own}
    busy = (_holder_if_busy(lock_folder() / name) for name in names if name not in mine)
    return tuple(dict.fromkeys(text for text in busy if text is not None))


def _take(
    folder: Path, kind: str, units: Sequence[str], count: int, title: str, *, waits: bool
) -> Locked:
    if not waits:
        return _try(folder, kind, units, count, title) or Locked()
    turn = os.open(folder / f"{kind}.turn", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        is_told = False
        has_turn = False
        while True:
            has_turn = has_turn or _lock(turn)
            if has_turn and (found := _try(folder, kind, units, count, title)):
                return found
            if not is_told:
                is_told = True
                _tell(kind, units, count, title)
            time.sleep(_POLL_S)
    finally:
        os.close(turn)


def _try(folder: Path, kind: str, units: Sequence[str], count: int, title: str) -> Locked | None:
    """Lock the first devices that are free; return None, with nothing locked, if there are too few."""
    taken: dict[str, int] = {}
    try:
        for unit in units:
            if len(taken) == count:
                break
            descriptor = os.open(folder / _name(kind, unit), os.O_RDWR | os.O_CREAT, 0o600)
            if _lock(descriptor):
                taken[unit] = descriptor
            else:
                os.close(descriptor)
        if len(taken) < count:
            return None
        for descriptor in taken.values():
            text = f"{title}, process {os.getpid()}".encode()[:_TEXT_BYTES]
            with suppress(OSError):  # on a full disk the lock alone must do
                os.pwrite(descriptor, text.ljust(_TEXT_BYTES), 0)
        found = Locked(
            units=tuple(taken),
            descriptors=(*taken.values(), _kept(folder)),
            beside=others(kind, taken),
        )
        taken = {}
        return found
    finally:
        for descriptor in taken.values():
            os.close(descriptor)


def _kept(folder: Path) -> int:
    """Lock the folder too: systemd-tmpfiles deletes old files, except below a folder that is locked."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close(descriptor: int) -> None:
    """Close a lock. Ranks that are still ending keep it until they have ended."""
    with suppress(OSError):
        os.close(descriptor)


def _tell(kind: str, units: Sequence[str], count: int, title: str) -> None:
    holders = "; ".join(others(kind, ())) or "another job that waits before it"
    message = f"{title} waits for {count} of {len(units)} {kind}s; in use by {holders}"
    logging.warning("%s", message)
    with suppress(OSError):  # standard error may be closed
        print(message, file=sys.stderr, flush=True)


def _holder_if_busy(path: Path) -> str | None:
    """Return the description of the job that has a lock; None if the lock is free."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        if _lock(descriptor):
            return None
        return (
            os.pread(descriptor, _TEXT_BYTES, 0).decode(errors="replace").strip() or "another job"
        )
    finally:
        os.close(descriptor)


def _name(kind: str, unit: str) -> str:
    return f"{kind}-{unit.replace('/', '_')}.lock"

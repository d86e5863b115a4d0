"""Small files: written atomically, and checked when they are read."""

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from shardline.core.errors import DataError, import_outside_identity

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free space (`shardline gc --delete`) or set SHARDLINE_STORE to a larger disk",
    errno.EDQUOT: "the disk quota is used up; free space (`shardline gc --delete`) or ask for more",
    errno.EROFS: "the file system is read-only; set SHARDLINE_STORE to a writable folder",
    errno.EACCES: "no permission to write there; fix the folder's owner or set SHARDLINE_STORE",
    errno.EEXIST: "a file is in the place of a folder; move the file away",
    errno.EIO: "the disk or the connection to it failed (input/output error); check `dmesg` and fix it",
    errno.EFBIG: "the file is larger than the limit of this file system or shell (`ulimit -f`)",
}


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name only when it is complete and on disk.

    Raises:
        DataError: the file cannot be written (disk full, quota, permission). An earlier file is
            untouched, and no partial file remains.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with renamed_when_complete(path) as scratch, scratch.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)


@contextmanager
def renamed_when_complete(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, for a file, link or folder that is renamed to `path` at the end.

    An earlier file or link is replaced. After an error the temporary path is removed.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _remove(scratch)  # left by a killed process with the same pid
    try:
        yield scratch
        scratch.replace(path)
    finally:
        _remove(scratch)


def _remove(path: Path) -> None:
    with suppress(OSError):  # must not hide the error of the write
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def writing(what: object) -> Iterator[None]:
    """Turn a system error in the block into one sentence about a file or folder.

    Raises:
        DataError: the file or folder could not be written.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch.save raises its own error instead of the system's
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise DataError(f"{what} could not be written: {remedy_of(cause)}") from error


def link_or_copy(source: Path, target: Path) -> bool:
    """Create a hard link to a file, or a copy if there are no hard links; return whether it is a link."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk."""
    sync_file(folder)


def sync_file(path: Path) -> None:
    """Flush the content of a file to disk, whoever wrote it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its parents.

    Raises:
        DataError: the folder cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path} could not be created: {remedy_of(error)}") from error


def check_writable(folder: Path) -> None:
    """Create a folder, and check that it is writable.

    Raises:
        DataError: the folder cannot be created or written.
    """
    make_folder(folder)
    if not os.access(folder, os.W_OK):
        raise DataError(
            f"store {folder} cannot be written to; fix its permissions or mount, or set SHARDLINE_STORE "
            "to a folder that you may write"
        )


def remedy_of(error: OSError) -> str:
    """Return the cause of a failed write and the remedy."""
    return _REMEDIES.get(error.errno or 0, error.strerror or str(error))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of bytes atomically."""
    with atomic_writer(path) as file:
        file.write(content)


def write_json(path: Path, document: Any) -> None:
    """Write a document as indented JSON, atomically and with secrets masked."""
    write_bytes(path, json_bytes(import_outside_identity("redaction").published(document)))


def json_bytes(document: Any) -> bytes:
    """Return a document as JSON, exactly as `write_json` writes it."""
    from msgspec import DecodeError
    from msgspec.json import format as indented

    plain = json.dumps(document, ensure_ascii=False).encode()
    try:
        # with an indent, `json` encodes in Python, which takes three times as long
        return indented(plain, indent=1) + b"\n"
    except DecodeError:  # NaN or infinity
        return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def read_json(path: Path, *, remedy: str) -> Any:
    """Return the content of a JSON file.

    Raises:
        DataError: the file is missing or not JSON; the message ends with the remedy.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        raise DataError(f"{path} is not valid JSON; {remedy}") from None


def read_object(path: Path, *, remedy: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        DataError: the file is missing or not a JSON object; the message ends with the remedy.
    """
    document = read_json(path, remedy=remedy)
    if not isinstance(document, dict):
        raise DataError(f"{path} is not a JSON object; {remedy}")
    return document


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file up to the first broken line, such as a torn last line.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    records = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def utc_stamp(seconds: float | None = None, *, timespec: str = "milliseconds") -> str:
    """Return a time in UTC (ISO 8601, `2026-01-31T10:00:00.000Z`).

    Args:
        seconds: since the epoch; now if None.
        timespec: precision, see `datetime.isoformat`.
    """
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC)
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")

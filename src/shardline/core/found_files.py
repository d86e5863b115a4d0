"""Whether a file that was found for a source is read, and if not why: all sources ask here."""

import errno
import os
from pathlib import Path

from shardline.core.errors import DataError

# Names that file managers and editors leave behind, beside all that begin with a dot.
_LEFT_BEHIND = {
    "__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "$recycle.bin", "system volume information",
    "lost+found", "@eadir",
}  # fmt: skip
_HEADS = {
    b"\x00\x05\x16\x07": "a resource fork of macOS",
    b"\x00\x05\x16\x00": "a resource fork of macOS",
    b"version https://git-lfs": "a pointer of Git LFS, whose file `git lfs pull` fetches",
    b"<!doctype html": "a web page",
    b"<html": "a web page",
}
_WIDE = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name belongs to a program, and is no data."""
    return name.startswith(".") or name.casefold() in _LEFT_BEHIND


def problem_of(path: str | os.PathLike[str], name: str) -> str:
    """Return why a file cannot be read, and what to do, as words that follow its name; empty where it can be.

    Args:
        path: the file.
        name: what of its path counts in the identity.
    """
    if not is_utf8(name):
        return "its name is not UTF-8, expected UTF-8, since the identity contains names; rename it"
    if os.path.isfile(path):  # noqa: PTH113 (a Path of each of 100,000 costs more than the question)
        return ""
    if not os.path.lexists(path):
        return "is missing (No such file or directory); restore it, or drop it from source.files"
    if not os.path.islink(path):  # noqa: PTH114
        return "is not a regular file, expected one; move it elsewhere"
    target = shown(os.readlink(path))  # noqa: PTH115
    try:
        os.stat(path)  # noqa: PTH116
    except OSError as error:
        if error.errno == errno.ELOOP:
            return f"is a link that leads back to itself (through {target}), expected a file; remove the link"
        return f"is a broken link (to {target}), expected a file; restore what it leads to, or remove the link"
    return f"is a link to {target}, which is not a regular file; remove the link"


def is_utf8(name: str) -> bool:
    """Return whether a name can be written as UTF-8; the system's bytes may be anything."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(name: str | os.PathLike[str]) -> str:
    """Return a file's name for people, with bytes that are not UTF-8 as `\\xe9`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error of a source's file that cannot be read."""
    if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
        found = problem_of(path, path.name) or f"cannot be read ({error.strerror}); run this again"
        return DataError(f"source file {shown(path)}: {found}")
    return DataError(
        f"source file {shown(path)}: cannot be read ({error.strerror}); fix its permissions or drop it from "
        "source.files"
    )


def content_of(head: bytes) -> str:
    """Return what a file is that is not the data which its name claims, by its first bytes; or nothing."""
    start = head.lstrip().lower() if head[:1] not in (b"\x00",) else head
    return next((what for magic, what in _HEADS.items() if start.startswith(magic)), "")


def wide_encoding(head: bytes) -> str:
    """Return the encoding of text with two or four bytes for each character, by its first bytes; or nothing."""
    for mark, name in _WIDE.items():
        if head.startswith(mark):
            return name
    # without a mark, as English is: every second byte of the first some is zero
    halves = (head[:64:2], head[1:64:2])
    return "UTF-16" if len(head) > 3 and any(half and not any(half) for half in halves) else ""

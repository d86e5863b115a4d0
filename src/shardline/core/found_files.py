"""Checks of the files of sources: hidden files, broken links, unreadable files, wrong formats."""

import errno
import os
from pathlib import Path

from shardline.core.errors import DataError

NotRead = dict[str, dict[str, int | list[str]]]  # `count` and `first` names, by reason
# Reasons why a file is not read.
HIDDEN, OTHERS, UNUSABLE, BARREN, OTHER_CASE = (
    "hidden", "of another kind", "cannot be read", "folders without any", "ending in other capitals",
)  # fmt: skip
# Files and folders that programs leave behind, besides names that begin with a dot.
_LEFT_BEHIND = {
    "__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "$recycle.bin", "system volume information",
    "lost+found", "@eadir", "#recycle",
}  # fmt: skip
_HEADS = {
    b"\x00\x05\x16\x07": "a resource fork of macOS",
    b"\x00\x05\x16\x00": "a resource fork of macOS",
    b"version https://git-lfs": "a pointer of Git LFS, whose file `git lfs pull` fetches",
    b"<!doctype html": "a web page",
    b"<html": "a web page",
    b"par1": "a Parquet file",
    b"%pdf-": "a PDF file",
    b"\xd0\xcf\x11\xe0": "a file of Microsoft Office, which can be saved as CSV",
    b"sqlite format 3": "a database of SQLite",
    b"\x89hdf": "an HDF5 file",
    b"\x93numpy": "a file of NumPy",
}
_TAR = slice(257, 262)  # where a tar archive has its name
_WIDE = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def is_hidden(name: str) -> bool:
    """Return whether a file or folder belongs to a program and is not data, by its name."""
    return name.startswith(".") or name.casefold() in _LEFT_BEHIND


def problem_of(path: str | os.PathLike[str], name: str) -> str:
    """Return why a file cannot be read, and the remedy, to follow its name; empty if the file can be read.

    Args:
        path: the file.
        name: the part of its path that the identity contains.
    """
    if not is_utf8(name):
        return "its name is not UTF-8, expected UTF-8, since the identity contains names; rename it"
    if os.path.isfile(path):  # noqa: PTH113 (creating 100,000 Path objects costs more than the calls)
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
    """Return whether a file's name is valid UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(name: str | os.PathLike[str]) -> str:
    """Return a file's name for messages, with bytes that are not UTF-8 as `\\xe9`."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return text.replace("\n", "\\n").replace("\r", "\\r")


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error for a source file that cannot be read."""
    if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
        found = problem_of(path, path.name) or f"cannot be read ({error.strerror}); run this again"
        return DataError(f"source file {shown(path)}: {found}")
    return DataError(
        f"source file {shown(path)}: cannot be read ({error.strerror}); fix its permissions or drop it from "
        "source.files"
    )


def content_of(head: bytes) -> str:
    """Return what a file really is if its first bytes show that it is no data; else an empty text."""
    start = head.lstrip().lower() if head[:1] not in (b"\x00",) else head
    if head[_TAR] == b"ustar":
        return "a tar archive, whose files can be unpacked"
    return next((what for magic, what in _HEADS.items() if start.startswith(magic)), "")


def wide_encoding(head: bytes) -> str:
    """Return `UTF-16` or `UTF-32` if the first bytes of a file show this encoding; else an empty text."""
    for mark, name in _WIDE.items():
        if head.startswith(mark):
            return name
    # English text without a byte order mark: every second byte is zero
    halves = (head[:64:2], head[1:64:2])
    return "UTF-16" if len(head) > 3 and any(half and not any(half) for half in halves) else ""

"""Small files that a launch copies to the other processes, at the same path below their working folders."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from snakemake_executor_plugin_azureml.node.errors import NodeError

_LIMIT_BYTES = 64 * 2**20


def relative_to_working_folder(path: str, working_folder: Path) -> str:
    """Return a path below the working folder as a relative path.

    Raises:
        NodeError: the path is not below the working folder.
    """
    # not resolved: a link within the folder counts as a file there
    relative = Path(os.path.relpath(working_folder / path, working_folder))
    if ".." in relative.parts:
        raise NodeError(
            f"{path} is not below the working folder {working_folder}, so the other processes have "
            "no such path; use a path below it, or read the file from a mount"
        )
    return relative.as_posix()


def read_files(paths: Sequence[str], working_folder: Path) -> tuple[list[dict[str, object]], bytes]:
    """Read the files to send with a launch.

    Returns:
        Path, size and digest of each file; and all contents in that order.

    Raises:
        NodeError: a file is missing or outside the working folder, or all files together are too large.
    """
    entries, contents, total = [], [], 0
    for path in paths:
        relative = relative_to_working_folder(path, working_folder)
        try:
            total += (working_folder / relative).stat().st_size
            if total > _LIMIT_BYTES:
                raise NodeError(
                    f"--file {path}: the files of a launch have {total} bytes, more than "
                    f"{_LIMIT_BYTES}; read bulky data from a mount"
                )
            content = (working_folder / relative).read_bytes()
        except OSError as error:
            raise NodeError(
                f"--file {path} cannot be read ({error.strerror}); create the file first"
            ) from None
        entries.append(
            {"path": relative, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        )
        contents.append(content)
    return entries, b"".join(contents)


def write_files(entries: Sequence[dict[str, Any]], payload: bytes, working_folder: Path) -> None:
    """Write the files that were received with a launch; existing files are kept.

    Raises:
        NodeError: a file with other contents exists at a path, or a file cannot be written.
    """
    start = 0
    for entry in entries:
        content = payload[start : start + entry["size"]]
        start += entry["size"]
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise NodeError(f"{entry['path']} was changed on the way; run the job again")
        try:
            _write(below(entry["path"], working_folder, is_file=True), content)
        except OSError as error:
            raise NodeError(
                f"{entry['path']} cannot be written below {working_folder} ({error.strerror}); "
                "check permissions and free space"
            ) from None


def below(path: str, root: Path, *, is_file: bool = False) -> Path:
    """Return a path at or below a folder; links are followed, as they may lead to a mount.

    Args:
        is_file: whether the last part may be a link; an existing file is never overwritten.

    Raises:
        NodeError: the path is elsewhere.
    """
    pure = PurePosixPath(path)
    place = root / pure
    folder = place.parent if is_file else place
    is_relative = not pure.is_absolute() and ".." not in pure.parts
    if not is_relative or not folder.resolve().is_relative_to(root.resolve()):
        raise NodeError(f"{path} is not below {root}; name a path below it")
    return place


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        scratch.write_bytes(content)
        with suppress(FileExistsError):
            os.link(scratch, target)  # unlike a rename, never replaces another file
            return
    finally:
        scratch.unlink(missing_ok=True)
    # the leader's own file, if both are on one node, or the file of another process on this node
    if target.read_bytes() != content:
        raise NodeError(
            f"{target} already exists and differs from the leader's; the file is not overwritten: delete it, "
            "exclude it from the code snapshot (.amlignore), or give the file another name"
        )

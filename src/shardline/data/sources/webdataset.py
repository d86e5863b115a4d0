"""Source of WebDataset tar files. Files whose names are equal up to the first dot are one sample."""

import io
import math
import re
import tarfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from shardline.core.errors import DataError
from shardline.data.columns import Column
from shardline.data.sources.from_files import UnusableError
from shardline.data.sources.samples import Sample, Samples, type_of
from shardline.data.sources.source import shard_slices

_NAME = re.compile(r"((?:.*/|)[^./]+)\.([^/]+)", re.DOTALL)
_NUMBERS = ("cls", "cls2", "id", "index", "inx")  # decoded to numbers by WebDataset
_TEXTS = ("json", "jsonl", "text", "transcript", "txt")
_BLOCK = 512


class WebDataset(Samples):
    """Samples of WebDataset tar files, in order.

    A shard is a byte range of all files. A sample belongs to the shard in which its first byte is.
    The name of a column is the lowercase part of a file name after the first dot; `jpg;png` is
    either of both. Numbers are read from text (`cls`), JSON or `npy` files.
    """

    @cached_property
    def found(self) -> dict[str, str | UnusableError]:
        """Column types by the files of the first sample: numbers (`cls`), text (`txt`), arrays (`npy`), or bytes."""
        first = next(_samples(self.files[0], 0, 0, 1), None)
        if first is None:
            raise DataError(
                f"{self.files[0]}: contains no sample, expected files such as 0001.jpg and 0001.cls in it; remove it "
                "from source.files"
            )
        return {name: _type_of(name, content) for name, content in first.values.items()}

    def _type(self, name: str, written: str) -> str:
        # a column may be missing in the first sample, so a given type is not checked
        return written or super()._type(name, written)

    def decoded(self, in_file: str, content: Any, column: Column) -> Any:
        """Return the array of an `npy` file, or the content of any other file."""
        is_npy = column.kind == "array" and in_file.rpartition(".")[2] == "npy"
        return _from_npy(content) if is_npy else content

    def samples(self, shard: int) -> Iterator[Sample]:
        """Yield the samples of a shard: the header of the first file is in the shard's byte range."""
        sizes = [path.stat().st_size for path in self.files]
        for index, first, last in shard_slices(sizes, shard, self.num_shards):
            yield from _samples(self.files[index], index, first, last)


def _type_of(name: str, content: bytes) -> str | UnusableError:
    if name.rpartition(".")[2] != "npy":
        return "int64" if name in _NUMBERS else "text" if name in _TEXTS else "bytes"
    try:
        return type_of(_from_npy(content))
    except UnusableError as error:
        return error


def _samples(path: Path, index: int, first: int, last: int) -> Iterator[Sample]:
    key, begin, values = "", 0, dict[str, bytes]()
    with path.open("rb") as opened:
        file = _WithinItsEnd(opened)
        for member in _members(path, file):
            parts = _NAME.fullmatch(member.name)
            if not member.isfile() or not parts or parts[1].rpartition("/")[2].startswith("__"):
                continue
            if parts[1] != key:
                if values:
                    yield _sample(path, index, key, begin, values)
                key, begin, values = parts[1], member.offset, {}
                if begin >= last:
                    return
            extension = parts[2].lower()
            if extension in values:
                raise DataError(
                    f"{path}: sample {key} has two files {member.name}, expected different names; rename one of them"
                )
            if begin >= first:
                values[extension] = _content(path, file, member)
        if values:
            yield _sample(path, index, key, begin, values)


class _WithinItsEnd:
    """A file that limits reads to its end, since Python allocates the claimed size before it reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._end = file.seek(0, io.SEEK_END)
        self.seek(0)

    def read(self, size: int) -> bytes:
        return self._file.read(max(0, min(size, self._end - self.tell())))

    def seek(self, place: int) -> int:
        return self._file.seek(min(place, self._end))

    def tell(self) -> int:
        return self._file.tell()


def _sample(path: Path, index: int, key: str, begin: int, values: dict[str, bytes]) -> Sample:
    return Sample(file=index, position=begin, where=f"{path}, sample {key}", values=values)


def _members(path: Path, file: Any) -> Iterator[tarfile.TarInfo]:
    end = 0  # end of the content read so far
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while member := archive.next():
                if archive.offset <= member.offset:  # a negative size would loop forever
                    raise tarfile.ReadError(f"{member.name} has {member.size:,} bytes")
                yield member
                archive.members.clear()  # type: ignore[attr-defined] # else it keeps every member
                end = archive.offset
            end = archive.offset
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        with path.open("rb") as again:
            is_packed = again.read(3).startswith((b"\x1f\x8b", b"\x28\xb5\x2f", b"BZh"))
        place = f" after byte {end:,}" if end else ""
        reason = "it is compressed" if is_packed else " ".join(str(error).split())[:200] + place
        raise _damaged(path, reason, "unpack it" if is_packed else "") from None
    file.seek(end)
    # tarfile stops without an error at a damaged header and at the end of a truncated file
    if file.read(_BLOCK) != bytes(_BLOCK):
        raise _damaged(path, f"neither a file header nor an end mark at byte {end:,}")


def _content(path: Path, file: Any, member: tarfile.TarInfo) -> bytes:
    file.seek(member.offset_data)
    content: bytes = file.read(member.size)
    if len(content) != member.size or member.issparse():
        raise _damaged(
            path,
            f"{member.name} at byte {member.offset:,} has {len(content):,} of {member.size:,} bytes",
        )
    return content


def _from_npy(content: bytes) -> np.ndarray:
    """Return the array of an `npy` file.

    Raises:
        UnusableError: The file is damaged, or contains pickled objects.
    """
    file = io.BytesIO(content)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
        if min(shape, default=0) < 0:  # NumPy would infer a size of -1
            raise UnusableError(
                f"is an npy array of shape {list(shape)}, expected no sizes below 0"
            )
        if dtype.hasobject:
            raise UnusableError("is an npy array of pickled objects, expected numbers")
        array = np.frombuffer(content, dtype, math.prod(shape), file.tell())
        return array.reshape(shape, order="F" if is_fortran else "C")
    except (ValueError, OverflowError, EOFError, SyntaxError, TypeError) as error:
        raise UnusableError(
            f"is not an npy array ({str(error)[:100]}), expected a complete one"
        ) from None


def _damaged(path: Path, reason: str, remedy: str = "") -> DataError:
    return DataError(
        f"{path}: cannot be read as a tar file ({reason}), expected a complete one; "
        f"{remedy or 'download it again, or remove it from source.files'}"
    )

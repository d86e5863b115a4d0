"""Base class of sources that read chunks: files of samples that are listed in an `index.json`.

MosaicML's MDS and LitData share this format. A chunk contains the number of samples N (uint32),
N + 1 offsets into the file (uint32), and the samples.
"""

import json
import mmap
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from shardline.core.errors import DataError
from shardline.data.columns import Column
from shardline.data.sources.from_files import UnusableError
from shardline.data.sources.samples import Sample, Samples
from shardline.data.sources.source import shard_slices

INDEX = "index.json"
_MOST = 2**32  # offsets have 32 bits
_REMEDY = "copy the whole folder again"
Codec = Literal["zstd", "gzip", "brotli", "snappy"]
Entry = tuple[str, dict[str, Any]]  # name of a chunk, and its fields samples, size, codec, entry


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A file of samples, as described in an index.

    Attributes:
        file: Index of the file in the source's `files`.
        path: Path of the file.
        samples: Number of samples.
        size: Unpacked size in bytes.
        codec: Compression of the file; None if it is plain.
        entry: Entry of the file in the index.
    """

    file: int
    path: Path
    samples: int
    size: int
    codec: Codec | None
    entry: dict[str, Any]

    def contents(self, first: int, last: int) -> Iterator[bytes]:
        """Yield the bytes of the samples [first, last).

        Raises:
            DataError: The file differs from its entry in the index, or its offsets are invalid.
        """
        held, offsets = self._held, self.offsets
        for place in range(first, last):
            yield bytes(held[offsets[place] : offsets[place + 1]])

    @cached_property
    def _held(self) -> memoryview:
        try:
            with self.path.open("rb") as file:
                if self.codec:
                    packed = pa.py_buffer(file.read())
                    held = memoryview(pa.decompress(packed, self.size, codec=self.codec))
                else:
                    held = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
            raise damaged(
                self.path, f"cannot be read ({' '.join(str(error).split())[:200]})"
            ) from None
        if len(held) != self.size:
            raise damaged(self.path, f"has {len(held):,} bytes, expected {self.size:,} by {INDEX}")
        return held

    @cached_property
    def offsets(self) -> list[int]:
        """Offset of each sample's beginning and of the last sample's end [N + 1]."""
        held, head = self._held, 4 * (self.samples + 2)
        found = int.from_bytes(held[:4], "little")
        if found != self.samples or head > len(held):
            raise damaged(self.path, f"has {found:,} samples, expected {self.samples:,} by {INDEX}")
        offsets = np.frombuffer(held, "<u4", self.samples + 1, 4).astype(np.int64)
        if offsets[0] < head or offsets[-1] > len(held) or (np.diff(offsets) < 0).any():
            raise damaged(
                self.path, f"has invalid offsets, expected rising ones from {head} to {len(held):,}"
            )
        return list(offsets.tolist())


class Chunks(Samples):
    """Base class of sources that read the chunks of all indexes among the source's files."""

    @abstractmethod
    def read_index(self, path: Path, index: Any) -> Iterator[Entry]:
        """Yield the chunks listed in an index.

        Raises:
            DataError: The samples of a chunk cannot be read. The message names the index.
            KeyError, TypeError, ValueError: The index has another format.
        """

    @abstractmethod
    def column_type(self, form: str, content: bytes) -> str:
        """Return the column type for a storage form. Some forms need the first value to decide.

        Raises:
            UnusableError: There is no column type for the form.
        """

    @abstractmethod
    def decode(self, form: str, content: bytes) -> Any:
        """Decode a value stored in a form; see `decoded`."""

    @abstractmethod
    def values(self, chunk: Chunk, content: bytes) -> dict[str, tuple[str, bytes]]:
        """Return the values of a sample by name, as (form, bytes).

        Raises:
            UnusableError: The sizes of the values do not match the size of the sample.
        """

    @cached_property
    def chunks(self) -> list[Chunk]:
        """Chunks, in the order of the indexes.

        Raises:
            DataError: An index cannot be read, or lists a missing file. The message names both.
        """
        places = {path.resolve(): place for place, path in enumerate(self.files)}
        indexes = [path for path in self.files if path.name == INDEX]
        found: dict[Path, Chunk] = {}
        for index in sorted(indexes, key=lambda path: len(path.parts)):
            for name, fields in self._read(index):
                path = (index.parent / name).resolve()
                if path not in places:
                    raise damaged(index, f"lists {name}, which is not in source.files")
                if not (0 <= fields["samples"] < _MOST and 0 <= fields["size"] < _MOST):
                    found_ = f"{fields['samples']:,} samples of {fields['size']:,} bytes"
                    raise damaged(index, f"lists {name} with {found_}, expected numbers below 2^32")
                if path not in found:  # the index of a folder may list files of its subfolders
                    found[path] = Chunk(file=places[path], path=self.files[places[path]], **fields)
        if not found:
            raise DataError(
                f"{self.files[0]}: no {INDEX} beside it lists files of samples, expected a folder that the library "
                "wrote; list the folder itself in source.files"
            )
        return list(found.values())

    def _read(self, path: Path) -> list[Entry]:
        try:
            return list(self.read_index(path, json.loads(path.read_bytes())))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise damaged(path, f"is not an index of this format ({reason[:200]})") from None

    def samples(self, shard: int) -> Iterator[Sample]:
        """Yield the samples of a shard. Damaged samples are skipped or rejected."""
        sizes = [chunk.samples for chunk in self.chunks]
        for place, first, last in shard_slices(sizes, shard, self.num_shards):
            chunk = self.chunks[place]
            for position, content in enumerate(chunk.contents(first, last), first):
                where = f"{chunk.path}, row {position + 1}"
                try:
                    values = self.values(chunk, content)
                except UnusableError as error:
                    self.leave_out(shard, f"{where}: {error}")
                    continue
                yield Sample(file=chunk.file, position=position, where=where, values=values)
            vars(chunk).pop("_held", None)  # frees the memory of the file

    @cached_property
    def found(self) -> dict[str, str | UnusableError]:
        """Column types by the index, or by the first sample for arrays of any shape."""
        chunk = next(chunk for chunk in self.chunks if chunk.samples)
        try:
            first = self.values(chunk, next(chunk.contents(0, 1)))
        except UnusableError as error:
            raise damaged(chunk.path, f"row 1: {error}") from None
        types: dict[str, str | UnusableError] = {}
        for name, value in first.items():
            try:
                types[name] = self.column_type(*value)
            except UnusableError as error:
                types[name] = error
        return types

    def decoded(self, in_file: str, content: Any, column: Column) -> Any:
        """Decode a value by its form."""
        return self.decode(*content)


def split(
    content: bytes, forms: Mapping[str, str], sizes: Sequence[int], start: int
) -> dict[str, tuple[str, bytes]]:
    """Split a sample into its consecutive values, as (form, bytes) by name.

    Raises:
        UnusableError: The values do not end at the end of the sample.
    """
    parts, place = [], start
    for size in sizes:
        parts.append(content[place : place + size])
        place += size
    if place != len(content):
        raise UnusableError(f"has {len(content):,} bytes, expected {place:,} by the sizes in it")
    return dict(zip(forms, zip(forms.values(), parts, strict=True), strict=True))


def numbers(
    content: bytes, dtype: np.dtype[Any] | str, shape: tuple[int, ...] | None
) -> np.ndarray:
    """Return an array of little-endian numbers, of a shape or of any length (None).

    Raises:
        UnusableError: The number of bytes does not match.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    try:
        array: np.ndarray = np.frombuffer(content, kind)
        return array if shape is None else array.reshape(shape)
    except ValueError:
        expected = kind.name + ("" if shape is None else f" of shape {list(shape)}")
        raise UnusableError(f"has {len(content)} bytes, expected {expected}") from None


def damaged(path: Path, found: str) -> DataError:
    """Return the error for a damaged file."""
    return DataError(f"{path}: {found}; {_REMEDY}")

"""Source of IDX files, the format of MNIST: images and labels, plain or gzip."""

import gzip
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from shardline.core.errors import DataError
from shardline.data.sources.from_files import FileSource, ids_in_file
from shardline.data.sources.packed import is_gzip
from shardline.data.sources.source import Schema, Table, shard_slices

# The third byte is the type; numbers are big-endian (http://yann.lecun.com/exdb/mnist).
_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_STORED = {"u1": "uint8", "i1": "int32", "i2": "int32", "i4": "int32", "f4": "float32", "f8": "float64"}  # fmt: skip
_REMEDY = "download it again, or remove it from source.files"


class Idx(FileSource):
    """Images with their labels, such as MNIST, Fashion-MNIST, KMNIST and EMNIST.

    A file of one dimension contains labels. The labels of `train-images-idx3-ubyte.gz` are in
    `train-labels-idx1-ubyte.gz`. If there are only two files, one of images and one of
    labels, their names do not matter.

    Args:
        classes: Class names in label order. Default: the numbers up to the largest label.
    """

    def __init__(self, *, classes: Sequence[str | int] = (), **arguments: Any) -> None:
        super().__init__(**arguments)
        self._classes = tuple(map(str, classes))
        self._latest: tuple[int, np.ndarray] | None = None

    @property
    def schema(self) -> Schema:
        """Schema of the images as stored, such as [28, 28] uint8."""
        shape, dtype = self._shape_and_dtype
        highest = max((int(labels.max()) for labels in self._labels if len(labels)), default=0)
        return Schema(
            feature_shape=shape,
            feature_dtype=_STORED[dtype[1:]],
            classes=self._classes or tuple(map(str, range(highest + 1))),
        )

    @property
    def inferred(self) -> dict[str, Any]:
        """The classes if no setting lists them, and the labels file of each images file."""
        pairs = {
            self.names[i]: self.names[labels] for i, labels in self._pairs if labels is not None
        }
        found: dict[str, Any] = {} if self._classes else {"classes": list(self.schema.classes)}
        return found | {"labels of images": pairs}

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the rows of a shard, one block per file."""
        sizes, dtype = [len(labels) for labels in self._labels], self.schema.feature_dtype
        for pair, first, last in shard_slices(sizes, shard, self.num_shards):
            images = self._pairs[pair][0]
            ids = ids_in_file(self.names[images], np.arange(first, last))
            yield Table(
                ids=ids,
                features=self._images(images)[first:last].astype(dtype),
                labels=self._labels[pair][first:last].astype(np.int64),
                splits=self.splits_of_file(images, ids),
            )

    def _images(self, index: int) -> np.ndarray:
        # the next shard usually begins in the last file of this shard
        if self._latest is None or self._latest[0] != index:
            self._latest = index, read_idx(self.files[index])
        return self._latest[1]

    @cached_property
    def _pairs(self) -> list[tuple[int, int | None]]:
        """Indices in `files` of each images file and its labels file (None: no labels)."""
        dimensions = [len(_header(path)[1]) for path in self.files]
        images = [i for i, number in enumerate(dimensions) if number > 1]
        labels = [i for i, number in enumerate(dimensions) if number == 1]
        if not labels and self.labels_optional:
            return [(one, None) for one in images]
        if len(images) == len(labels) == 1:
            return [(images[0], labels[0])]
        by_name = {_stem(self.files[i]): i for i in labels}
        pairs = [(i, by_name.pop(_label_stem(self.files[i]), None)) for i in images]
        lonely = [self.files[i] for i, other in pairs if other is None]
        lonely += [self.files[i] for i in by_name.values()]
        if lonely:
            raise DataError(
                f"{lonely[0]}: its other half is missing, expected an images-idx3 and a labels-idx1 file "
                "of the same name; add the missing file to source.files"
            )
        return [*pairs]

    @property
    def has_labels(self) -> bool:
        """Whether a file of labels is among the files."""
        return all(labels is not None for _, labels in self._pairs)

    @cached_property
    def _labels(self) -> list[np.ndarray]:
        found = []
        for images, labels in self._pairs:
            count = _header(self.files[images])[1][0]
            if labels is None:
                found.append(np.zeros(count, np.uint8))
                continue
            column = read_idx(self.files[labels])
            if len(column) != count:
                raise DataError(
                    f"{self.files[labels]}: {len(column)} labels, expected {count} for the images of "
                    f"{self.files[images].name}; download both files again"
                )
            self._check_split(images, labels)
            found.append(column)
        return found

    def _check_split(self, images: int, labels: int) -> None:
        splits = self.splits.get("files")
        if splits and splits[images] != splits[labels]:
            raise DataError(
                f"{self.files[labels]}: splits.files assigns it to {splits[labels]} and its images to "
                f"{splits[images]}; assign both files to the same split"
            )

    @cached_property
    def _shape_and_dtype(self) -> tuple[tuple[int, ...], str]:
        heads = [(self.files[i], _header(self.files[i])) for i, _ in self._pairs]
        first, (dtype, (_, *shape)) = heads[0]
        for path, (other_dtype, (_, *other)) in heads:
            if (other, other_dtype) != (shape, dtype):
                raise DataError(
                    f"{path}: images of {other} {other_dtype[1:]}, but {first.name} has {shape} {dtype[1:]}; "
                    "make two datasets of them"
                )
        return tuple(shape), dtype


def read_idx(path: Path) -> np.ndarray:
    """Return the array of an IDX file. A plain file is memory-mapped.

    Raises:
        DataError: The file is empty, truncated or not an IDX file. The message names it.
    """
    dtype, shape = _header(path)
    offset, size = 4 + 4 * len(shape), math.prod(shape) * np.dtype(dtype).itemsize
    if not is_gzip(path):
        found = path.stat().st_size - offset
        if found == size:
            return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
    else:
        with _open(path) as file:
            # the read allocates the size in the header at once; gzip packs at most 1,032 bytes into one
            most = 1032 * path.stat().st_size
            content = _read(file, path, min(offset + size + 1, most))[offset:]
        found = len(content)
        if found == size:
            return np.frombuffer(content, dtype=dtype).reshape(shape)
    more = "or more" if found > size else "only"
    raise DataError(
        f"{path}: {found:,} bytes {more} after its header, expected {size:,} for {shape}; {_REMEDY}"
    )


def _header(path: Path) -> tuple[str, tuple[int, ...]]:
    with _open(path) as file:
        head = _read(file, path, 4)
        if not head:
            raise DataError(f"{path}: is empty, expected an IDX file; {_REMEDY}")
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _DTYPES or not 0 < head[3] < 33:
            raise DataError(
                f"{path}: begins with {head.hex()}, expected an IDX header (0000, type, dimensions); {_REMEDY}"
            )
        sizes = _read(file, path, 4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise DataError(f"{path}: ends within its header, expected {head[3]} dimensions; {_REMEDY}")
    return _DTYPES[head[2]], tuple(map(int, np.frombuffer(sizes, ">u4")))


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if is_gzip(path) else path.open("rb")


def _read(file: IO[bytes], path: Path, size: int) -> bytes:
    try:
        return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: cannot be unpacked ({error}), expected a complete gzip file; {_REMEDY}"
        ) from None


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz")


def _label_stem(path: Path) -> str:
    return re.sub(r"idx\d", "idx1", _stem(path).replace("images", "labels"))

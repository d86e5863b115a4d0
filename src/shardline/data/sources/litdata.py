"""Folders that LitData optimised: `index.json` and `chunk-*.bin` files, plain or zstd.

The format is that of `litdata/streaming/writer.py` and `serializers.py`: a sample is the sizes
(uint32) of the leaves of what was written, and the leaves' bytes; with a `TokensLoader` it is an
array alone.
"""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.data.columns import Column
from shardline.data.sources.chunks import Chunk, Chunks, split
from shardline.data.sources.samples import UnusableError, type_of, typed

_TORCH = (
    "float32", "float32", "float64", "float64", "", "", "", "", "float16", "float16", "", "uint8", "int8",
    "int16", "int16", "int32", "int32", "int64", "int64", "bool", "uint16",
)  # fmt: skip
_NUMPY = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "", "", "bool",
)  # fmt: skip
_SCALARS = {"int": "int64", "float": "float64", "bool": "bool"}
_TEXTS = ("str", "text")
_FILES = ("bytes", "file", "jpeg", "tifffile", "tiff", "pdf")  # whose bytes are stored as they are
_TOKENS = "TokensLoader"


class LitData(Chunks):
    """Samples of LitData; leaves that were pickled are never read.

    A sample that is a dict has its keys as columns, a list or tuple `item_0`, `item_1`, ..., what
    is nested `key.0` and `key.inner`, and an array alone is `tokens`, else `sample`.
    """

    def read_index(self, path: Path, index: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the chunks that an index lists."""
        config = index["config"]
        self._check(path, config)
        names = _names(json.loads(config["data_spec"])[1], config["item_loader"])
        formats = config["data_format"]
        if len(names) != len(formats):
            raise ValueError(f"{len(formats)} formats of {len(names)} leaves")
        for chunk in index["chunks"]:
            yield (
                str(chunk["filename"]),
                {
                    "samples": int(chunk["chunk_size"]),
                    "size": int(chunk["chunk_bytes"]),
                    "codec": "zstd" if config["compression"] else None,
                    "entry": {"formats": dict(zip(names, formats, strict=True)), **config},
                },
            )

    def _check(self, path: Path, config: dict[str, Any]) -> None:
        compression, level = str(config["compression"]), config.get("compression_level")
        loader = config.setdefault("item_loader", "PyTreeLoader")
        found = ""
        if config.get("encryption"):
            found = "encryption"
        elif config["compression"] and (compression.partition(":")[0] != "zstd" or level):
            found = f"compression={compression}, compression_level={level}"
        elif loader not in ("PyTreeLoader", _TOKENS):
            found = f"item_loader={loader}"
        if found:
            raise DataError(
                f"{path}: its chunks have {found}, expected samples that are plain, or zstd by whole chunks; optimize "
                'them again without, or with compression_level="chunk"'
            )

    @cached_property
    def found(self) -> dict[str, str | UnusableError]:
        """Types by the first chunk's formats; those of arrays of any shape by its first sample."""
        chunk, values = self.first
        types: dict[str, str | UnusableError] = {}
        for name, written in chunk.entry["formats"].items():
            try:
                types[name] = _type_of(written, values[name])
            except UnusableError as error:
                types[name] = error
        return types

    def values(self, chunk: Chunk, content: bytes) -> dict[str, Any]:
        """Return a sample's values as (format, bytes) by name."""
        formats = chunk.entry["formats"]
        if chunk.entry["item_loader"] == _TOKENS:
            return {name: (written, content) for name, written in formats.items()}
        num_leaves = len(formats)
        if not content:
            raise DataError(
                f"{chunk.path}: holds its samples as Arrow rows, as LitData does where one is nested or missing, "
                "expected samples of numbers, text, bytes and arrays; optimize them again as such"
            )
        if len(content) < 4 * num_leaves:
            raise UnusableError(
                f"has {len(content)} bytes, expected the sizes of {num_leaves} leaves"
            )
        sizes = np.frombuffer(content, "<u4", num_leaves).tolist()
        parts = split(content, sizes, 4 * num_leaves)
        return dict(zip(formats, zip(formats.values(), parts, strict=True), strict=True))

    def decoded(self, in_file: str, content: Any, column: Column) -> Any:
        """Return a value by its format."""
        return _decode(*content)


def _names(spec: dict[str, Any], loader: str) -> list[str]:
    if spec["type"] is None:
        return ["tokens" if loader == _TOKENS else "sample"]
    is_dict = spec["type"].endswith("dict")
    return [name if is_dict else f"item_{name}" for name in _leaves(spec)]


def _leaves(spec: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the leaves of a tree, as torch's module of trees writes it."""
    children = spec["children_spec"]
    is_dict = str(spec["type"]).endswith("dict")
    keys: list[Any] = json.loads(spec["context"]) if is_dict else list(range(len(children)))
    for key, child in zip(keys, children, strict=True):
        inner = [""] if child["type"] is None else [f".{name}" for name in _leaves(child)]
        yield from (f"{key}{name}" for name in inner)


def _type_of(written: str, content: tuple[str, bytes]) -> str:
    kind, _, number = written.partition(":")
    if kind in _SCALARS:
        return _SCALARS[kind]
    if kind.startswith("no_header_"):
        return typed(_dtype(kind.removeprefix("no_header_"), number), None)
    return type_of(_decode(*content))


def _dtype(kind: str, number: str | int) -> np.dtype[Any]:
    known = _TORCH if kind == "tensor" else _NUMPY
    name = known[int(number)] if str(number).isdecimal() and int(number) < len(known) else ""
    if not name:
        raise UnusableError(f"is a {kind} of type number {number}, expected one of real numbers")
    return np.dtype(name).newbyteorder("<")


def _decode(written: str, content: bytes) -> Any:
    kind, _, number = written.partition(":")
    if kind in _FILES or kind == "image":
        return content
    if kind in _TEXTS:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise UnusableError(f"has no UTF-8 at byte {error.start}, expected text") from None
    if kind in _SCALARS:
        return _numbers(content, np.dtype(_SCALARS[kind]).newbyteorder("<"), ())
    if kind in ("no_header_tensor", "no_header_numpy"):
        return _numbers(content, _dtype(kind.removeprefix("no_header_"), number), None)
    if kind in ("tensor", "numpy"):
        return _array(kind, content)
    raise UnusableError(
        f"is serialized as {written}, expected a form of numbers, text or bytes that can be read without running code"
    )


def _array(kind: str, content: bytes) -> np.ndarray:
    # tensors have a big-endian header since LitData 0.2.40 or so, whose numbers are all small
    order = ">" if kind == "tensor" and not any(content[0:8:4]) else "<"
    head = np.frombuffer(content[:8], f"{order}u4")
    dimensions = 4 * int(head[1]) if len(head) == 2 else 0
    if len(head) < 2 or len(content) < 8 + dimensions:
        raise UnusableError(f"has {len(content)} bytes, expected type and shape of a {kind}")
    shape = np.frombuffer(content, f"{order}u4", int(head[1]), 8).tolist()
    return _numbers(content[8 + dimensions :], _dtype(kind, int(head[0])), tuple(shape))


def _numbers(content: bytes, dtype: np.dtype[Any], shape: tuple[int, ...] | None) -> np.ndarray:
    try:
        array: np.ndarray = np.frombuffer(content, dtype)
        return array if shape is None else array.reshape(shape)
    except ValueError:
        expected = f"{dtype.name} of shape {list(shape)}" if shape is not None else dtype.name
        raise UnusableError(f"has {len(content)} bytes, expected {expected}") from None

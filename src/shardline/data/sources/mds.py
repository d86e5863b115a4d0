"""Source of MosaicML Streaming folders: `index.json` and `.mds` files, plain or compressed.

The format is defined in `streaming/base/format/mds` (version 2). A sample contains the sizes
(uint32) of the columns of varying size, and the bytes of the columns.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.data.sources.chunks import Chunk, Chunks, Entry, numbers, split
from shardline.data.sources.from_files import UnusableError
from shardline.data.sources.samples import shorten, text_of, type_of, typed

_SCALARS = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
)  # fmt: skip
_TYPES = {"int": "int64", "bytes": "bytes", "jpeg": "bytes", "png": "bytes", "str": "text", "json": "text",
          "str_int": "int64", "str_float": "float64", "str_decimal": "float64"}  # fmt: skip
_CODECS = {"zstd": "zstd", "gz": "gzip", "br": "brotli", "snappy": "snappy"}
_NUMBERED = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip


class Mds(Chunks):
    """Samples of MosaicML Streaming. Columns of pickled objects are rejected."""

    def read_index(self, path: Path, index: Any) -> Iterator[Entry]:
        """Yield the files listed in an index."""
        for entry in index["shards"]:
            if (entry["format"], entry["version"]) != ("mds", 2):
                raise ValueError(f"format {entry['format']}, version {entry['version']}")
            names, encodings, sizes = (
                entry[f"column_{key}"] for key in ("names", "encodings", "sizes")
            )
            if not len(names) == len(encodings) == len(sizes) > 0:
                raise ValueError("names, encodings and sizes of columns differ in number")
            raw, packed = entry["raw_data"], entry.get("zip_data")
            name, codec = raw["basename"], None
            if packed and (path.parent / name).resolve() not in self._known:
                kind = str(entry["compression"]).partition(":")[0]
                if kind not in _CODECS:
                    raise DataError(
                        f"{path}: its files are compressed with {kind}, expected one of {', '.join(_CODECS)}; write "
                        "them again, or add the uncompressed files to the folder"
                    )
                name, codec = packed["basename"], _CODECS[kind]
            fields = {"samples": int(entry["samples"]), "size": int(raw["bytes"])}
            yield str(name), {**fields, "codec": codec, "entry": entry}

    @cached_property
    def _known(self) -> set[Path]:
        return {path.resolve() for path in self.files}

    def values(self, chunk: Chunk, content: bytes) -> dict[str, tuple[str, bytes]]:
        """Return the values of a sample by name, as (encoding, bytes)."""
        given = chunk.entry["column_sizes"]
        num_varying = sum(not size for size in given)
        if len(content) < 4 * num_varying:
            raise UnusableError(f"has {len(content)} bytes, expected the sizes of its columns")
        heads = iter(np.frombuffer(content, "<u4", num_varying).tolist())
        sizes = [int(size) if size else next(heads) for size in given]
        entry = chunk.entry
        encodings = dict(zip(entry["column_names"], entry["column_encodings"], strict=True))
        return split(content, encodings, sizes, 4 * num_varying)

    def column_type(self, form: str, content: bytes) -> str:
        """Return the column type for an encoding."""
        if form in _TYPES or form in _SCALARS:
            return _TYPES.get(form) or typed(form)
        dtype, shape = _array_of(form)
        return typed(dtype, shape) if dtype and shape else type_of(self.decode(form, content))

    def decode(self, form: str, content: bytes) -> Any:
        """Decode a value by its encoding."""
        if form in ("str_int", "str_float", "str_decimal", "str", "json"):
            text = text_of(content)
            return text if form in ("str", "json") else _number(text, form)
        if _TYPES.get(form) == "bytes":
            return content
        if form == "int" or form in _SCALARS:
            (value,) = numbers(content, "int64" if form == "int" else form, (1,))
            return value
        dtype, shape = _array_of(form)
        if not dtype:
            dtype = _NUMBERED.get(content[0] if content else 0, "")
            content = content[1:]
        if not shape:
            shape, content = _shape(content)
        if not dtype:
            raise UnusableError(
                "is an array of an unknown type, expected one of " + ", ".join(_SCALARS)
            )
        return numbers(content, dtype, shape)


def _array_of(encoding: str) -> tuple[str, tuple[int, ...]]:
    """Return type and shape of an encoding such as `ndarray:float32:3,4`; each is empty if it varies."""
    kind, _, rest = encoding.partition(":")
    dtype, _, shape = rest.partition(":")
    if kind != "ndarray" or (dtype and dtype not in _NUMBERED.values()):
        raise UnusableError(
            f"is encoded as {encoding}, expected an encoding of numbers, text or bytes"
        )
    return dtype, tuple(map(int, shape.split(","))) if shape else ()


def _number(text: str, encoding: str) -> int | float:
    try:
        return int(text) if encoding == "str_int" else float(text)
    except ValueError:
        raise UnusableError(f"is {shorten(text)}, expected a number") from None


def _shape(content: bytes) -> tuple[tuple[int, ...], bytes]:
    head = content[0] if content else 0
    size = 1 << head % 4
    end = 1 + (head >> 2) * size
    dimensions = np.frombuffer(content[1:end], f"<u{size}") if len(content) >= end else ()
    return tuple(map(int, dimensions)), content[end:]

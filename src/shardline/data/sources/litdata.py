"""Source of folders written by LitData's `optimize`: `index.json` and `chunk-*.bin` files, plain or zstd.

The format is defined in `litdata/streaming/writer.py` and `serializers.py`. A sample contains the
sizes (uint32) and the bytes of its leaves. With a `TokensLoader`, it is one array.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shardline.core.errors import DataError
from shardline.data.sources.chunks import Chunk, Chunks, Entry, numbers, split
from shardline.data.sources.from_files import UnusableError
from shardline.data.sources.samples import text_of, type_of, typed

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
_FILES = ("bytes", "file", "jpeg", "tifffile", "tiff", "pdf")  # stored as plain bytes
_TOKENS = "TokensLoader"


class LitData(Chunks):
    """Samples of LitData. Pickled leaves are rejected.

    The columns are the keys of a dict, or `item_0`, `item_1`, ... for a list or tuple. Nested
    values are `key.0` and `key.inner`. A single value is `tokens` with a `TokensLoader`, else `sample`.
    """

    def read_index(self, path: Path, index: Any) -> Iterator[Entry]:
        """Yield the chunks listed in an index."""
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
                f"{path}: its chunks have {found}, expected plain samples, or whole chunks compressed with zstd; "
                'optimize them again without it, or with compression_level="chunk"'
            )

    def values(self, chunk: Chunk, content: bytes) -> dict[str, tuple[str, bytes]]:
        """Return the values of a sample by name, as (format, bytes)."""
        formats = chunk.entry["formats"]
        if chunk.entry["item_loader"] == _TOKENS:
            return {name: (written, content) for name, written in formats.items()}
        num_leaves = len(formats)
        if not content:
            raise DataError(
                f"{chunk.path}: contains Arrow rows, which LitData writes if values are nested or missing, "
                "expected samples of numbers, text, bytes and arrays; optimize such samples again"
            )
        if len(content) < 4 * num_leaves:
            raise UnusableError(
                f"has {len(content)} bytes, expected the sizes of {num_leaves} leaves"
            )
        sizes = np.frombuffer(content, "<u4", num_leaves).tolist()
        return split(content, formats, sizes, 4 * num_leaves)

    def column_type(self, form: str, content: bytes) -> str:
        """Return the column type for a format."""
        kind, _, number = form.partition(":")
        if kind in _SCALARS:
            return _SCALARS[kind]
        if kind.startswith("no_header_"):
            return typed(_dtype(kind.removeprefix("no_header_"), number), None)
        return type_of(self.decode(form, content))

    def decode(self, form: str, content: bytes) -> Any:
        """Decode a value by its format."""
        kind, _, number = form.partition(":")
        if kind in _FILES or kind == "image":
            return content
        if kind in _TEXTS:
            return text_of(content)
        if kind in _SCALARS:
            return numbers(content, _SCALARS[kind], ())
        if kind in ("no_header_tensor", "no_header_numpy"):
            return numbers(content, _dtype(kind.removeprefix("no_header_"), number), None)
        if kind in ("tensor", "numpy"):
            return _array(kind, content)
        raise UnusableError(
            f"is serialized as {form}, expected numbers, text or bytes that can be read without running code"
        )


def _names(spec: dict[str, Any], loader: str) -> list[str]:
    if spec["type"] is None:
        return ["tokens" if loader == _TOKENS else "sample"]
    is_dict = spec["type"].endswith("dict")
    return [name if is_dict else f"item_{name}" for name in _leaves(spec)]


def _leaves(spec: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the leaves in a tree specification of torch's `pytree` module."""
    children = spec["children_spec"]
    is_dict = str(spec["type"]).endswith("dict")
    keys: list[Any] = json.loads(spec["context"]) if is_dict else list(range(len(children)))
    for key, child in zip(keys, children, strict=True):
        inner = [""] if child["type"] is None else [f".{name}" for name in _leaves(child)]
        yield from (f"{key}{name}" for name in inner)


def _dtype(kind: str, number: str | int) -> np.dtype[Any]:
    known = _TORCH if kind == "tensor" else _NUMPY
    name = known[int(number)] if str(number).isdecimal() and int(number) < len(known) else ""
    if not name:
        raise UnusableError(f"is a {kind} of type number {number}, expected one of real numbers")
    return np.dtype(name)


def _array(kind: str, content: bytes) -> np.ndarray:
    # LitData writes a big-endian header for tensors since about 0.2.40; its numbers are small
    order = ">" if kind == "tensor" and not any(content[0:8:4]) else "<"
    head = np.frombuffer(content[:8].ljust(8, b"\0"), f"{order}u4")
    dimensions = 4 * int(head[1])
    if len(content) < 8 + dimensions:
        raise UnusableError(f"has {len(content)} bytes, expected type and shape of a {kind}")
    shape = np.frombuffer(content, f"{order}u4", int(head[1]), 8).tolist()
    return numbers(content[8 + dimensions :], _dtype(kind, int(head[0])), tuple(shape))

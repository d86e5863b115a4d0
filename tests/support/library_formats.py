"""Folders as other libraries write them, by their documented formats."""

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardline.data.columns import Column

Row = dict[str, Any]


def chunk(samples: list[bytes]) -> bytes:
    """The frame that MDS and LitData share."""
    start = 4 * (len(samples) + 2)
    offsets = np.cumsum([start, *map(len, samples)], dtype="<u4")
    return struct.pack("<I", len(samples)) + offsets.tobytes() + b"".join(samples)


def write_mds(folder: Path, columns: dict[str, Column], rows: list[Row], per_file: int) -> None:
    folder.mkdir(parents=True)
    encodings = {name: _mds_encoding(column) for name, column in columns.items()}
    sizes = [size for _, size in encodings.values()]
    shards = []
    for number, first in enumerate(range(0, len(rows), per_file)):
        part = rows[first : first + per_file]
        content = chunk([_mds_sample(columns, sizes, row) for row in part])
        name = f"shard.{number:05d}.mds"
        (folder / name).write_bytes(content)
        raw = {"basename": name, "bytes": len(content), "hashes": {}}
        shards.append(
            {
                "column_encodings": [encoding for encoding, _ in encodings.values()],
                "column_names": list(columns), "column_sizes": sizes, "compression": None, "format": "mds",
                "hashes": [], "raw_data": raw, "samples": len(part), "size_limit": 1, "version": 2, "zip_data": None,
            }
        )  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))


def _mds_encoding(column: Column) -> tuple[str, int | None]:
    if column.kind != "array":
        return ("str" if column.kind == "text" else "bytes"), None
    if not column.shape and not column.varies:
        return column.dtype, np.dtype(column.dtype).itemsize
    if column.varies:
        return "ndarray", None
    return f"ndarray:{column.dtype}:{','.join(map(str, column.shape))}", column.item_bytes


_MDS = {
    "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "int32": 33, "float32": 34, "int64": 65,
    "float64": 66,
}  # fmt: skip


def _mds_sample(columns: dict[str, Column], sizes: list[int | None], row: Row) -> bytes:
    parts = []
    for name, column in columns.items():
        value = row[name]
        content = (
            value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""
        )
        if column.kind == "array":
            value = np.asarray(value, column.dtype)
            head = (
                bytes([_MDS[column.dtype], value.ndim << 2 | 1])
                + np.array(value.shape, "<u2").tobytes()
            )
            content = (head if column.varies else b"") + value.tobytes()
        parts.append(content)
    heads = [len(part) for part, size in zip(parts, sizes, strict=True) if not size]
    return np.array(heads, "<u4").tobytes() + b"".join(parts)


_TORCH = {
    "float32": 0, "float64": 2, "float16": 8, "uint8": 11, "int8": 12, "int16": 13, "int32": 15, "int64": 17,
    "bool": 19, "uint16": 20,
}  # fmt: skip


def write_litdata(folder: Path, columns: dict[str, Column], rows: list[Row], per_file: int) -> None:
    folder.mkdir(parents=True)
    leaf = {"type": None, "context": None, "children_spec": []}
    names = json.dumps(list(columns))
    spec = {"type": "builtins.dict", "context": names, "children_spec": [leaf] * len(columns)}
    config = {
        "compression": None, "encryption": None, "item_loader": "PyTreeLoader", "data_spec": json.dumps([1, spec]),
        "data_format": [_litdata_format(column) for column in columns.values()],
    }  # fmt: skip
    chunks = []
    for number, first in enumerate(range(0, len(rows), per_file)):
        part = rows[first : first + per_file]
        content = chunk([_litdata_sample(columns, row) for row in part])
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(content)
        chunks.append({"chunk_bytes": len(content), "chunk_size": len(part), "filename": name})
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))


def _litdata_format(column: Column) -> str:
    if column.kind != "array":
        return "str" if column.kind == "text" else "bytes"
    return f"no_header_tensor:{_TORCH[column.dtype]}" if column.varies and not column.shape else "tensor"  # fmt: skip


def _litdata_sample(columns: dict[str, Column], row: Row) -> bytes:
    parts = []
    for name, column in columns.items():
        value = row[name]
        if isinstance(value, str):
            parts.append(value.encode())
        elif isinstance(value, bytes):
            parts.append(value)
        else:
            value = np.asarray(value, column.dtype)
            head = struct.pack(
                f">{2 + value.ndim}I", _TORCH[column.dtype], value.ndim, *value.shape
            )
            parts.append((b"" if column.varies and not column.shape else head) + value.tobytes())
    return np.array([*map(len, parts)], "<u4").tobytes() + b"".join(parts)


def write_hf(folder: Path, columns: dict[str, Column], rows: list[Row], per_file: int) -> None:
    folder.mkdir(parents=True)
    arrays = {}
    for name, column in columns.items():
        values = [v.tolist() if isinstance(v, np.ndarray) else v for v in (row[name] for row in rows)]  # fmt: skip
        kind: pa.DataType = pa.string() if column.kind == "text" else pa.binary()
        if column.kind == "array":
            kind = pa.from_numpy_dtype(np.dtype(column.dtype))
            for size in reversed(column.shape):
                kind = pa.list_(kind, size)
            kind = pa.list_(kind) if column.varies else kind
        arrays[name] = pa.array(values, kind)
    table = pa.table(arrays)
    names = []
    for number, first in enumerate(range(0, len(rows), per_file)):
        names.append({"filename": f"data-{number:05d}.arrow"})
        part = table.slice(first, per_file)
        with pa.ipc.new_stream(folder / names[-1]["filename"], table.schema) as writer:
            writer.write_table(part, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": names}))


def write_webdataset(
    folder: Path, columns: dict[str, Column], rows: list[Row], per_file: int
) -> None:
    folder.mkdir(parents=True)
    for number, first in enumerate(range(0, len(rows), per_file)):
        with tarfile.open(folder / f"{number:05d}.tar", "w") as archive:
            for place, row in enumerate(rows[first : first + per_file], first):
                for name, column in columns.items():
                    if row[name] is not None:
                        _add(archive, f"{place:06d}.{in_tar(name, column)}", row[name])


def in_tar(name: str, column: Column) -> str:
    return f"{name}.npy" if column.kind == "array" else name


def _add(archive: tarfile.TarFile, name: str, value: Any) -> None:
    content = io.BytesIO()
    if isinstance(value, np.ndarray | np.generic):
        np.save(content, value)
    else:
        content.write(value.encode() if isinstance(value, str) else value)
    member = tarfile.TarInfo(name)
    member.size = content.tell()
    content.seek(0)
    archive.addfile(member, content)

"""Source of folders that Hugging Face's `save_to_disk` wrote: Arrow files beside `state.json`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardline.core.errors import DataError
from shardline.data.columns import Column, parse_columns
from shardline.data.sources import typed
from shardline.data.sources.source import Schema, shard_slices
from shardline.data.sources.table_columns import Block
from shardline.data.sources.tabular import Tabular

STATE = "state.json"
_BLOCK_BYTES = 64 * 2**20
_REMEDY = "copy the whole folder again"


class Hf(Tabular):
    """Rows of the Arrow files listed in `state.json` files.

    Images and audio are read as the bytes of their files. A label of type `ClassLabel` gets its
    class names from the files.

    Args:
        columns: Type of each column by name. Default: all columns in the files.
        label: Column of the label, which becomes the column `labels`.
    """

    infers_columns = True

    def __init__(
        self, *, columns: Mapping[str, str] | None = None, label: str = "", classes: Sequence[str | int] = (),
        num_classes: int = 0, **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            columns=columns, label=label, classes=classes, num_classes=num_classes, **arguments
        )
        self._noted_classes: tuple[str, ...] = ()
        if self.has_labels and self.task == "classification" and not self.classes:
            self._noted_classes = self._class_names()
            # the files contain class numbers
            self.classes = tuple(map(str, range(len(self._noted_classes))))
        self._is_inferred = not columns
        if not columns:
            self.named = self._inferred()

    @cached_property
    def _tables(self) -> list[int]:
        """Indices in `files` of the Arrow files, in the order of the `state.json` files."""
        places = {path.resolve(): place for place, path in enumerate(self.files)}
        found = []
        for state in self.files:
            for name in _data_files(state) if state.name == STATE else ():
                path = (state.parent / name).resolve()
                if path not in places:
                    raise DataError(
                        f"{state}: lists {name}, which is not in source.files; {_REMEDY}"
                    )
                found.append(places[path])
        if not found:
            raise DataError(
                f"{self.files[0]}: no {STATE} beside it lists Arrow files, expected a folder that save_to_disk wrote; "
                "list the folder itself in source.files"
            )
        return list(dict.fromkeys(found))

    @cached_property
    def columns(self) -> pa.Schema:
        """Columns of the first file."""
        return self._read(self._tables[0]).schema

    @property
    def table_name(self) -> str:
        """Name of the first Arrow file, whose columns all other files must have."""
        return self.shown(self._tables[0])

    @cached_property
    def _features(self) -> dict[str, Any]:
        """Features of the columns in the metadata of `datasets`."""
        try:
            noted = json.loads((self.columns.metadata or {})[b"huggingface"])["info"]["features"]
        except (KeyError, ValueError, TypeError):
            return {}
        return noted if isinstance(noted, dict) else {}

    def _class_names(self) -> tuple[str, ...]:
        noted = self._features.get(self.label)
        names = noted.get("names") if isinstance(noted, dict) else None
        if not isinstance(names, list) or not names:
            raise DataError(
                f"{self.table_name}: column {self.label} has no class names; set source.classes or source.num_classes"
            )
        return tuple(map(str, names))

    def _inferred(self) -> dict[str, Column]:
        in_files = {in_file: name for name, in_file in self._in_file.items()}
        found = {}
        for field in self.columns:
            if field.name in self.keys:
                continue
            column = typed.column_of(field.type, self._features.get(field.name))
            if column is None:
                raise DataError(
                    f"{self.table_name}: column {field.name} is of type {field.type}, which a dataset cannot store; "
                    "list the columns to keep in source.columns"
                )
            found[in_files.get(field.name, field.name)] = column
        return parse_columns(dict(sorted(found.items())))

    @property
    def inferred(self) -> dict[str, Any]:
        """Columns and classes if inferred, and the columns left out."""
        found: dict[str, Any] = {}
        if self._is_inferred:
            found["columns"] = {name: str(column) for name, column in self.named.items()}
        if self._noted_classes:
            found["classes, by the files"] = list(self._noted_classes)
        return found | super().inferred

    @cached_property
    def schema(self) -> Schema:
        """Schema of the kept columns, with class names."""
        schema = super().schema
        return replace(schema, classes=self._noted_classes) if self._noted_classes else schema

    def blocks(self, shard: int) -> Iterator[Block]:
        """Yield the rows of a shard, at most 64 MiB at a time."""
        for place, first, last in shard_slices(self._num_rows, shard, self.num_shards):
            file = self._tables[place]
            table = self._read(file)
            self._check(file, table.schema)
            rows = table.select(self.used).slice(first, last - first)
            for start, part in _pieces(rows):
                yield self._block(file, first + start, part)

    def _check(self, file: int, kinds: pa.Schema) -> None:
        for name in self.used:
            if name not in kinds.names:
                raise DataError(
                    f"{self.shown(file)}: no column {name}, unlike {self.table_name}; make two datasets of these files"
                )
        self.check_types(kinds, self.shown(file))

    def _block(self, file: int, first: int, rows: pa.Table) -> Block:
        try:
            rows.validate(full=True)  # offsets in a damaged file could point outside of it
        except pa.ArrowInvalid as error:
            raise _damaged(self.files[file], error) from None
        return Block.after(file, first, rows, self.shown(file))

    @cached_property
    def _num_rows(self) -> list[int]:
        return [self._read(file).num_rows for file in self._tables]

    def _read(self, file: int) -> pa.Table:
        """Return the rows of a file, memory-mapped."""
        try:
            content = pa.memory_map(str(self.files[file]))
            try:
                table = pa.ipc.open_stream(content).read_all()
            except pa.ArrowInvalid:
                table = pa.ipc.open_file(content).read_all()
            set(table.column_names)  # raises UnicodeDecodeError for names that are not UTF-8
            return table
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _damaged(self.files[file], error) from None


def _data_files(state: Path) -> list[str]:
    try:
        return [str(entry["filename"]) for entry in json.loads(state.read_bytes())["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{state}: lists no _data_files ({type(error).__name__}: {error}), expected a file of save_to_disk; "
            f"{_REMEDY}"
        ) from None


def _pieces(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    place = 0
    for batch in rows.to_batches():
        step = max(1, _BLOCK_BYTES * batch.num_rows // max(1, batch.get_total_buffer_size()))
        for first in range(0, batch.num_rows, step):
            yield place + first, pa.Table.from_batches([batch.slice(first, step)])
        place += batch.num_rows


def _damaged(path: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split())[:200]
    return DataError(
        f"{path}: cannot be read as Arrow ({reason}), expected a complete file; {_REMEDY}"
    )

"""Generated datasets of any columns: a source of rows that a test gives, built and sealed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from shardline.core.files import write_json
from shardline.core.seals import seal as sealed
from shardline.data.build import build_shards, describe_part, seal
from shardline.data.columns import DTYPES, Column
from shardline.data.parts import read_part
from shardline.data.sources.source import file_digests
from shardline.records.base import encode, read_record
from shardline.records.datasets import DatasetSchema, DatasetStatistics, Manifest, Skipped, Summary
from shardline.sources import Ragged, Schema, Source, Table
from shardline_io.column_names import MEAN_COUNT, WEIGHTS

COLUMN = st.builds(
    Column,
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(1, 9), max_size=2).map(tuple),
    varies=st.booleans(),
    optional=st.booleans(),
) | st.builds(
    Column,
    dtype=st.just("uint8"),
    varies=st.just(True),
    kind=st.sampled_from(["bytes", "text"]),
    optional=st.booleans(),
)
SCHEMA = st.dictionaries(
    st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name not in ("ids", WEIGHTS)),
    COLUMN, min_size=1, max_size=4,
)  # fmt: skip


EMPTY = Summary(count=0, mean=[], std=[], min=[], max=[])


class Given(Source):
    """Shards of rows that a test gives, several tables each.

    Args:
        rows: by shard, rows as (split, value by column).
    """

    def __init__(self, columns: dict[str, Any], rows: list[list[tuple[int, dict[str, Any]]]], *,
                 tables: int = 1, as_ragged: bool = False, classes: tuple[str, ...] = ()) -> None:  # fmt: skip
        super().__init__(num_shards=len(rows))
        self.columns, self.rows, self.classes = columns, rows, classes
        self.tables, self.as_ragged = tables, as_ragged

    @property
    def schema(self) -> Schema:
        return Schema(columns={n: str(c) for n, c in self.columns.items()}, classes=self.classes)

    def ids(self, shard: int) -> np.ndarray:
        return 1000 * shard + np.arange(len(self.rows[shard]))

    def iter_tables(self, shard: int) -> Any:
        for places in np.array_split(np.arange(len(self.rows[shard])), self.tables):
            rows = [self.rows[shard][place] for place in places]
            yield Table(
                ids=self.ids(shard)[places],
                splits=np.array([split for split, _ in rows], dtype=np.int64),
                columns={name: self.column(name, [row[name] for _, row in rows]) for name in self.columns},
            )  # fmt: skip

    def column(self, name: str, values: list[Any]) -> Any:
        column = self.columns[name]
        if not self.as_ragged or not isinstance(column, Column) or None in map(type_of, values):
            return values
        if not column.varies:
            return np.array(values, column.dtype).reshape(len(values), *column.shape)
        flat = [as_array(column, value) for value in values]
        offsets = np.cumsum([0, *map(len, flat)])
        empty = np.zeros((0, *column.shape), column.dtype)
        return Ragged(values=np.concatenate([empty, *flat]), offsets=offsets)


def type_of(value: Any) -> Any:
    return None if value is None else type(value)


def as_array(column: Column, value: Any) -> np.ndarray:
    """Return what a shard holds of a value."""
    if isinstance(value, str):
        value = value.encode()
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.asarray(value, column.dtype)  # fmt: skip


@st.composite
def values(draw: st.DrawFn, column: Column) -> Any:
    if column.optional and draw(st.booleans()):
        return None
    if column.kind != "array":
        return draw(st.text(max_size=5) if column.kind == "text" else st.binary(max_size=5))
    shape = (draw(st.integers(0, 5)), *column.shape) if column.varies else column.shape
    seed = draw(st.integers(0, 99))
    numbers = np.random.default_rng(seed).integers(0, 2 if column.dtype == "bool" else 100, shape)
    return numbers.astype(column.dtype)


@st.composite
def sources(draw: st.DrawFn) -> Given:
    columns = draw(SCHEMA)
    row = st.tuples(
        st.integers(0, 2), st.fixed_dictionaries({n: values(c) for n, c in columns.items()})
    )
    rows = draw(st.lists(st.lists(row, min_size=1, max_size=7), min_size=1, max_size=3))
    if not any(split == 0 for shard in rows for split, _ in shard):
        rows[0][0] = (0, rows[0][0][1])
    return Given(columns, rows, tables=draw(st.integers(1, 3)), as_ragged=draw(st.booleans()))


def manifest_of(source: Source, folder: Path, splits: dict[str, float] | None = None) -> Manifest:
    """Build all shards of a source and return its manifest, as it is read back."""
    built = build_shards(source, range(source.num_shards), splits or {}, folder)
    part = describe_part("d", built, {})
    path = folder / "parts" / f"00000-{source.num_shards - 1:05d}.json"
    write_json(path, sealed(encode(part)))
    read = read_part(path, "d", remedy="delete it")
    assert read.shards == part.shards
    read_by_it = [*source.files, *filter(None, [getattr(source, "_file", None)])]  # a tokenizer's
    document = {"source": dict(enumerate(file_digests(read_by_it)))}
    manifest = seal([read], dataset="d", source=source, document=document)
    write_json(folder / "manifest.json", encode(manifest))
    return read_record(folder / "manifest.json", Manifest, remedy="")


def bare_manifest(**fields: Any) -> Manifest:
    """Return a manifest of no more than some fields."""
    statistics = DatasetStatistics(class_counts={}, columns={"x": EMPTY})
    given = {
        "dataset": "odd-0123456789ab", "schema": DatasetSchema(task="none", classes=[], columns={}), "splits": {},
        "bytes": 0, "statistics": statistics, "skipped": Skipped(), "shards": [], "identity": {},
    }  # fmt: skip
    return Manifest(**given | fields)


def together(batches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the batches that a global batch is split into as one, with the count of all."""
    joined: dict[str, Any] = {}
    for name in batches[0]:
        parts = [batch[name] for batch in batches]
        if name.endswith(MEAN_COUNT):
            assert len({float(part) for part in parts}) == 1, "every rank knows it"
            joined[name] = (parts[0].double() * len(parts)).round().float()
        else:
            is_list = isinstance(parts[0], list)
            joined[name] = [one for part in parts for one in part] if is_list else torch.cat(parts)
    return joined

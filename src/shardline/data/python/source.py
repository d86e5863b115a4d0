"""Source of the rows of Python data: torch datasets and Lightning data modules."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from shardline.config.resolved import PythonObject
from shardline.core.errors import DataError
from shardline.data.python.applied import OwnTransforms
from shardline.data.python.job import Key, ReadingJob
from shardline.data.python.look import look
from shardline.data.python.opened import ALL
from shardline.data.python.reader import LOOKED_AT, Reader, ReaderSpec, Watch
from shardline.data.python.readers import check_digests
from shardline.data.python.seeds import kept_generators, one_thread
from shardline.data.sources.source import (
    Masked,
    Ragged,
    Schema,
    Source,
    Table,
    row_of,
    shard_range,
)
from shardline.data.splits import SPLITS
from shardline.data.transforms.transform_steps import Sample
from shardline.records.datasets import Part, SampleForm

ROWS_OF_SPLIT = 1 << 40  # ids of a split are below those of the next
_BLOCK_BYTES, _MOST_ROWS = 8 << 20, 4096
_FEW = 16  # rows of a block of a small shard
_TRIED = 4  # rows that the transforms are tried on
_AFTER = {
    "train": "data.transform",
    ALL: "data.transform (of held-out splits: data.eval_transform)",
}


class PythonSource(Source):
    """Source of Python data.

    Args:
        given: the object of the source.
        num_shards: number of shards in the dataset.
        files: files of the source; they only count in the identity.
        columns, classes, num_classes, workers: `source.columns` and so on.
    """

    def __init__(
        self, given: PythonObject, *, num_shards: int, files: Sequence[Path | str] = (),
        columns: Mapping[str, str] | None = None, classes: Sequence[str | int] = (), num_classes: int = 0,
        workers: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_shards=num_shards, files=files)
        self._given, self._columns = given, dict(columns) if columns else None
        self._classes = tuple(map(str, classes)) or tuple(map(str, range(num_classes)))
        self._asked_workers, self.workers = workers, workers or 0
        self._seed = 0
        self._job: ReadingJob | None = None

    @property
    def what(self) -> str:
        """Start of messages."""
        return f"source {self._given.path}"

    @cached_property
    def reader(self) -> Reader:
        """Reader in this process."""
        with kept_generators():
            reader = Reader(self._given, self._seed, self._columns)
            _ = reader.looked
        return reader

    # --- what a dataset is -----------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """Schema of the rows, from the first rows of each split."""
        columns = self.reader.looked.layout.columns
        classes = self._class_names[0] if "labels" in columns else ()
        return Schema(columns={name: str(of) for name, of in columns.items()}, classes=classes)

    @cached_property
    def _class_names(self) -> tuple[tuple[str, ...], str]:
        if self._classes:
            return self._classes, "source.classes"
        labels = self.reader.looked.layout.columns.get("labels")
        is_index = labels and str(labels) == "int64"
        return self.reader.opened.classes if is_index else ((), "")

    @property
    def samples(self) -> SampleForm | UnsetType:
        """Form of the samples, if transforms are to be applied when rows are read."""
        return self._form if self._form.calls else UNSET

    @property
    def _form(self) -> SampleForm:
        looked = self.reader.looked
        calls = {split: list(of) for split, of in looked.calls.items()}
        return SampleForm(form=looked.layout.form, kinds=looked.layout.kinds, calls=calls)

    @cached_property
    def sampled(self) -> dict[str, str] | UnsetType:
        """Types of the columns of a training sample after the dataset's own transforms."""
        own = OwnTransforms(given=self._given, form=self._form, split="train", has_chance=True)
        if not own.calls:
            return UNSET
        split = ALL if ALL in self.reader.opened.splits else "train"
        with kept_generators(self._seed):
            steps = own.steps(self.reader)
            samples = [steps((0, 0, 0, row), one) for row, one in enumerate(self._first(split))]
        with suppress(DataError):  # of different shapes
            return {name: str(of) for name, of in look(samples, None, self.what).columns.items()}
        return {}

    def _first(self, split: str) -> list[Sample]:
        looked, rows = self.reader.looked, self.reader.opened.splits[split]
        if rows.length is None:
            found = Reader(self._given, self._seed, looked=looked).first_rows(split, _TRIED)
        else:
            found = self.reader.rows(split, range(min(_TRIED, rows.length)))
        columns = looked.layout.columns
        number = min(len(of) for of in map(_flags, found.values()))
        return [
            {
                name: columns[name].value(value)
                if isinstance(value := row_of(of, place), np.ndarray) and columns[name].varies
                else value
                for name, of in found.items()
            }
            for place in range(number)
        ]

    @property
    def inferred(self) -> dict[str, Any]:
        """What was found, for the check, the log and the dataset's provenance."""
        opened, looked = self.reader.opened, self.reader.looked
        lengths = {split: rows.length for split, rows in opened.splits.items()}
        rows = {
            split: of if of is not None else "counted while read" for split, of in lengths.items()
        }
        found: dict[str, Any] = {"rows": rows if opened.has_splits else rows[ALL]}
        found["columns"] = {name: str(of) for name, of in looked.layout.columns.items()}
        if looked.layout.left_out:
            found["not stored"] = list(looked.layout.left_out)
        names, origin = self._class_names
        if names:
            found[f"classes ({origin})"] = list(names)
        elif "labels" in found["columns"] and found["columns"]["labels"] == "int64":
            found["classes"] = (
                "unknown, so labels are numbers; set source.num_classes or source.classes"
            )
        for split, calls in looked.calls.items():
            where = _AFTER.get(split, "data.eval_transform")
            called = ", ".join(f"{one.attribute} ({', '.join(_touched(one))})" for one in calls)
            found[f"left out of {split}"] = f"{called}; applied when rows are read, after {where}"
        if looked.kept:
            found["applied while shards are built"] = (
                f"{', '.join(looked.kept)}, since the class changes what it returns"
            )
        return found | {f"note {place}": note for place, note in enumerate(opened.notes, 1)}

    @property
    def rows_of(self) -> dict[str, str]:
        """Digest of the rows of each split, which all jobs must agree on."""
        return self.reader.opened.digests

    def check_parts(self, parts: Sequence[Part]) -> None:
        """Reject parts of jobs that found other rows in a split.

        Raises:
            DataError: a split's rows depend on chance; names split and remedy.
        """
        for part in parts:
            if part.rows_of is not UNSET:
                where = f"the job that wrote {part.shards[0].file if part.shards else 'a part'}"
                check_digests(self.rows_of, part.rows_of, self.what, where)

    # --- rows ------------------------------------------------------------------------------------

    @contextmanager
    def job(
        self,
        name: str,
        shards: Sequence[int],
        folder: Path,
        watched: Watch | None = None,
        *,
        threads: int = 1,
    ) -> Iterator[Callable[[], dict[str, str]]]:
        """Read the shards of a job, in order, with processes; some rows are read again by another.

        Args:
            name: name of the job, which decides its seeds.
            shards: shards that the job writes.
            folder: folder for temporary files.
            watched: watch of the files that the processes read.
            threads: number of processes, unless `source.workers` is set.

        Yields:
            Function that returns the files that the processes read and that count in no identity.

        Raises:
            DataError: the data are iterable and the job writes only a part of the shards, or the rows of
                a split depend on chance.
        """
        self.workers = threads if self._asked_workers is None else self._asked_workers
        self._seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little")
        opened = self.reader.opened
        if opened.is_iterable and len(shards) < self.num_shards:
            raise DataError(
                f"{self.what} is read only in order, so one job writes all shards, but this job writes {len(shards)} "
                f"of {self.num_shards}; set shards_per_job of the dataset to {self.num_shards}"
            )
        spec = ReaderSpec(
            given=self._given, seed=self._seed, looked=self.reader.looked, watched=watched
        )
        self._job = ReadingJob(self, spec, shards, folder)
        try:
            with one_thread():
                self._job.again.check_splits()
                yield self._job.files
        finally:
            self._job.close()
            self._job = None

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the rows of one shard."""
        if self._job:
            yield from self._job.tables(shard)
        elif not self.reader.opened.is_iterable:
            for key, split, numbers in self.requests(shard):
                with kept_generators(self._seed):
                    columns = self.reader.rows(split, numbers)
                yield self.table(key, columns)
        elif shard == 0:  # the first rows, for a check
            yield from self._in_order()

    def _in_order(self) -> Iterator[Table]:
        with kept_generators(self._seed):  # a one-time iterator may be used up
            reader = Reader(self._given, self._seed, looked=self.reader.looked)
        for split in reader.opened.splits:
            first = 0
            for number, columns in reader.blocks(split, min(self.block_rows, LOOKED_AT)):
                yield self.table((0, split, first, number), columns)
                first += number

    @property
    def block_rows(self) -> int:
        """Rows of a block of about 8 MB."""
        return max(1, min(_BLOCK_BYTES // self.reader.looked.layout.row_bytes, _MOST_ROWS))

    def requests(
        self, shard: int, lengths: Mapping[str, int] | None = None
    ) -> Iterator[tuple[Key, str, list[int]]]:
        """Yield the blocks of a shard, as key, split and numbers of the rows.

        Args:
            lengths: number of rows by split; by default, as the datasets have them.
        """
        splits = self.reader.opened.splits
        for split, total in (
            lengths or {s: rows.length or 0 for s, rows in splits.items()}
        ).items():
            rows = shard_range(total, shard, self.num_shards)
            # all processes have work, even if the rows are few and slow; the number of processes must not
            # decide the size, since sums of floats depend on the blocks
            size = min(self.block_rows, max(_FEW, len(rows) // 64))
            for first in range(rows.start, rows.stop, size):
                numbers = [*range(first, min(first + size, rows.stop))]
                yield (shard, split, first, len(numbers)), split, numbers

    def table(self, key: Key, columns: Mapping[str, Any]) -> Table:
        """Return a block of rows with their ids and splits."""
        _, split, first, number = key
        rows = np.arange(first, first + number, dtype=np.int64)
        if split == ALL:
            return Table(ids=rows, columns=columns)
        place = SPLITS.index(split)
        splits = np.full(number, place, np.int64)
        return Table(ids=rows + place * ROWS_OF_SPLIT, columns=columns, splits=splits)


def _flags(values: Any) -> Any:
    """Return a sequence as long as a column of a `Table`."""
    if isinstance(values, Masked):
        return values.present
    return values.offsets[1:] if isinstance(values, Ragged) else values


def _touched(call: Any) -> list[str]:
    return [one or "the whole sample" for one in (*call.arguments, *call.keywords.values())]

"""Reading of Python data: samples as rows, in this process or in worker processes."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import numpy as np

from shardline.config.resolved import PythonObject
from shardline.core.error_texts import short_traceback
from shardline.core.errors import DataError, ShardlineError
from shardline.data.python.look import Layout, look
from shardline.data.python.opened import Opened, SplitRows, open_data, row_name
from shardline.data.python.recorded import Called, NotFoundError, Recorders
from shardline.records.datasets import Call

LOOKED_AT = 200  # rows of each split from which columns are found
Calls = dict[str, tuple[Call, ...]]


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What the first rows show.

    Attributes:
        layout: How samples become rows.
        calls: Calls of transforms that are left out, by split.
        kept: Transforms that are applied while rows are read, each as `Class.attribute`.
    """

    layout: Layout
    calls: Calls
    kept: tuple[str, ...] = ()


class Reader:
    """Reader of the rows of Python data.

    Args:
        given: the object of the source.
        seed: seed of the global generators, see `open_data`.
        columns: `source.columns`, if it is set.
        looked: what another reader found in the first rows.
    """

    def __init__(
        self, given: PythonObject, seed: int, columns: dict[str, str] | None = None, looked: Looked | None = None
    ) -> None:  # fmt: skip
        self.opened: Opened = open_data(given, seed)
        self.recorders = Recorders([one.dataset for one in self.opened.splits.values()])
        self._columns, self._looked = columns, looked
        for owner, attribute in self._kept_by(looked):
            self.recorders.put_back(owner, attribute)

    def _kept_by(self, looked: Looked | None) -> list[tuple[Any, str]]:
        kept = looked.kept if looked else ()
        return [one for one in self.recorders.in_place() if _shown(*one) in kept]

    @property
    def what(self) -> str:
        """Start of messages."""
        return f"source {self.opened.path}"

    @cached_property
    def looked(self) -> Looked:
        """What the first rows of each split show.

        Raises:
            DataError: rows cannot be read, or have no common columns.
        """
        if self._looked:
            return self._looked
        while True:
            try:
                return self._look()
            except NotFoundError as error:
                # the class changes what the transform returns, so it cannot be applied later
                self.recorders.put_back(error.owner, error.attribute)

    def _look(self) -> Looked:
        found = [
            (split, rows, index, sample, calls)
            for split, rows in self.opened.splits.items()
            for index, sample, calls in islice(self._first(split, rows), LOOKED_AT)
        ]
        layout = look([sample for *_, sample, _ in found], self._columns, self.what)
        calls: Calls = {}
        for split, rows, index, sample, called in found:
            calls[split] = calls.get(split) or self._calls(layout, rows, index, sample, called)
            for one in calls[split]:
                if layout.form == "object" and "" in (*one.arguments, *one.keywords.values()):
                    raise NotFoundError(called[0])
        kept = tuple(dict.fromkeys(_shown(*one) for one in self.recorders.left))
        return Looked(
            layout=layout, calls={split: of for split, of in calls.items() if of}, kept=kept
        )

    def _first(self, split: str, rows: SplitRows) -> Iterator[tuple[int, Any, list[Called]]]:
        if rows.length is None:
            for index, sample in enumerate(self._iterated(split, rows)):
                yield index, sample, self._taken()
            return
        for row in dict.fromkeys(
            np.linspace(0, max(0, rows.length - 1), LOOKED_AT, dtype=int).tolist()
        ):
            if row < rows.length:
                index = rows.index(row)
                yield index, self._sample(split, rows, row), self._taken()

    def _taken(self) -> list[Called]:
        calls, self.recorders.calls[:] = list(self.recorders.calls), []
        return calls

    def _calls(
        self, layout: Layout, rows: SplitRows, index: int, sample: Any, calls: list[Called]
    ) -> tuple[Call, ...]:
        return self.recorders.places(calls, rows.dataset, index, sample, layout.names)

    def _sample(self, split: str, rows: SplitRows, row: int) -> Any:
        try:
            return rows.dataset[rows.index(row)]
        except ShardlineError:
            raise
        except Exception as error:
            raise self._failed(row_name(split, row), error) from error

    def _failed(self, where: str, error: Exception) -> DataError:
        return DataError(
            f"{self.what} fails at {where}; correct the class or the files that it reads: {short_traceback(error)}"
        )

    def _iterated(self, split: str, rows: SplitRows) -> Iterator[Any]:
        number = 0
        try:
            for sample in rows.dataset:
                yield sample
                number += 1
        except ShardlineError:
            raise
        except Exception as error:
            raise self._failed(row_name(split, number), error) from error

    def rows(self, split: str, numbers: Sequence[int]) -> dict[str, Any]:
        """Return rows of a split by their numbers, as columns of a `Table`.

        Raises:
            DataError: a row cannot be read, or does not fit the columns.
        """
        rows, samples = self.opened.splits[split], []
        for number in numbers:
            sample = self._sample(split, rows, number)
            self._check_calls(split, rows, rows.index(number), sample, number)
            samples.append(sample)
        return self._block(split, samples, numbers)

    def _block(self, split: str, samples: list[Any], numbers: Sequence[int]) -> dict[str, Any]:
        places = [f"{self.what}: {row_name(split, number)}" for number in numbers]
        return self.looked.layout.block(samples, places)

    def _check_calls(
        self, split: str, rows: SplitRows, index: int, sample: Any, number: int
    ) -> None:
        calls, expected = self._taken(), self.looked.calls.get(split, ())
        if not calls and not expected:
            return
        try:
            found = self._calls(self.looked.layout, rows, index, sample, calls)
        except NotFoundError as error:
            found, why = (), f"changes what `{error.attribute}` returns"
        else:
            why = "calls its transforms in another way"
        levels = len(self.recorders.chain(rows.dataset, index))
        if found != tuple(one for one in expected if one.level < levels):
            raise DataError(
                f"{self.what}: {row_name(split, number)} {why} than the first rows, expected the same for each row, so "
                "that transforms can be applied when rows are read; set the attribute to None, and name the transform "
                "in data.transform"
            )

    def first_rows(self, split: str, number: int) -> dict[str, Any]:
        """Return the first rows of an iterable split, as columns of a `Table`."""
        return next(self.blocks(split, number), (0, {}))[1]

    def blocks(self, split: str, size: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows of an iterable split in order, as the number of rows and columns of a `Table`."""
        rows, number = self.opened.splits[split], 0
        samples: list[Any] = []
        for sample in self._iterated(split, rows):
            self._check_calls(split, rows, number, sample, number)
            samples.append(sample)
            number += 1
            if len(samples) == size:
                yield size, self._block(split, samples, range(number - size, number))
                samples = []
        if samples:
            count = len(samples)
            yield count, self._block(split, samples, range(number - count, number))


def _shown(owner: Any, attribute: str) -> str:
    return f"{type(owner).__name__}.{attribute}"


class Watch(Protocol):
    """Watch of the files that a process reads, see `identity.watch_reads`."""

    def start(self) -> None:
        """Watch the reads of this process from now on."""

    def found(self) -> dict[str, str]:
        """Return the files that count in no identity, and where they were read."""


@dataclass(frozen=True, kw_only=True)
class ReaderSpec:
    """Reader of a worker process, see `worker_process.WorkerProcess`.

    Attributes:
        given: The object of the source.
        seed: Seed of the global generators.
        looked: What the job found in the first rows.
        watched: Watch of the files that the process reads.
    """

    given: PythonObject
    seed: int
    looked: Looked
    watched: Watch | None = None
    what: str = "source"

    def make(self) -> "_Answers":
        """Construct the object."""
        return _Answers(self)


class _Answers:
    def __init__(self, spec: ReaderSpec) -> None:
        self._watched = spec.watched
        if spec.watched:
            spec.watched.start()
        self._reader = Reader(spec.given, spec.seed, looked=spec.looked)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(
                1
            )  # one core per process; the number changes the last bits of sums

    def __call__(self, request: str, argument: Any) -> Any:
        if request == "digests":
            return self._reader.opened.digests
        if request == "files":
            return self._watched.found() if self._watched else {}
        split, numbers = argument
        if request == "first":
            return self._reader.first_rows(split, numbers)
        return self._reader.rows(split, numbers)

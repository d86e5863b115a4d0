"""Reading of the shards of one job from Python data."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardline.data.python.reader import LOOKED_AT, Reader, ReaderSpec
from shardline.data.python.readers import Again, ReaderProcesses
from shardline.data.python.spool import Spool
from shardline.data.sources.source import Table

if TYPE_CHECKING:
    from shardline.data.python.source import PythonSource

AGAIN = 4  # rows of a job's first shard that are read again, by split; of other shards, one
Key = tuple[int, str, int, int]  # shard, split, first row, number of rows


class ReadingJob:
    """Reading of the shards of a job."""

    def __init__(
        self, source: "PythonSource", spec: ReaderSpec, shards: Sequence[int], folder: Path
    ) -> None:
        self._source, self._spec, self._shards, self._folder = source, spec, shards, folder
        is_iterable = source.reader.opened.is_iterable
        self.again = Again(spec, source.rows_of, source.what)
        number = 0 if is_iterable else source.workers
        self._processes = ReaderProcesses(spec, number) if number else None
        self._blocks = self._iterate() if is_iterable else self._read()
        self._next: tuple[Key, dict[str, Any]] | None = None

    def tables(self, shard: int) -> Iterator[Table]:
        """Yield the rows of the next shard of the job."""
        count = AGAIN if shard == self._shards[0] else 1
        seen: dict[str, int] = {}
        while (block := self._next or next(self._blocks, None)) and block[0][0] == shard:
            self._next = None
            key, columns = block
            _, split, first, number = key
            if not self._source.reader.opened.is_iterable:
                for place in range(min(number, count - seen.get(split, 0))):
                    self.again.check_row(split, first + place, columns, place)
                    seen[split] = seen.get(split, 0) + 1
            yield self._source.table(key, columns)
        self._next = block

    def _read(self) -> Iterator[tuple[Key, dict[str, Any]]]:
        requests = (one for shard in self._shards for one in self._source.requests(shard))
        if self._processes:
            yield from self._processes.map(requests)
            return
        for key, split, numbers in requests:
            yield key, self._source.reader.rows(split, numbers)

    def _iterate(self) -> Iterator[tuple[Key, dict[str, Any]]]:
        place = tempfile.mkdtemp(dir=self._folder, prefix=".rows-")
        try:
            spool = Spool(Path(place))
            # the reader of the first rows may have used up a one-time iterator
            reader = Reader(self._spec.given, self._spec.seed, looked=self._spec.looked)
            for split in reader.opened.splits:
                spool.write(split, self._checked(split, reader))
            for shard in self._shards:
                for (_, split, first, _), _, numbers in self._source.requests(shard, spool.lengths):
                    for start, number, part in spool.read(split, first, first + len(numbers)):
                        yield (shard, split, start, number), dict(part)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _checked(self, split: str, reader: Reader) -> Iterator[tuple[int, dict[str, Any]]]:
        size = min(self._source.block_rows, LOOKED_AT)
        for place, (number, columns) in enumerate(reader.blocks(split, size)):
            if place == 0:
                self.again.check_first(split, columns, min(number, AGAIN))
            yield number, columns

    def files(self) -> dict[str, str]:
        """Return the files that the processes read and that count in no identity."""
        return self._processes.files() if self._processes else {}

    def close(self) -> None:
        """End the processes, and delete temporary files."""
        self._blocks.close()  # type: ignore[attr-defined]
        if self._processes:
            self._processes.close()
        self.again.close()

"""Source of tokenized text files, with one row per line, paragraph or file."""

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from shardline.data.sources.from_files import batches, ids_in_file, text_id
from shardline.data.sources.lines import Lines, found_byte, refuse_wide
from shardline.data.sources.packed import open_text, read_whole
from shardline.data.sources.source import Schema, Table
from shardline.data.sources.tokenizer import TokenSource

_BLOCK_BYTES = 8 * 2**20  # text files read for one table

Part = tuple[int, Lines]  # index of a file in `files`, and lines of this file


class Text(TokenSource):
    """Rows of UTF-8 text, plain or gzip, with a column `tokens`.

    A shard is a byte range of all files. A line, paragraph or file belongs to the shard
    in which its first byte is. Files move to another shard if a shard would be empty.
    Rows do not include the line break at their end. Rows of lines and paragraphs do not
    include empty lines or a byte order mark.

    Args:
        unit: Unit of a row: `line`, `paragraph` (lines up to an empty line) or `file`.
        keep_text: Whether to keep the text as well, in a column `text`.
    """

    def __init__(
        self, *, unit: Literal["line", "paragraph", "file"] = "line", keep_text: bool = False,
        **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__(**arguments)
        self.unit, self.keep_text = unit, keep_text

    @cached_property
    def schema(self) -> Schema:
        """Schema: a column `tokens` of the tokenizer's type, and `text` if it is kept."""
        columns = {"tokens": f"{self.tokenizer.dtype}[*]"}
        return Schema(columns=columns | ({"text": "text"} if self.keep_text else {}))

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the rows of a shard, with about 8 MiB of text at a time."""
        self.skipped.pop(shard, None)
        parts = self._files_of(shard) if self.unit == "file" else self._lines_of(shard)
        most = _BLOCK_BYTES if self.unit == "file" else 0
        for some in batches(parts, lambda part: len(part[1].content), most):
            if table := self._table(shard, some):
                yield table

    def _lines_of(self, shard: int) -> Iterator[Part]:
        read = self.texts.lines if self.unit == "line" else self.texts.paragraphs
        for index, first, last in self.texts.slices(shard, self.num_shards):
            for lines in read(index, first, last):
                yield index, lines

    def _files_of(self, shard: int) -> Iterator[Part]:
        for index in np.flatnonzero(self._shards_of_files == shard).tolist():
            with open_text(self.files[index]) as file:
                content = read_whole(file, self.files[index])
            if not content.removeprefix(BOM_UTF8):
                self.leave_out(shard, f"{self.files[index]}: is empty, expected text")
                continue
            whole = Lines(self.files[index], 0, content, np.array([0]), np.array([len(content)]))
            yield index, whole

    @cached_property
    def _shards_of_files(self) -> np.ndarray:
        """Shard of each file [N], by the file's first byte. Each shard gets at least one file."""
        sizes = [path.stat().st_size for path in self.files]
        begins, total = np.cumsum([0, *sizes]).tolist(), max(sum(sizes), 1)
        found: list[int] = []
        for place, begin in enumerate(begins[:-1]):
            # empty files at the end begin after the last shard
            wanted = min(begin * self.num_shards // total, self.num_shards - 1)
            wanted = min(wanted, found[-1] + 1 if found else 0)
            found.append(max(wanted, self.num_shards - (len(sizes) - place)))
        return np.array(found)

    def _table(self, shard: int, parts: Sequence[Part]) -> Table | None:
        texts: list[str] = []
        places: list[tuple[Lines, int]] = []
        ids, splits = [np.zeros(0, np.int64)], []
        for index, lines in parts:
            found = self._texts_of(shard, lines)
            texts += found.values()
            places += [(lines, row) for row in found]
            ids.append(self._ids(index, lines.place + lines.starts[[*found]]))
            splits.append(self.splits_of_file(index, ids[-1]))
        if not texts:
            return None
        tokens = self.tokenizer.encode(texts, lambda i: places[i][0].where(places[i][1]))
        known = [split for split in splits if split is not None]
        return Table(
            ids=np.concatenate(ids),
            columns={"tokens": tokens} | ({"text": texts} if self.keep_text else {}),
            splits=np.concatenate(known) if known else None,
        )

    def _texts_of(self, shard: int, lines: Lines) -> dict[int, str]:
        """Return texts by row. Rows that are not UTF-8 are skipped or rejected."""
        found: dict[int, str] = {}
        if lines.place == 0 and self.on_bad == "fail":
            refuse_wide(lines.path, lines.content[:64])
        rows = [lines.content] if self.unit == "file" else lines.rows()
        for row, content in enumerate(rows):
            start = int(lines.starts[row])
            if lines.place + start == 0 and content.startswith(BOM_UTF8):
                content, start = content[len(BOM_UTF8) :], len(BOM_UTF8)
            try:
                text = content.decode()
            except UnicodeDecodeError as error:
                where = lines.where_byte(start + error.start)
                self.leave_out(
                    shard, f"{where}: {found_byte(content[error.start])}, expected text in UTF-8"
                )
                continue
            if text:
                found[row] = text
        return found

    def _ids(self, index: int, places: np.ndarray) -> np.ndarray:
        if self.unit == "file":  # the id depends on the path alone, not on the content
            return np.full(len(places), text_id(self.names[index]), dtype=np.int64)
        return ids_in_file(self.names[index], places)

"""What CSV, Parquet and Delta share: from rows as they are read to tables."""

from collections.abc import Iterator

from shardline.data.sources.base import Table
from shardline.data.sources.conversion import Conversion, NamedConversion
from shardline.data.sources.table_columns import TableColumns


class Tabular(TableColumns):
    """Rows of a table; arguments as of `TableColumns`."""

    def iter_tables(self, shard: int) -> Iterator[Table]:
        """Yield the shard's rows, block by block; a row that cannot be used is left out or refused."""
        self.skipped.pop(shard, None)
        conversion = NamedConversion if self.named else Conversion
        for block in self.blocks(shard):
            table = conversion(self, shard, block).table()
            if len(table.ids):
                yield table

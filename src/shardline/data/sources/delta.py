"""A Delta Lake table at one version: what it held then, whatever was written since."""

from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from shardline.core.errors import DataError
from shardline.core.urls import open_table, table_content, without_secrets
from shardline.data.sources.parquet import RowGroups
from shardline.data.sources.source import combine_digests


class Delta(RowGroups):
    """Rows of a Delta table, in the order of its files' names.

    Args:
        table: the table's folder, or its URL (`s3://`, `abfss://`, `gs://`), opened with
            the credentials of the environment.
        version: the version to read.
        table_id: id that the table must have.
    """

    def __init__(self, *, table: str, version: int, table_id: str = "", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.version = version
        self._url = table
        self._shown = f"Delta table {without_secrets(table)} version {version}"
        self._table = open_table(table, version)
        found = self._table.metadata().id
        if table_id not in ("", found):
            raise DataError(
                f"{self._shown}: its id is {found}, expected {table_id}; the table was created again, so check "
                "source.table and source.table_id"
            )
        self.names = tuple(fragment.path for fragment in self.fragments)

    @property
    def table_name(self) -> str:
        """The table at its version."""
        return self._shown

    @property
    def content_digest(self) -> str:
        """One digest of table id and version, which say what the table holds."""
        return combine_digests([table_content(str(self._table.metadata().id), self.version)])

    @cached_property
    def fragments(self) -> list[ds.ParquetFileFragment]:
        """The files of this version; a partition's value comes with each of its files."""
        try:
            found = self._dataset.get_fragments()
            return sorted(found, key=lambda fragment: fragment.path)
        except (pa.ArrowException, OSError) as error:
            raise self._refusal(error) from None

    @cached_property
    def _dataset(self) -> ds.Dataset:
        mapping = self._table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mapping != "none":  # its files name their columns otherwise
            raise self._refusal(f"column mapping {mapping}")
        try:
            return self._table.to_pyarrow_dataset()
        except DeltaError as error:
            raise self._refusal(error) from None

    def _refusal(self, reason: object) -> DataError:
        text = without_secrets(" ".join(str(reason).split()))[:300]
        return DataError(
            f"{self._shown}: cannot be read ({text}), expected a table that pyarrow can read; "
            "copy it to one without such features, or export it as Parquet"
        )

    @cached_property
    def columns(self) -> pa.Schema:
        """The table's columns, partitions among them."""
        return self._dataset.schema

    def types_of(self, file: int) -> pa.Schema:
        """Return the table's columns, which every file is read as."""
        return self.columns

    def shown(self, file: int) -> str:
        """Return a file's name with its table's."""
        return f"{self._shown}, {self.names[file]}"

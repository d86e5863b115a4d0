"""Source of a Delta Lake table at a fixed version."""

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
    """Rows of a Delta table, in the order of its file names.

    Args:
        table: Folder or URL of the table (`s3://`, `abfss://`, `gs://`). A URL is opened with
            the credentials of the environment.
        version: Version to read.
        table_id: Expected id of the table; empty for any id.
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
                f"{self._shown}: its id is {found}, expected {table_id}; if the table was created again, update "
                "source.table_id, else correct source.table"
            )
        self.names = tuple(fragment.path for fragment in self.fragments)

    @property
    def table_name(self) -> str:
        """Name of the table with its version."""
        return self._shown

    @property
    def content_digest(self) -> str:
        """Digest of table id and version, which determine the rows."""
        return combine_digests([table_content(str(self._table.metadata().id), self.version)])

    @cached_property
    def fragments(self) -> list[ds.ParquetFileFragment]:
        """Files of this version, with the values of their partition columns."""
        try:
            found = self._dataset.get_fragments()
            return sorted(found, key=lambda fragment: fragment.path)
        except (pa.ArrowException, OSError) as error:
            raise self._refusal(error) from None

    @cached_property
    def _dataset(self) -> ds.Dataset:
        mapping = self._table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mapping != "none":  # the files have other column names than the table
            raise self._refusal(f"column mapping {mapping}")
        try:
            return self._table.to_pyarrow_dataset()
        except DeltaError as error:
            raise self._refusal(error) from None

    def _refusal(self, reason: object) -> DataError:
        text = without_secrets(" ".join(str(reason).split()))[:300]
        return DataError(
            f"{self._shown}: cannot be read ({text}), expected a table that pyarrow can read; "
            "copy it to a table without this feature, or export it as Parquet"
        )

    @cached_property
    def columns(self) -> pa.Schema:
        """Columns of the table, with partition columns."""
        return self._dataset.schema

    def types_of(self, file: int) -> pa.Schema:
        """Return the columns of the table, which apply to every file."""
        return self.columns

    def shown(self, file: int) -> str:
        """Return the name of a file together with its table, for messages."""
        return f"{self._shown}, {self.names[file]}"

"""Source of a Delta Lake table at a fixed version."""

import json
import operator
from functools import cached_property, reduce
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from shardline.core.errors import DataError
from shardline.core.urls import open_table, table_content, without_secrets
from shardline.data.sources.parquet import RowGroups
from shardline.data.sources.source import combine_digests

# what pyarrow's dataset of a table lacks, and what a reader may ignore
_READ_HERE = {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}  # fmt: skip
_PHYSICAL_NAME = "delta.columnMapping.physicalName"


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
        if not self._is_mapped:
            try:
                return self._table.to_pyarrow_dataset()
            except DeltaError as error:
                features = {*(self._table.protocol().reader_features or ())}
                if "deletionVectors" not in features or features - _READ_HERE:
                    raise self._refusal(error) from None
        return self._own_dataset()

    @property
    def _is_mapped(self) -> bool:
        mapping = self._table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mapping == "none":
            return False
        if others := {*(self._table.protocol().reader_features or ())} - _READ_HERE:
            raise self._refusal(f"reader features {', '.join(sorted(others))}")
        return True

    def _own_dataset(self) -> ds.Dataset:
        """Return the files as they are; `stored_name` and `kept_rows` say how to read them."""
        schema = pa.schema(self._table.schema().to_arrow())
        stored = pa.schema([field.with_name(self.stored_name(field.name)) for field in schema])
        place = pa.fs.PyFileSystem(DeltaStorageHandler(self._table.table_uri))
        shape = ds.ParquetFileFormat()
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        parted = self._table.metadata().partition_columns
        fragments = []
        for action in actions:
            values = {n: pa.scalar(action[f"partition.{n}"], schema.field(n).type) for n in parted}
            terms = [
                ds.field(self.stored_name(name)) == value
                if value.is_valid
                else ds.field(self.stored_name(name)).is_null()
                for name, value in values.items()
            ]
            where = reduce(operator.and_, terms) if terms else None
            path = unquote(action["path"])
            fragments.append(shape.make_fragment(path, place, partition_expression=where))
        return ds.FileSystemDataset(fragments, stored, shape, place)

    @cached_property
    def _stored_names(self) -> dict[str, str]:
        if not self._is_mapped:
            return {}
        fields = json.loads(self._table.schema().to_json())["fields"]
        return {field["name"]: field["metadata"][_PHYSICAL_NAME] for field in fields}

    def stored_name(self, name: str) -> str:
        """Return the name of a column in the Parquet files, which differs if the table maps columns."""
        return self._stored_names.get(name, name)

    def kept_rows(self, file: int) -> np.ndarray | None:
        """Return a mask of the rows of a file that no deletion vector deletes; None if there is none."""
        name = self.names[file]
        found = next((m for uri, m in self._deletions.items() if uri.endswith(f"/{name}")), None)
        if found is None:
            return None
        # a vector may end at the last deleted row
        rest = np.ones(self._num_rows[file] - len(found), dtype=bool)
        return np.concatenate([found, rest])

    @cached_property
    def _deletions(self) -> dict[str, np.ndarray]:
        """Masks of kept rows by URI, of the files with deletion vectors."""
        if "deletionVectors" not in (self._table.protocol().reader_features or ()):
            return {}
        try:
            found = pa.table(self._table.deletion_vectors())
        except (DeltaError, pa.ArrowException, OSError) as error:
            raise self._refusal(error) from None
        masks = found.column("selection_vector").combine_chunks()
        paths = map(unquote, found.column("filepath").to_pylist())
        return {path: np.asarray(masks[row].values, dtype=bool) for row, path in enumerate(paths)}

    def _refusal(self, reason: object) -> DataError:
        text = without_secrets(" ".join(str(reason).split()))[:300]
        return DataError(
            f"{self._shown}: cannot be read ({text}), expected a table that pyarrow can read; "
            "copy it to a table without this feature, or export it as Parquet"
        )

    @cached_property
    def columns(self) -> pa.Schema:
        """Columns of the table, with partition columns."""
        stored = {stored: name for name, stored in self._stored_names.items()}
        return pa.schema([f.with_name(stored.get(f.name, f.name)) for f in self._dataset.schema])

    def types_of(self, file: int) -> pa.Schema:
        """Return the columns of the table, which apply to every file."""
        return self.columns

    def shown(self, file: int) -> str:
        """Return the name of a file together with its table, for messages."""
        return f"{self._shown}, {self.names[file]}"

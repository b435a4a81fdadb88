"""Deletes as other engines write them: files beside the data that take rows out. PyIceberg itself writes none."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table import Transaction as TableTransaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import Record

FIELD_ID = b"PARQUET:field_id"
# The specification reserves these ids for position deletes.
POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {FIELD_ID: b"2147483546"}),
        pa.field("pos", pa.int64(), False, {FIELD_ID: b"2147483545"}),
    ]
)


class DeleteManifest(ManifestWriterV2):
    """A manifest that lists files of deletes."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class RowDelta(_OverwriteFiles):
    """Adds files of deletes, and no data."""

    def new_manifest_writer(self, spec: PartitionSpec) -> DeleteManifest:
        metadata = self._transaction.table_metadata
        return DeleteManifest(spec, metadata.schema(), self.new_manifest_output(), self._snapshot_id, self._compression)


def delete_by_position(table: Table, branch: str, path: str, *positions: int) -> None:
    """Take rows out of one file by their positions."""
    rows = pa.table({"file_path": [path] * len(positions), "pos": positions}, POSITIONS)
    _commit(table, branch, rows, DataFileContent.POSITION_DELETES, None)


def delete_by_value(table: Table, branch: str, column: str, *values: int) -> None:
    """Take out all earlier rows with one of these values."""
    field = table.schema().find_field(column)
    schema = pa.schema([pa.field(column, pa.int32(), True, {FIELD_ID: str(field.field_id).encode()})])
    rows = pa.table({column: values}, schema)
    _commit(table, branch, rows, DataFileContent.EQUALITY_DELETES, [field.field_id])


def _commit(table: Table, branch: str, rows: pa.Table, content: DataFileContent, field_ids: list[int] | None) -> None:
    uri = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    buffer = pa.BufferOutputStream()
    pq.write_table(rows, buffer)
    output = table.io.new_output(uri)
    with output.create() as stream:
        stream.write(buffer.getvalue().to_pybytes())
    file: Any = DataFile.from_args(
        content=content,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=len(output),
        equality_ids=field_ids,
    )
    file.spec_id = table.spec().spec_id
    transaction = TableTransaction(table)
    delta = RowDelta(Operation.OVERWRITE, transaction, table.io, branch=branch)
    delta.append_data_file(file)
    delta.commit()
    transaction.commit_transaction()

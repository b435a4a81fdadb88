"""The spool: the rows of a Kafka transaction as Parquet files, kept until its outcome is recorded.

There is one folder per transaction of the sink, with its name, and one file per Spark task attempt. The handle names
the valid files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from onceonly.storage.durability import sync, sync_with_parents
from onceonly.storage.folders import arrow_file_system

ROW_GROUP = 16 << 20  # bytes of rows that are collected before they are written
READ_ROWS = 4096  # per batch; fewer if a row group is small
WRITER_OPTIONS: dict[
    str, Any
] = {  # half the CPU of lz4 with dictionaries; nobody searches a spool, so it has no statistics
    "compression": "snappy",
    "use_dictionary": ["topic"],
    "write_statistics": False,
}
SPOOL_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.int64()),  # milliseconds
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


class SpoolFile:
    """A file that is being written. It is valid after `close` has made it durable."""

    def __init__(self, folder: str, part: int) -> None:
        self.name = f"{part}-{uuid.uuid4().hex[:12]}.parquet"
        self._buffered_bytes = 0
        self._files, path = arrow_file_system(folder)
        self._files.create_dir(path, recursive=True)
        self._path = f"{path}/{self.name}"
        self._writer = pq.ParquetWriter(self._path, SPOOL_SCHEMA, filesystem=self._files, **WRITER_OPTIONS)
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._buffered_bytes += batch.nbytes
        if self._buffered_bytes >= ROW_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()
        if isinstance(self._files, pafs.LocalFileSystem):
            sync(Path(self._path))  # its content and name have to survive a power failure, as its handle will
            sync_with_parents(Path(self._path).parent)

    def _flush(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, SPOOL_SCHEMA))
        self._batches, self._buffered_bytes = [], 0


def complete(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with all columns of a spool, in their order and types; those that are missing are null."""
    columns_by_name = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = []
    for field in SPOOL_SCHEMA:
        if field.name in columns_by_name:
            columns.append(columns_by_name[field.name].cast(field.type))
        else:
            columns.append(_nulls(field.type, batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=SPOOL_SCHEMA)


@lru_cache(16)  # nearly all batches have the same length
def _nulls(kind: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, kind)


def read(folder: str, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file, in the order in which they were written.

    A file of Spark's JVM lacks the columns that no row has.

    Raises:
        FileNotFoundError: the file no longer exists.
    """
    files, path = arrow_file_system(folder)
    with files.open_input_file(f"{path}/{name}") as source, pq.ParquetFile(source) as parquet:
        for batch in parquet.iter_batches(READ_ROWS):
            yield complete(batch)


def read_bytes(folder: str, name: str) -> None:
    """Read one file without looking at its content. Raises OSError: the storage does not give it."""
    files, path = arrow_file_system(folder)
    with files.open_input_file(f"{path}/{name}") as source:
        while source.read(ROW_GROUP):
            pass


def take_file(folder: str, name: str) -> bytes:
    """Read a small file and delete it."""
    files, path = arrow_file_system(folder)
    with files.open_input_file(f"{path}/{name}") as source:
        content: bytes = source.read()
    files.delete_file(f"{path}/{name}")
    return content

"""The spool: the exact rows of a Kafka transaction as Parquet, kept until its outcome is recorded.

One folder per transaction of the sink (its name), one file per Spark task attempt; the handle names the files that
count.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from onceonly.filesystems.durability import to_disk, way_to_disk
from onceonly.filesystems.folders import file_system

ROW_GROUP = 16 << 20  # bytes of rows held before they are written
READ = 4096  # rows taken up at once; less where a row group is small
CHEAP: dict[str, Any] = {"compression": "snappy", "use_dictionary": ["topic"]}  # half the CPU of lz4 with dictionaries
SCHEMA = pa.schema(
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
    """One file being written; it counts for nothing before `close` has made it durable."""

    def __init__(self, folder: str, part: int) -> None:
        self.name = f"{part}-{uuid.uuid4().hex[:12]}.parquet"
        self._held = 0
        self._files, path = file_system(folder)
        self._files.create_dir(path, recursive=True)
        self._path = f"{path}/{self.name}"
        self._writer = pq.ParquetWriter(self._path, SCHEMA, filesystem=self._files, **CHEAP)
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._held += batch.nbytes
        if self._held >= ROW_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()
        if isinstance(self._files, pafs.LocalFileSystem):
            to_disk(Path(self._path))  # it and its name survive a power failure, as the handle that names it will
            way_to_disk(Path(self._path).parent)

    def _flush(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, SCHEMA))
        self._batches, self._held = [], 0


def read(folder: str, name: str) -> Iterator[pa.RecordBatch]:
    """The rows of one file, in the order in which they were written.

    Raises:
        FileNotFoundError: the file no longer exists.
    """
    files, path = file_system(folder)
    with files.open_input_file(f"{path}/{name}") as source, pq.ParquetFile(source) as parquet:
        yield from parquet.iter_batches(READ)

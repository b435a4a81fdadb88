"""How a gate reads staged files: every column has the type with which it was staged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pacsv

from onceonly.sinks.files.handle import FileHandle
from onceonly.sinks.staging import row_text, row_types
from onceonly.spark import row_files
from onceonly.spark.row_files import strict_reader
from onceonly.storage.interface import FileSystem

if TYPE_CHECKING:
    import pyarrow.dataset as ds  # with pandas, which takes a second

GUESS = {  # if the handle does not contain the types
    "csv": {"inferSchema": "true", "multiLine": "true", "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
}
MIN_BLOCK_BYTES = 1 << 20  # pyarrow's own default
LINE = "\n"  # a column name that no file contains


def batches(file_system: FileSystem, handle: FileHandle, folder: str) -> pa.RecordBatchReader | None:
    """Read all rows in this process; None if only Spark can read them (Avro, and types that Arrow does not have).

    Args:
        folder: that would be published.
    """
    if handle.format == "avro":
        return None
    if handle.schema is None:
        return file_system.read_rows(folder, _format(handle.format))
    try:
        return _read_typed(file_system, handle, handle.schema, folder)
    except row_types.OnlySpark:
        return None


def frame(handle: FileHandle, folder: str, spark: Any) -> Any:
    """Return all rows, as a Spark DataFrame."""
    format, schema, uri = handle.format, handle.schema, row_files.folder_uri(folder)
    if schema:
        return row_files.in_order(row_files.reader(spark, format, schema).load(uri), schema)
    options = {**row_files.OPTIONS.get(format, {}), **GUESS.get(format, {})}
    return strict_reader(spark).format(format).options(**options).load(uri)


def _read_typed(
    file_system: FileSystem, handle: FileHandle, types: row_files.Schema, folder: str
) -> pa.RecordBatchReader:
    """Read all rows with the types with which they were staged.

    The values of partition columns stand in the names of folders, those of all others in the files.
    """
    format, partition_schema = handle.format, _text_schema(handle.partition_by)
    schema = row_types.arrow(row_files.as_read(format, types))
    file_schema = pa.schema([field for field in schema if field.name not in partition_schema.names])
    stored = file_schema
    read: row_text.Read = row_text.as_it_is
    if format == "csv":
        stored, read = _text_schema(file_schema.names), _read_csv
    elif format == "json":
        stored, read = _text_schema([LINE]), _json_reader(types)
    largest = max((file.fingerprint.bytes for file in handle.files), default=0)
    stored_schema = pa.schema([*stored, *partition_schema])
    rows = file_system.read_rows(folder, _format(format, largest), stored_schema, partition_schema)
    return pa.RecordBatchReader.from_batches(schema, row_text.batches(rows, schema, file_schema, read))


def _read_csv(batch: pa.RecordBatch, schema: pa.Schema) -> row_text.Columns:
    return {field.name: row_text.from_csv(batch.column(field.name), field.type) for field in schema}


def _json_reader(schema: row_files.Schema) -> row_text.Read:
    """Return a function that parses the lines of a batch."""
    parse = row_text.json_parser(schema)

    def read(batch: pa.RecordBatch, file_schema: pa.Schema) -> row_text.Columns:
        rows = [parse(line) for line in batch.column(LINE).to_pylist()]
        structs = row_text.array(rows, pa.struct(list(file_schema)), row_text.from_json)
        return dict(zip(file_schema.names, structs.flatten(), strict=True))

    return read


def _text_schema(names: Sequence[str]) -> pa.Schema:
    """Return a schema in which all columns are text."""
    return pa.schema([(name, pa.string()) for name in names])


def _format(format: str, largest: int | None = None) -> ds.FileFormat:
    """Return pyarrow's format.

    Args:
        largest: bytes of the largest file; None if the handle does not contain the types.
    """
    import pyarrow.dataset as ds

    has_types = largest is not None
    if format == "parquet":
        return ds.ParquetFileFormat(read_options=row_types.MICROS if has_types else None)
    if format == "json":
        return _line_format(largest or 0) if has_types else ds.JsonFileFormat()
    nulls: dict[str, Any] = {}
    if has_types:
        nulls = {"strings_can_be_null": True, "quoted_strings_can_be_null": False, "null_values": [""]}
    parse_options = pacsv.ParseOptions(newlines_in_values=True)
    read_options = pacsv.ReadOptions(block_size=_block_bytes(largest or 0))
    return ds.CsvFileFormat(parse_options, convert_options=pacsv.ConvertOptions(**nulls), read_options=read_options)


def _line_format(largest: int) -> ds.FileFormat:
    """Return a format that reads each line as text.

    pyarrow's JSON reader has no maps, bytes or time zones, and reads no numbers as decimals.
    """
    import pyarrow.dataset as ds

    parse_options = pacsv.ParseOptions(delimiter="\x01", quote_char=False, escape_char=False)
    read_options = pacsv.ReadOptions(column_names=[LINE], block_size=_block_bytes(largest))
    return ds.CsvFileFormat(parse_options, read_options=read_options)


def _block_bytes(largest: int) -> int:
    """Return the block size in bytes: pyarrow cannot read a row that is larger than a block."""
    return min(max(largest, MIN_BLOCK_BYTES), 2**31 - 1)

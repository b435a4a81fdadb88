"""How a gate reads staged files: every column has the type with which it was staged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds

from onceonly.checkpoint.model import Handle
from onceonly.filesystems.interface import FileSystem
from onceonly.sinks.staging import row_text, row_types, spark_files
from onceonly.spark import file_formats
from onceonly.spark.strict_reading import strict_reader

GUESS = {  # if the handle does not contain the types
    "csv": {"inferSchema": "true", "multiLine": "true", "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
}
BLOCK = 1 << 20  # bytes: pyarrow's own default
LINE = "\n"  # a column name that no file contains


def batches(on: FileSystem, handle: Handle) -> pa.RecordBatchReader | None:
    """All rows, in this process; None if only Spark can read them (Avro, and types that Arrow does not have)."""
    if handle["format"] == "avro":
        return None
    if "schema" not in handle:
        return on.rows(handle["folder"], _format(handle["format"]))
    try:
        return _typed(on, handle, row_types.arrow(file_formats.as_read(handle["format"], handle["schema"])))
    except row_types.OnlySpark:
        return None


def frame(handle: Handle, spark: Any) -> Any:
    """All rows, as a Spark DataFrame."""
    format, folder = handle["format"], spark_files.uri(handle["folder"])
    if schema := handle.get("schema"):
        return file_formats.in_order(file_formats.reader(spark, format, schema).load(folder), schema)
    options = {**file_formats.OPTIONS.get(format, {}), **GUESS.get(format, {})}
    return strict_reader(spark).format(format).options(**options).load(folder)


def _typed(on: FileSystem, handle: Handle, schema: pa.Schema) -> pa.RecordBatchReader:
    format, by = handle["format"], _as_text(handle["partition_by"])
    held = pa.schema([field for field in schema if field.name not in by.names])
    stored = {"csv": _as_text(held.names), "json": _as_text([LINE])}.get(format, held)
    largest = max((file["bytes"] for file in handle.get("files", ())), default=0)
    rows = on.rows(handle["folder"], _format(format, largest), pa.schema([*stored, *by]), by)
    read = {"csv": _csv, "json": _json_by(handle["schema"])}.get(format, row_text.as_it_is)
    return pa.RecordBatchReader.from_batches(schema, row_text.batches(rows, schema, held, read))


def _csv(batch: pa.RecordBatch, held: pa.Schema) -> row_text.Columns:
    return {field.name: row_text.from_csv(batch.column(field.name), field.type) for field in held}


def _json_by(schema: file_formats.Schema) -> row_text.Read:
    parse = row_text.json_parser(schema)

    def read(batch: pa.RecordBatch, held: pa.Schema) -> row_text.Columns:
        rows = [parse(line) for line in batch.column(LINE).to_pylist()]
        made = row_text.array(rows, pa.struct(list(held)), row_text.from_json)
        return dict(zip(held.names, made.flatten(), strict=True))

    return read


def _as_text(names: list[str]) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])


def _format(format: str, largest: int | None = None) -> ds.FileFormat:
    """`largest`: bytes of the largest file; None if the handle does not contain the types."""
    typed = largest is not None
    if format == "parquet":
        return ds.ParquetFileFormat(read_options=row_types.MICROS if typed else None)
    if format == "json":
        return _lines(largest or 0) if typed else ds.JsonFileFormat()
    nulls = {"strings_can_be_null": True, "quoted_strings_can_be_null": False, "null_values": [""]} if typed else {}
    parse = pacsv.ParseOptions(newlines_in_values=True)
    read = pacsv.ReadOptions(block_size=_block(largest or 0))
    return ds.CsvFileFormat(parse, convert_options=pacsv.ConvertOptions(**nulls), read_options=read)


def _lines(largest: int) -> ds.FileFormat:
    """Each line as text: pyarrow's JSON reader has no maps, bytes or time zones, and reads no numbers as decimals."""
    parse = pacsv.ParseOptions(delimiter="\x01", quote_char=False, escape_char=False)
    read = pacsv.ReadOptions(column_names=[LINE], block_size=_block(largest))
    return ds.CsvFileFormat(parse, read_options=read)


def _block(largest: int) -> int:
    """The block size in bytes: pyarrow cannot read a row that is larger than a block."""
    return min(max(largest, BLOCK), 2**31 - 1)

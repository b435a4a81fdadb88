"""How a gate reads staged files: every column has the type with which it was staged."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds

from onceonly.checkpoint.model import Handle
from onceonly.filesystems.interface import FileSystem
from onceonly.sinks.files.stage import OPTIONS
from onceonly.sinks.staging import row_text, row_types, spark_files

GUESS = {"csv": {"inferSchema": "true", "multiLine": "true"}}  # if the handle does not contain the types
READ_AS = {"avro": row_types.in_avro, "json": row_types.in_json}
BLOCK = 1 << 20  # bytes: pyarrow's own default
LINE = "\n"  # a column name that no file contains


def batches(on: FileSystem, handle: Handle) -> pa.RecordBatchReader | None:
    """All rows, in this process; None if only Spark can read them (Avro, and types that Arrow does not have)."""
    if handle["format"] == "avro":
        return None
    if "schema" not in handle:
        return on.rows(handle["folder"], _format(handle["format"]))
    try:
        return _typed(on, handle, row_types.arrow(_as_read(handle)))
    except row_types.OnlySpark:
        return None


def frame(handle: Handle, spark: Any) -> Any:
    """All rows, as a Spark DataFrame."""
    format, folder = handle["format"], spark_files.uri(handle["folder"])
    read = spark.read.format(format).options(**OPTIONS.get(format, {}))
    if "schema" not in handle:
        return read.options(**GUESS.get(format, {})).load(folder)
    schema = row_types.on_spark(_as_read(handle))
    return read.options(**_strict(format)).schema(schema).load(folder).select(*map(_quoted, schema.names))


def _as_read(handle: Handle) -> row_types.Schema:
    as_read: row_types.Schema = READ_AS.get(handle["format"], dict)(handle["schema"])
    return as_read


def _strict(format: str) -> dict[str, str]:
    """Options that make unreadable values an error instead of null, and keep an empty text of CSV apart from null."""
    strict = {"mode": "FAILFAST"}
    return {"csv": strict | {"multiLine": "true", "nullValue": uuid.uuid4().hex}, "json": strict}.get(format, {})


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


def _json_by(schema: row_types.Schema) -> row_text.Read:
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


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"

"""How a gate reads spooled rows: the fields of `value`, if its format has them, and topic, partition, key and time."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.kafka.registry import protobuf
from onceonly.sinks.kafka import spool
from onceonly.sinks.kafka.registered_schemas import SchemaPart
from onceonly.sinks.staging import row_text, row_types
from onceonly.spark import arrow, row_files
from onceonly.spark.row_files import strict_reader

RECORD_COLUMNS = {  # beside `value`
    "topic": pa.string(),
    "partition": pa.int32(),
    "key": pa.string(),
    "timestamp": pa.timestamp("ms", "UTC"),
}
VALUE = "value"
SPOOL_COLUMNS = "topic STRING, partition INT, key BINARY, timestamp BIGINT, value BINARY"
Values = list[dict[str, Any] | None]
Decode = Callable[[pa.Array], Values]
Column = Callable[[Values, pa.DataType], pa.Array]
Schema = str | SchemaPart | None  # the text of Avro's, or of Protobuf the message


@dataclass(frozen=True)
class SpooledRows:
    """The rows of one handle in the spool.

    Args:
        folder: with the files.
        schema: of the staged rows, in Spark's JSON form; None: the handle does not contain it.
    """

    folder: str
    files: tuple[str, ...]
    rows: int
    schema: Mapping[str, Any] | None = None


def columns(format: str, schema: Schema) -> list[str] | None:
    """Return the names of the columns; None for JSON, whose fields are only known after staging."""
    if format == "json":
        return None
    if isinstance(schema, SchemaPart):
        fields = [field["name"] for field in _message_type(schema)["fields"]]
    elif schema:
        fields = _avro_fields(schema)
    else:
        fields = [VALUE]
    return [*(name for name in RECORD_COLUMNS if name not in fields), *fields]


def staged_schema(rows: Any, schema: str | None) -> dict[str, Any]:
    """Return the schema of the staged DataFrame.

    An Avro `value` has the type that decoding by the Avro schema gives.
    """
    if schema is None:
        return row_types.read_schema(rows)
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    value = from_avro(F.lit(None).cast("binary"), schema)
    return row_types.read_schema(rows.withColumn(VALUE, value))


def batches(spooled: SpooledRows, format: str, schema: Schema, head: int = 0) -> pa.RecordBatchReader | None:
    """Read all rows in this process; None if only Spark can read them.

    If a field of `value` has the name of another column, the field is used.

    Args:
        head: bytes before each value: the id of its schema.
    """
    kind = _message_type(schema) if isinstance(schema, SchemaPart) else _value_type(spooled, format)
    decode = _strip_head(head, _make_decoder(format, schema, kind))
    if kind is None:
        return _read_untyped(spooled, decode)
    try:
        fields = _value_fields(kind, spooled, decode)
    except row_types.OnlySpark:
        return None
    record_columns = [(name, type) for name, type in RECORD_COLUMNS.items() if name not in fields.names]
    row_schema = pa.schema([*record_columns, *fields])
    rows = _read_typed(spooled, decode, fields, _column_builder(format), row_schema)
    return pa.RecordBatchReader.from_batches(row_schema, rows)


def frame(spooled: SpooledRows, format: str, schema: Schema, spark: Any, head: int = 0) -> Any:
    """Return all rows, as a Spark DataFrame. `head`: as for `batches`."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    kind = _value_type(spooled, format)
    if kind is None and format == "json":
        raise InvalidPipeline(
            f"the gate cannot read {count(spooled.rows, 'JSON record')} on Spark.",
            "They were staged by a version of Onceonly that did not record their fields.",
            "Raise Gate(in_process_rows=…), or stage them again: onceonly abort PIPELINE EPOCH --reason …, then "
            "onceonly "
            "run FILE.py:NAME. Nothing was published.",
            code="rows-unreadable-on-spark",
        )
    rows = _spool_frame(spooled, spark)
    if isinstance(schema, SchemaPart):
        return _flatten(rows.withColumn(VALUE, _from_protobuf(schema, head)))
    if schema:
        return _flatten(rows.withColumn(VALUE, from_avro(F.expr(f"substring({VALUE}, {head + 1})"), schema)))
    if format == "json":
        return _flatten(rows.withColumn(VALUE, _from_json(kind, head)))
    return rows.withColumn(VALUE, F.make_valid_utf8(F.col(VALUE).cast("string")))


# ---- on Spark


def _spool_frame(spooled: SpooledRows, spark: Any) -> Any:
    from pyspark.sql import functions as F

    files = [row_files.folder_uri(f"{spooled.folder}/{file}") for file in spooled.files]
    if files:
        rows = strict_reader(spark).schema(SPOOL_COLUMNS).parquet(*files)  # a file may lack what no row of it has
    else:
        rows = spark.createDataFrame([], SPOOL_COLUMNS)
    return rows.select(
        "topic", "partition", F.make_valid_utf8(F.col("key").cast("string")).alias("key"),
        F.timestamp_millis("timestamp").alias("timestamp"), VALUE,
    )  # fmt: skip


def _from_json(kind: Any, head: int) -> Any:
    """Return the column with the values of this type, Spark's as JSON."""
    from pyspark.sql import functions as F

    field = {"name": VALUE, "type": kind, "nullable": True, "metadata": {}}
    type = row_files.on_spark({"type": "struct", "fields": [field]})[VALUE].dataType
    text = F.expr(f"CAST(substring({VALUE}, {head + 1}) AS STRING)")
    return F.from_json(text, type, {"mode": "FAILFAST", **row_files.MICROSECOND_FORMATS})


def _from_protobuf(schema: SchemaPart, head: int) -> Any:
    """Return the column with the messages, decoded in Python on the workers.

    They have this package, as they have written the messages.
    """
    from pyspark.sql.types import StructType

    kind, files, name = _message_type(schema), schema.files, schema.record

    def decode_messages(values: pa.Array) -> pa.Array:
        decode = _strip_head(head, _message_decoder(files, name))
        return pa.array(decode(values), row_types.kind_of(kind))

    return arrow.udf(decode_messages, StructType.fromJson(kind))(VALUE)


def _flatten(rows: Any) -> Any:
    """Return the rows with the fields of `value` as columns, if it has any."""
    from pyspark.sql import functions as F

    kind = rows.schema[VALUE].dataType.typeName()
    if kind not in ("struct", "map"):
        return rows
    if kind == "map":
        keys = rows.select(F.explode(F.map_keys(VALUE)).alias(VALUE)).distinct().collect()
        names = [key[VALUE] for key in keys]
    else:
        names = rows.schema[VALUE].dataType.names
    record_columns = [name for name in RECORD_COLUMNS if name not in names]
    return rows.select(*record_columns, *(rows[VALUE].getItem(name).alias(name) for name in names))


# ---- in this process


def _read_typed(
    spooled: SpooledRows, decode: Decode, fields: pa.Schema, build_column: Column, row_schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the columns of `row_schema`. `fields`: those of `value`."""
    kind = pa.struct(list(fields))
    for batch in _read_spool(spooled):
        values = build_column(decode(batch.column(VALUE)), kind)
        arrays = _record_arrays(batch) | dict(zip(fields.names, values.flatten(), strict=True))
        yield pa.RecordBatch.from_arrays([arrays[name] for name in row_schema.names], schema=row_schema)


def _column_builder(format: str) -> Column:
    """Return what builds a column from what the decoder of that format returns."""
    if format == "protobuf":
        return lambda values, kind: pa.array(values, kind)
    leaf = row_text.from_json if format == "json" else row_text.from_avro
    return partial(row_text.array, leaf=leaf)


def _read_untyped(spooled: SpooledRows, decode: Decode) -> pa.RecordBatchReader:
    """Read the rows of a handle without types: each column gets a type that fits its values."""
    tables = [_untyped_table(batch, decode(batch.column(VALUE))) for batch in _read_spool(spooled)]
    if not tables:
        tables = [pa.table({name: pa.array([], kind) for name, kind in RECORD_COLUMNS.items()})]
    return pa.concat_tables(tables, promote_options="permissive").to_reader()


def _untyped_table(batch: pa.RecordBatch, values: Values) -> pa.Table:
    rows = [value or {} for value in values]
    arrays = _record_arrays(batch)
    for name in _names_in(rows):
        arrays[name] = pa.array([row.get(name) for row in rows])
    return pa.table(arrays)


def _names_in(rows: Iterable[dict[str, Any] | None]) -> list[str]:
    """Return the names of all fields, in the order in which they come."""
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row or ())
    return list(names)


def _read_spool(spooled: SpooledRows) -> Iterator[pa.RecordBatch]:
    for file in spooled.files:
        yield from spool.read(spooled.folder, file)


def _record_arrays(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns beside `value`, as a gate sees them."""
    arrays = {name: batch.column(name) for name in RECORD_COLUMNS}
    arrays["key"] = pa.array(map(_text, arrays["key"].to_pylist()), RECORD_COLUMNS["key"])
    arrays["timestamp"] = arrays["timestamp"].cast(RECORD_COLUMNS["timestamp"])
    return arrays


def _value_fields(kind: Any, spooled: SpooledRows, decode: Decode) -> pa.Schema:
    """Return the columns for values of this type (Spark's type as JSON). Raises OnlySpark."""
    if not isinstance(kind, str) and kind["type"] == "map":
        item = row_types.kind_of(kind["valueType"])
        return pa.schema([(name, item) for name in _map_keys(spooled, decode)])
    arrow_type = row_types.kind_of(kind)
    if pa.types.is_struct(arrow_type):
        return pa.schema(list(arrow_type))
    return pa.schema([(VALUE, arrow_type)])


def _map_keys(spooled: SpooledRows, decode: Decode) -> list[str]:
    """Return the names of all fields of any row: in a map, each row has its own."""
    names: dict[str, None] = {}
    for batch in _read_spool(spooled):
        names |= dict.fromkeys(_names_in(decode(batch.column(VALUE))))
    return list(names)


def _value_type(spooled: SpooledRows, format: str) -> Any:
    """Return Spark's type of `value` after it is read back; None if it was not recorded."""
    if format == "raw":
        return "string"
    staged_type = None
    for field in (spooled.schema or {"fields": []})["fields"]:
        if field["name"] == VALUE:
            staged_type = field["type"]
    if format == "json" and staged_type:
        return row_files.in_json(staged_type)
    return staged_type


def _message_type(schema: SchemaPart) -> dict[str, Any]:
    """Return the type of the messages in Spark."""
    return protobuf.spark_type(schema.files, schema.record)


def _message_decoder(files: bytes, name: str) -> Decode:
    read = protobuf.payload_reader(files, name)

    def decode_message(value: bytes | None) -> dict[str, Any] | None:
        return None if value is None else read(value)

    return _for_each_value(decode_message)


def _for_each_value(decode_value: Callable[[bytes | None], dict[str, Any] | None]) -> Decode:
    return lambda values: [decode_value(value) for value in values.to_pylist()]


def _make_decoder(format: str, schema: Schema, kind: Any) -> Decode:
    """Return what decodes a column of values without heads into rows."""
    if isinstance(schema, SchemaPart):
        return _message_decoder(schema.files, schema.record)
    if format == "json":
        parse = row_text.json_parser(kind)
        return _for_each_value(lambda value: _as_row(value and parse(value.decode())))
    if schema is None:
        return _for_each_value(lambda value: {VALUE: _text(value)})
    from fastavro import parse_schema, schemaless_reader

    parsed = parse_schema(json.loads(schema))

    def decode_avro(value: bytes | None) -> dict[str, Any] | None:
        if value is None:
            return None
        return _as_row(schemaless_reader(io.BytesIO(value), parsed, None))

    return _for_each_value(decode_avro)


def _strip_head(head: int, decode: Decode) -> Decode:
    """Return a decoder of values with that many bytes before each.

    Not by binary_slice, which fails for some lengths (pyarrow 23: "Negative buffer resize").
    """
    if not head:
        return decode
    return lambda values: decode(pa.array([value and value[head:] for value in values.to_pylist()], values.type))


def _avro_fields(schema: str) -> list[str]:
    """Return the names of the schema's columns. A schema that is not a record has one column."""
    parsed = json.loads(schema)
    if isinstance(parsed, dict) and "fields" in parsed:
        return [field["name"] for field in parsed["fields"]]
    return [VALUE]


def _as_row(value: Any) -> dict[str, Any] | None:
    """Return the fields of a decoded value; one that has none is a field itself."""
    if value is None or isinstance(value, dict):
        return value
    return {VALUE: value}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")

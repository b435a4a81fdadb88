"""How a gate reads spooled rows: the fields of `value`, if its format has them, and topic, partition, key and time."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from onceonly.checkpoint.model import Handle
from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.registry import protobuf
from onceonly.sinks.kafka import spool
from onceonly.sinks.kafka.handle import parts_of
from onceonly.sinks.kafka.registered import Part
from onceonly.sinks.staging import row_text, row_types, spark_files
from onceonly.spark import arrow, file_formats
from onceonly.spark.strict_reading import strict_reader

BESIDE = {"topic": pa.string(), "partition": pa.int32(), "key": pa.string(), "timestamp": pa.timestamp("ms", "UTC")}
VALUE = "value"
SPOOLED = "topic STRING, partition INT, key BINARY, timestamp BIGINT, value BINARY"
Values = list[dict[str, Any] | None]
Decode = Callable[[pa.Array], Values]
Column = Callable[[Values, pa.DataType], pa.Array]
Schema = str | Part | None  # the text of Avro's, or of Protobuf the message


def columns(format: str, schema: Schema) -> list[str] | None:
    """The columns; None for JSON, whose fields are only known after staging."""
    if format == "json":
        return None
    if isinstance(schema, Part):
        fields = [field["name"] for field in _message(schema)["fields"]]
    else:
        fields = _avro_fields(schema) if schema else [VALUE]
    return [*(name for name in BESIDE if name not in fields), *fields]


def staged_schema(rows: Any, schema: str | None) -> dict[str, Any]:
    """The schema of the staged DataFrame. An Avro `value` has the type that decoding by the Avro schema gives."""
    if schema is None:
        return row_types.of(rows)
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    value = from_avro(F.lit(None).cast("binary"), schema)
    return row_types.of(rows.withColumn(VALUE, value))


def batches(handle: Handle, format: str, schema: Schema, head: int = 0) -> pa.RecordBatchReader | None:
    """All rows, in this process; None if only Spark can read them.

    If a field of `value` has the name of another column, the field is used.

    Args:
        head: bytes before each value: the id of its schema.
    """
    kind = _message(schema) if isinstance(schema, Part) else _kind(handle, format)
    decode = _after(head, _decoder(format, schema, kind))
    if kind is None:
        return _guessed(handle, decode)
    try:
        fields = _fields(kind, handle, decode)
    except row_types.OnlySpark:
        return None
    beside = {name: type for name, type in BESIDE.items() if name not in fields.names}
    whole = pa.schema([*beside.items(), *fields])
    return pa.RecordBatchReader.from_batches(whole, _typed(handle, decode, fields, _column(format), whole))


def frame(handle: Handle, format: str, schema: Schema, spark: Any, head: int = 0) -> Any:
    """All rows, as a Spark DataFrame. `head`: as for `batches`."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    kind = _kind(handle, format)
    if kind is None and format == "json":
        raise InvalidPipeline(
            f"the gate cannot read {count(handle['rows'], 'JSON record')} on Spark.",
            "They were staged by a version of Onceonly that did not record their fields.",
            "Raise Gate(in_process_rows=…), or stage them again. Nothing was published.",
        )
    rows = _spooled_frame(handle, spark)
    if isinstance(schema, Part):
        return _flat(rows.withColumn(VALUE, _from_protobuf(schema, head)))
    if schema:
        return _flat(rows.withColumn(VALUE, from_avro(F.expr(f"substring({VALUE}, {head + 1})"), schema)))
    if format == "json":
        return _flat(rows.withColumn(VALUE, _from_json(rows, kind, head)))
    return rows.withColumn(VALUE, F.make_valid_utf8(F.col(VALUE).cast("string")))


# ---- on Spark


def _spooled_frame(handle: Handle, spark: Any) -> Any:
    from pyspark.sql import functions as F

    files = [spark_files.uri(f"{handle['folder']}/{part.spool}") for part in parts_of(handle)]
    rows = strict_reader(spark).parquet(*files) if files else spark.createDataFrame([], SPOOLED)
    return rows.select(
        "topic", "partition", F.make_valid_utf8(F.col("key").cast("string")).alias("key"),
        F.timestamp_millis("timestamp").alias("timestamp"), VALUE,
    )  # fmt: skip


def _from_json(rows: Any, kind: Any, head: int) -> Any:
    from pyspark.sql import functions as F

    field = {"name": VALUE, "type": kind, "nullable": True, "metadata": {}}
    type = file_formats.on_spark({"type": "struct", "fields": [field]})[VALUE].dataType
    text = F.expr(f"CAST(substring({VALUE}, {head + 1}) AS STRING)")
    return F.from_json(text, type, {"mode": "FAILFAST", **file_formats.MICROS})


def _from_protobuf(schema: Part, head: int) -> Any:
    """In Python on the workers, which have this package, as they have written the messages."""
    from pyspark.sql.types import StructType

    kind, files, name = _message(schema), schema.files, schema.record

    def all_rows(values: pa.Array) -> pa.Array:
        decode = _after(head, _messages(files, name))
        return pa.array(decode(values), row_types.kind_of(kind))

    return arrow.udf(all_rows, StructType.fromJson(kind))(VALUE)


def _flat(rows: Any) -> Any:
    """With the fields of `value` as columns, if it has any."""
    from pyspark.sql import functions as F

    kind = rows.schema[VALUE].dataType.typeName()
    if kind not in ("struct", "map"):
        return rows
    keys = rows.select(F.explode(F.map_keys(VALUE)).alias(VALUE)).distinct().collect() if kind == "map" else ()
    names = [key[VALUE] for key in keys] if kind == "map" else rows.schema[VALUE].dataType.names
    beside = [name for name in BESIDE if name not in names]
    return rows.select(*beside, *(rows[VALUE].getItem(name).alias(name) for name in names))


# ---- in this process


def _typed(
    handle: Handle, decode: Decode, fields: pa.Schema, column: Column, whole: pa.Schema
) -> Iterator[pa.RecordBatch]:
    kind = pa.struct(list(fields))
    for batch in _spooled(handle):
        values = column(decode(batch.column(VALUE)), kind)
        made = _beside(batch) | dict(zip(fields.names, values.flatten(), strict=True))
        yield pa.RecordBatch.from_arrays([made[name] for name in whole.names], schema=whole)


def _column(format: str) -> Column:
    """From what the decoder of that format returns."""
    if format == "protobuf":
        return lambda values, kind: pa.array(values, kind)
    return partial(row_text.array, leaf=row_text.from_json if format == "json" else row_text.from_avro)


def _guessed(handle: Handle, decode: Decode) -> pa.RecordBatchReader:
    """The rows of a handle without types: each column gets a type that fits its values."""
    tables = [_guess(batch, decode(batch.column(VALUE))) for batch in _spooled(handle)]
    none = pa.table({name: pa.array([], kind) for name, kind in BESIDE.items()})
    return pa.concat_tables(tables or [none], promote_options="permissive").to_reader()


def _guess(batch: pa.RecordBatch, values: Values) -> pa.Table:
    rows = [value or {} for value in values]
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table(_beside(batch) | {name: pa.array([row.get(name) for row in rows]) for name in names})


def _spooled(handle: Handle) -> Iterator[pa.RecordBatch]:
    for part in parts_of(handle):
        yield from spool.read(handle["folder"], part.spool)


def _beside(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    found = {name: batch.column(name) for name in BESIDE}
    time, key = BESIDE["timestamp"], pa.array(map(_text, found["key"].to_pylist()), BESIDE["key"])
    return found | {"key": key, "timestamp": found["timestamp"].cast(time)}


def _fields(kind: Any, handle: Handle, decode: Decode) -> pa.Schema:
    """The columns for values of this type (Spark's type as JSON). Raises OnlySpark."""
    if not isinstance(kind, str) and kind["type"] == "map":
        item = row_types.kind_of(kind["valueType"])
        return pa.schema([(name, item) for name in _names(handle, decode)])
    found = row_types.kind_of(kind)
    return pa.schema(list(found)) if pa.types.is_struct(found) else pa.schema([(VALUE, found)])


def _names(handle: Handle, decode: Decode) -> list[str]:
    """The names of all fields of any row: in a map, each row has its own."""
    rows = (row for batch in _spooled(handle) for row in decode(batch.column(VALUE)))
    return list(dict.fromkeys(name for row in rows for name in row or ()))


def _kind(handle: Handle, format: str) -> Any:
    """Spark's type of `value` after it is read back; None if it was not recorded."""
    if format == "raw":
        return "string"
    found = {field["name"]: field["type"] for field in handle.get("schema", {"fields": []})["fields"]}.get(VALUE)
    return file_formats.in_json(found) if format == "json" and found else found


def _message(schema: Part) -> dict[str, Any]:
    """Its type in Spark."""
    return protobuf.spark_type(schema.files, schema.record)


def _messages(files: bytes, name: str) -> Decode:
    read = protobuf.after_id(files, name)
    return lambda values: [None if value is None else read(value) for value in values.to_pylist()]


def _decoder(format: str, schema: Schema, kind: Any) -> Decode:
    if isinstance(schema, Part):
        return _messages(schema.files, schema.record)
    if format == "json":
        parse = row_text.json_parser(kind)
        return lambda values: [_as_row(value and parse(value.decode())) for value in values.to_pylist()]
    if schema is None:
        return lambda values: [{VALUE: _text(value)} for value in values.to_pylist()]
    from fastavro import parse_schema, schemaless_reader

    parsed = parse_schema(json.loads(schema))
    return lambda values: [
        None if value is None else _as_row(schemaless_reader(io.BytesIO(value), parsed, None))
        for value in values.to_pylist()
    ]


def _after(head: int, decode: Decode) -> Decode:
    """Not by binary_slice, which fails for some lengths (pyarrow 23: "Negative buffer resize")."""
    if not head:
        return decode
    return lambda values: decode(pa.array([each and each[head:] for each in values.to_pylist()], values.type))


def _avro_fields(schema: str) -> list[str]:
    """The names of its columns. A schema that is not a record has one column."""
    parsed = json.loads(schema)
    return [field["name"] for field in parsed["fields"]] if isinstance(parsed, dict) and "fields" in parsed else [VALUE]


def _as_row(value: Any) -> dict[str, Any] | None:
    return value if value is None or isinstance(value, dict) else {VALUE: value}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")

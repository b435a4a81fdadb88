"""The rows of a batch: each record is read in Python on the workers, which need this package and pyarrow."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StringType, StructType

from onceonly.debezium import DELETED, ORDER, Changes
from onceonly.debezium.records import Convert, RecordReader, Unreadable, converter
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import REFUSED_RECORD
from onceonly.spark import arrow

ERROR_COLUMN = "_error"  # why a record is refused


def read_rows(changes: Changes, batch: DataFrame) -> DataFrame:
    """Return a row for each change, see `Changes.rows`."""
    return _read(changes, batch, _row_or_fail).select("row.*").drop(ERROR_COLUMN)


def split(changes: Changes, batch: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the rows, and the records that are refused, see `Changes.split`."""
    records = _read(changes, batch, _row_or_error)
    error = F.col("row").getField(ERROR_COLUMN)
    refused = records.where(error.isNotNull()).select("topic", "partition", "offset", error.alias("error"))
    return records.where(error.isNull()).select("row.*").drop(ERROR_COLUMN), refused


def _read(changes: Changes, batch: DataFrame, row: Any) -> DataFrame:
    """Return the records as topic, partition, offset and row, which `row` makes of each on the workers.

    Records without a value are left out: they tell Kafka's compaction something, and say nothing new.
    """
    type_ = batch.sparkSession.createDataFrame([], changes.columns).schema
    reader = make_reader(changes, type_)
    for name in ORDER:
        type_ = type_.add(name, LongType())
    type_ = type_.add(DELETED, BooleanType()).add(ERROR_COLUMN, StringType())
    read = arrow.udf(_reader(partial(row, reader), type_), type_)
    key = F.lit(None).cast("binary")
    if "key" in batch.columns:
        key = F.col("key")
    row_column = read(key, "value", "topic", "partition", "offset").alias("row")
    return batch.where(F.col("value").isNotNull()).select("topic", "partition", "offset", row_column)


def make_reader(changes: Changes, type_: StructType) -> RecordReader:
    """Return how the records are read. Raises InvalidPipeline if columns, keys and encodings do not fit each other.

    Args:
        type_: the table's columns.
    """
    kinds = {field.name: field.dataType.simpleString() for field in type_}
    columns: dict[str, tuple[str, Convert]] = {}
    problems = []
    if not changes.keys:
        problems.append("no keys are named")
    missing = sorted({*changes.keys, *changes.encodings} - set(kinds))
    if missing:
        problems.append(f"no column {missing}")
    reserved = sorted({DELETED, ERROR_COLUMN, *ORDER, *changes.without} & set(kinds))
    if reserved:
        problems.append(f"columns {reserved} have another meaning")
    for name, kind in kinds.items():
        convert = converter(kind, changes.encodings.get(name))
        if convert:
            columns[name] = kind, convert
        else:
            problems.append(f"'{name}' is {kind}, which is not a type of Debezium's values")
    if problems:
        raise InvalidPipeline(
            f"Changes({changes.columns!r}, keys={list(changes.keys)}) is not a table with a key.",
            f"In it: {'; '.join(problems)}.",
            "Correct columns, keys, encodings or without. Nothing was written.",
            code="changes-invalid",
        )
    return RecordReader(columns, changes.keys, changes.without)


def _reader(row: Any, type_: StructType) -> Any:
    """Return a function of columns that makes a column of rows: `row` of each record, null where it has no value."""

    def read_all(
        keys: pa.Array, values: pa.Array, topics: pa.Array, partitions: pa.Array, offsets: pa.Array
    ) -> pa.Array:
        from pyspark.sql.pandas.types import to_arrow_type

        columns = [column.to_pylist() for column in (keys, values, topics, partitions, offsets)]
        rows = []
        for key, value, *place in zip(*columns, strict=True):
            # Spark may read a batch before it leaves out records without a value
            rows.append(None if value is None else row(key, value, *place))
        return pa.array(rows, to_arrow_type(type_, timezone="UTC"))

    return read_all


def _row_or_fail(reader: RecordReader, key: Any, value: Any, topic: str, partition: int, offset: int) -> dict[str, Any]:
    """Return the row of a record. Raises ValueError, which names the record, if it is refused."""
    try:
        return reader.read_row(key, value, offset)
    except Unreadable as error:
        raise ValueError(f"{REFUSED_RECORD}topic {topic} partition {partition} offset {offset}: {error}.") from None


def _row_or_error(
    reader: RecordReader, key: Any, value: Any, topic: str, partition: int, offset: int
) -> dict[str, Any]:
    """Return the row of a record, or one with the reason alone if it is refused."""
    try:
        return reader.read_row(key, value, offset)
    except Unreadable as error:
        return {ERROR_COLUMN: str(error)}

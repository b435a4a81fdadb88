"""The rows of a batch: each record is read in Python on the workers, which need this package and pyarrow."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StringType, StructType

from onceonly.debezium import DELETED, ORDER, Changes
from onceonly.debezium.reading import Reading
from onceonly.debezium.values import Unreadable, converter
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.merge import REFUSED_RECORD
from onceonly.spark import arrow

ERROR = "_error"  # why a record is refused


def of(changes: Changes, batch: DataFrame) -> DataFrame:
    """See `Changes.rows`."""
    return _read(changes, batch, _or_fail).select("row.*").drop(ERROR)


def split(changes: Changes, batch: DataFrame) -> tuple[DataFrame, DataFrame]:
    """See `Changes.split`."""
    read = _read(changes, batch, _or_error)
    error = F.col("row").getField(ERROR)
    refused = read.where(error.isNotNull()).select("topic", "partition", "offset", error.alias("error"))
    return read.where(error.isNull()).select("row.*").drop(ERROR), refused


def _read(changes: Changes, batch: DataFrame, row: Any) -> DataFrame:
    """Records without a value tell Kafka's compaction something, and say nothing new."""
    type_ = batch.sparkSession.createDataFrame([], changes.columns).schema
    reading = reading_of(changes, type_)
    for name in ORDER:
        type_ = type_.add(name, LongType())
    type_ = type_.add(DELETED, BooleanType()).add(ERROR, StringType())
    read = arrow.udf(_reader(partial(row, reading), type_), type_)
    key = F.col("key") if "key" in batch.columns else F.lit(None).cast("binary")
    found = read(key, "value", "topic", "partition", "offset").alias("row")
    return batch.where(F.col("value").isNotNull()).select("topic", "partition", "offset", found)


def reading_of(changes: Changes, type_: StructType) -> Reading:
    """Raises InvalidPipeline."""
    kinds = {field.name: field.dataType.simpleString() for field in type_}
    made = {name: (kind, converter(kind, changes.encodings.get(name))) for name, kind in kinds.items()}
    columns = {name: (kind, convert) for name, (kind, convert) in made.items() if convert}
    missing = sorted({*changes.keys, *changes.encodings} - set(kinds))
    taken = sorted({DELETED, ERROR, *ORDER, *changes.without} & set(kinds))
    wrong = ["no keys are named"] if not changes.keys else []
    wrong += [f"no column {missing}"] if missing else []
    wrong += [f"columns {taken} have another meaning"] if taken else []
    wrong += [
        f"'{name}' is {kinds[name]}, which is not a type of Debezium's values" for name in kinds if name not in columns
    ]
    if wrong:
        raise InvalidPipeline(
            f"Changes({changes.columns!r}, keys={list(changes.keys)}) is not a table with a key.",
            f"In it: {'; '.join(wrong)}.",
            "Correct columns, keys, encodings or without. Nothing was written.",
        )
    return Reading(columns, changes.keys, changes.without)


def _reader(row: Any, type_: StructType) -> Any:
    def read_all(
        keys: pa.Array, values: pa.Array, topics: pa.Array, partitions: pa.Array, offsets: pa.Array
    ) -> pa.Array:
        from pyspark.sql.pandas.types import to_arrow_type

        parts = zip(*(part.to_pylist() for part in (keys, values, topics, partitions, offsets)), strict=True)
        # Spark may read a batch before it leaves out records without a value
        found = [None if each[1] is None else row(*each) for each in parts]
        return pa.array(found, to_arrow_type(type_, timezone="UTC"))

    return read_all


def _or_fail(reading: Reading, key: Any, value: Any, topic: str, partition: int, offset: int) -> dict[str, Any]:
    try:
        return reading.row(key, value, offset)
    except Unreadable as error:
        raise ValueError(f"{REFUSED_RECORD}topic {topic} partition {partition} offset {offset}: {error}.") from None


def _or_error(reading: Reading, key: Any, value: Any, topic: str, partition: int, offset: int) -> dict[str, Any]:
    try:
        return reading.row(key, value, offset)
    except Unreadable as error:
        return {ERROR: str(error)}

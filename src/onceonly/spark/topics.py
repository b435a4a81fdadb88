"""Reading exactly the pinned part of a topic through Spark's own Kafka connector."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

from onceonly.checkpoint.offsets import Ranges

_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
SCHEMA = (  # not as DDL, which takes a call of the JVM to parse
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("headers", _HEADERS)
)
PLACE = ("topic", "partition", "offset")  # of a record
COLUMNS = tuple(SCHEMA.names)
CONSUMER_OPTIONS = {  # for a backlog. None makes a reader wait (fetch.min.bytes would, at the end of a range)
    "max.poll.records": "10000",  # Kafka's default of 500 takes 50 % more CPU, here and on the broker
    "max.partition.fetch.bytes": str(8 << 20),  # a task reads one partition; the default is 1 MiB
    "receive.buffer.bytes": "-1",  # as large as the operating system finds useful, not 64 KiB
    # Spark asks for the log's extent after each fetch, behind the next fetch, which waits at the end of the log: 500 ms
    "fetch.max.wait.ms": "10",
}
LOST = re.compile(
    r"OffsetOutOfRange|DATA_LOSS|[Dd]ata may (have been|be) lost|UnknownTopicOrPartition|UnknownTopicId"
    r"|have been lost|Cannot fetch record|COULD_NOT_READ_OFFSET_RANGE|out of range|TimeoutException"
)
OVERFLOW = re.compile(r"ArithmeticException|long overflow")  # a record's time in microseconds has more than 64 bits


def read_ranges(spark: SparkSession, kafka: Mapping[str, str], ranges: Ranges) -> DataFrame:
    """Return the committed records of `ranges`, undecoded, with the columns of `SCHEMA`.

    Lazy: the caller has to verify, before and after the job, that the ranges are still in the log.

    Args:
        kafka: options of a Java client, from `onceonly.kafka.client_settings.options`.
    """
    starts, ends = _split_offsets(ranges)
    if not starts:
        return spark.createDataFrame([], SCHEMA)
    partitions = {topic: list(map(int, offsets)) for topic, offsets in starts.items()}
    options = {}
    for key, value in {**CONSUMER_OPTIONS, **kafka}.items():
        options[f"kafka.{key}"] = value
    options |= {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "kafka.isolation.level": "read_committed",
        "kafka.allow.auto.create.topics": "false",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }
    return spark.read.format("kafka").options(**options).load().select(*COLUMNS)


def looks_lost(error: Exception) -> bool:
    """Return whether a read may have failed because records or the topic were deleted. Only the log can prove it."""
    return LOST.search(str(error)) is not None


def looks_untimely(error: Exception) -> bool:
    """Return whether a read may have failed because of the time of a record. Only the record can prove it."""
    return OVERFLOW.search(str(error)) is not None


def _split_offsets(ranges: Ranges) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Return the start offsets and the end offsets of partitions that are not empty: topic -> partition -> offset."""
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for range_ in ranges:
        for partition, (start, end) in sorted(range_.partitions.items()):
            if start < end:
                starts.setdefault(range_.topic, {})[str(partition)] = start
                ends.setdefault(range_.topic, {})[str(partition)] = end
    return starts, ends

"""Reading exactly the pinned part of a topic in Spark's JVM: by Onceonly's jar, or where it is not, Spark's connector.

Both give the same rows. The jar makes only the columns that are used, and asks the brokers for nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

from onceonly.checkpoint.offsets import Ranges
from onceonly.spark import jvm_jar

Span = tuple[int, int]
JAR_SOURCE = "onceonly.kafka.RecordSource"
SILENCE_SECONDS = 120  # as Spark's connector has

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
    # The connector asks for a log's extent after each fetch, behind the next, which waits at the log's end: 500 ms
    "fetch.max.wait.ms": "10",
}
COMMITTED_ONLY = {"isolation.level": "read_committed", "allow.auto.create.topics": "false"}
LOST = re.compile(
    r"OffsetOutOfRange|DATA_LOSS|[Dd]ata may (have been|be) lost|UnknownTopicOrPartition|UnknownTopicId"
    r"|have been lost|Cannot fetch record|COULD_NOT_READ_OFFSET_RANGE|out of range|TimeoutException"
)
OVERFLOW = re.compile(r"ArithmeticException|long overflow")  # a record's time in microseconds has more than 64 bits


def read_ranges(
    spark: SparkSession, kafka: Mapping[str, str], ranges: Ranges, patience: int = SILENCE_SECONDS
) -> DataFrame:
    """Return the committed records of `ranges`, undecoded, with the columns of `SCHEMA`.

    Lazy: the caller has to verify, before and after the job, that the ranges are still in the log.

    Args:
        kafka: options of a Java client, from `onceonly.kafka.client_settings.java_options`.
        patience: seconds that no record may come, before the read fails; without the jar it is Spark's own setting.
    Raises:
        InvalidPipeline: the session has another version of the jar than this package.
    """
    offsets = _select_offsets(ranges)
    if not offsets:
        return spark.createDataFrame([], SCHEMA)
    options = {f"kafka.{key}": value for key, value in {**CONSUMER_OPTIONS, **kafka, **COMMITTED_ONLY}.items()}
    if jvm_jar.is_in_session(spark):
        options |= {"ranges": json.dumps(offsets), "patience": str(patience)}
        return spark.read.format(JAR_SOURCE).options(**options).load()
    return spark.read.format("kafka").options(**options, **_connector_options(offsets)).load().select(*COLUMNS)


def looks_lost(error: Exception) -> bool:
    """Return whether a read may have failed because records or the topic were deleted. Only the log can prove it."""
    return LOST.search(str(error)) is not None


def looks_untimely(error: Exception) -> bool:
    """Return whether a read may have failed because of the time of a record. Only the record can prove it."""
    return OVERFLOW.search(str(error)) is not None


def _select_offsets(ranges: Ranges) -> dict[str, dict[str, Span]]:
    """Return the first offset and the one after the last, of partitions that are not empty, by topic and partition."""
    offsets: dict[str, dict[str, Span]] = {}
    for range_ in ranges:
        for partition, (start, end) in sorted(range_.partitions.items()):
            if start < end:
                offsets.setdefault(range_.topic, {})[str(partition)] = (start, end)
    return offsets


def _connector_options(offsets: Mapping[str, Mapping[str, Span]]) -> dict[str, str]:
    """Return what Spark's connector has to be told to read these offsets, and to fail where it cannot."""
    partitions, starts, ends = {}, {}, {}
    for topic, spans in offsets.items():
        partitions[topic] = list(map(int, spans))
        starts[topic] = {partition: start for partition, (start, _) in spans.items()}
        ends[topic] = {partition: end for partition, (_, end) in spans.items()}
    return {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }

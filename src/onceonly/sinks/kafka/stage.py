"""Stages rows for Kafka on Spark: converts columns to records, then spools them and, if needed, writes them to Kafka.

`_stage_part` runs on Spark's workers, which need this package, confluent-kafka and pyarrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from onceonly import errors
from onceonly.errors import InvalidPipeline, OnceonlyError
from onceonly.filesystems import aws
from onceonly.kafka import kafkapython
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka import encode, limits
from onceonly.sinks.kafka.limits import Rows
from onceonly.sinks.kafka.produce import Output, Target
from onceonly.sinks.kafka.registered import Heads, Part
from onceonly.sinks.kafka.spool import SCHEMA, SpoolFile
from onceonly.sinks.kafka.transactional_ids import Ids
from onceonly.spark import few
from onceonly.spark.file_formats import MICROS

HEADERS = "array<struct<key:string,value:binary>>"
TYPES = {
    "key": ("binary", ("binary", "string")),
    "topic": ("string", ("string",)),
    "partition": ("int", ("int", "smallint", "tinyint")),
    "timestamp": ("timestamp", ("timestamp",)),
    "headers": (HEADERS, (HEADERS,)),
}
RECEIPT = "receipt STRING"
TOLD = re.compile(encode.MARK + r" (\{.*?\})(?=$|\n|\\n)", re.MULTILINE)


@dataclass(frozen=True)
class Job:
    """What a worker needs. It is part of the task, not of the query plan, which people can see."""

    target: Target
    spool: str | None  # folder; None: no spool
    ids: Ids | None  # None: no transaction
    write: bool  # to Kafka, now
    identify: KafkaConnection | None = None  # to read the producer's id and epoch, if transactional ids are reused
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)  # variables by which the spool is reached


@dataclass(frozen=True)
class Receipt:
    """What a successful task has written."""

    spool: str
    rows: int
    bytes: int
    id: str | None
    producer: tuple[int, int] | None = None


def records(config: KafkaSink, rows: Any, schema: str | None, registered: Sequence[tuple[Part, Heads]] = ()) -> Any:
    """The DataFrame with the names and types of the spool's columns. `_whole` adds those that are missing.

    Args:
        registered: what begins with the id of a schema in a registry.
    Raises:
        InvalidPipeline: a column is missing, unknown or of another type.
    """
    from pyspark.sql import functions as F

    _check_columns(config, rows)
    made = {
        "topic": F.col("topic"),
        "partition": F.col("partition").cast("int"),
        "key": F.col("key").cast("binary"),
        "value": F.lit(None) if config.registry and config.format != "raw" else _value(config, rows, schema),
        "timestamp": F.unix_millis(F.col("timestamp")),
        "headers": F.coalesce(F.col("headers"), F.array().cast(HEADERS)),  # a null list takes Spark 4 µs per row
    }
    made |= {
        part.name: encode.column(config, part, rows, heads) for part, heads in registered if part.name in rows.columns
    }
    return rows.select(*(made[name].alias(name) for name in SCHEMA.names if name in rows.columns))


def run(job: Job, rows: Any) -> list[Receipt]:
    """Stage `rows` (the result of `records`) in one Spark job.

    Raises:
        InvalidPipeline: a row cannot be written, or is not allowed; the message names it.
        NotCommitted: the brokers did not accept the rows.
    """
    try:
        taken = few.collected(rows)
        if taken is not None:
            receipt = _stage_part(job, 0, taken.to_batches())
            return [receipt] if receipt else []
        found = rows.mapInArrow(_part_of(job), RECEIPT).collect()
    except Exception as error:
        raise _told(error) or error from error
    return [Receipt(**json.loads(row["receipt"])) for row in found]


def _part_of(job: Job) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        aws.adopt(job.storage)  # this worker may have done other work before
        part, attempt = (context.partitionId(), context.attemptNumber()) if context else (0, 0)
        try:
            receipt = _stage_part(_repeated(job) if attempt else job, part, batches)
        except OnceonlyError as error:
            raise encode.told(error) from error
        if receipt:
            yield pa.RecordBatch.from_pydict({"receipt": [json.dumps(vars(receipt))]})

    return stage


def _repeated(job: Job) -> Job:
    """For a retry, or for a copy of a task that is still running: it takes no pooled id.

    It would fence the first attempt, whose result may be the one that counts. Spark would try that one again, which
    would fence the copy.
    """
    return replace(job, ids=replace(job.ids, slot=None)) if job.ids else job


def _told(error: Exception) -> OnceonlyError | None:
    """The OnceonlyError that a Spark task has raised, if it was one."""
    if not (found := TOLD.search(str(error))):
        return None
    told = json.loads(found[1])
    kind: type[OnceonlyError] = getattr(errors, told.pop("kind"))
    return kind(**told)


def _stage_part(job: Job, part: int, batches: Iterable[pa.RecordBatch]) -> Receipt | None:
    """One task: write every row to the spool and the output, then make both durable. Without rows it does nothing."""
    spool: SpoolFile | None = None
    output: Output | None = None
    id = job.ids.first(part) if job.ids else None
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        records = _whole(job.target, batch)
        limits.check(job.target.topics, Rows(job.target.sink, records, rows, f"Spark partition {part}"))
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if job.spool:
            spool = spool or SpoolFile(job.spool, part)
            spool.write(records)
        if job.write:
            output = output or _output(job, id)
            output.write(records)
    if spool:
        spool.close()
    if output:
        output.flush()
    if not rows:
        return None
    written = (id, output.producer) if output else (None, None)
    return Receipt(spool.name if spool else "", rows, size, *written)


def _whole(target: Target, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with all columns. Missing ones are added here, because Spark would send them row by row."""
    made = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "topic" not in made:
        made["topic"] = _always(target.topics.only, batch.num_rows)
    columns = [
        made[field.name].cast(field.type) if field.name in made else _nulls(field.type, batch.num_rows)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@lru_cache(16)  # nearly all batches of a task have the same length
def _always(topic: str, rows: int) -> pa.Array:
    return pa.repeat(topic, rows)


@lru_cache(16)
def _nulls(kind: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, kind)


def _output(job: Job, id: str | None) -> Output:
    if not job.identify:
        return Output(job.target, id)
    with Transactions(kafkapython.arguments(job.identify)) as known:
        return Output(job.target, id, known)


def _check_columns(config: KafkaSink, rows: Any) -> None:
    have = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    problems = [] if "value" in have else ["'value' is missing"]
    if not config.topic and "topic" not in have:
        problems.append("'topic' is missing, and the sink has several topics")
    if config.topic and "topic" in have:
        problems.append(f"'topic' is not allowed, because every row goes to '{config.topic}'")
    for name, kind in have.items():
        if name == "key" and config.key_format != "raw":
            continue  # of any type; see `encode`
        if name in TYPES and kind not in TYPES[name][1]:
            problems.append(f"'{name}' is {kind}, not {TYPES[name][0]}")
        elif name not in TYPES and name != "value":
            problems.append(f"'{name}' is not a part of a record")
    if config.format == "json" and not have.get("value", "struct").startswith(("struct", "map", "array")):
        problems.append(f"'value' is {have['value']}, and JSON needs a struct, a map or an array")
    if config.format == "raw" and have.get("value", "binary") not in ("binary", "string"):
        problems.append(f"'value' is {have['value']}, and format='raw' needs binary or string")
    if problems:
        raise InvalidPipeline(
            f"sink '{config.name}': the rows cannot be written to Kafka.",
            f"Columns: {'; '.join(problems)}.",
            "Select value, and optionally key, headers, timestamp, partition, topic. Nothing was staged.",
        )


def _value(config: KafkaSink, rows: Any, schema: str | None) -> Any:
    from pyspark.sql import functions as F

    value = F.col("value")
    if config.format == "avro":
        from pyspark.sql.avro.functions import to_avro

        return F.when(value.isNotNull(), to_avro(value, schema or ""))  # a null value is a tombstone
    if config.format == "json":
        value = F.to_json(value, {"ignoreNullFields": "false", **MICROS})
    return value.cast("binary")

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
from onceonly.errors import InvalidPipeline, NotCommitted, OnceonlyError
from onceonly.kafka import client_settings
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka import limits, registered_schemas
from onceonly.sinks.kafka.handle import Ids
from onceonly.sinks.kafka.limits import CheckedRows
from onceonly.sinks.kafka.producer import Output, SendTarget
from onceonly.sinks.kafka.registered_schemas import Heads, SchemaPart
from onceonly.sinks.kafka.spool import SPOOL_SCHEMA, SpoolFile
from onceonly.spark.row_files import MICROSECOND_FORMATS
from onceonly.spark.small_batch import collect_small_batch
from onceonly.storage import logins

HEADERS = "array<struct<key:string,value:binary>>"
TYPES = {
    "key": ("binary", ("binary", "string")),
    "topic": ("string", ("string",)),
    "partition": ("int", ("int", "smallint", "tinyint")),
    "timestamp": ("timestamp", ("timestamp",)),
    "headers": (HEADERS, (HEADERS,)),
}
RECEIPT = "receipt STRING"
ERROR_IN_TEXT = re.compile(registered_schemas.ERROR_PREFIX + r" (\{.*?\})(?=$|\n|\\n)", re.MULTILINE)


@dataclass(frozen=True)
class Job:
    """What a worker needs. It is part of the task, not of the query plan, which people can see."""

    target: SendTarget
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


def records(
    config: KafkaSink, rows: Any, schema: str | None, registered: Sequence[tuple[SchemaPart, Heads]] = ()
) -> Any:
    """Return a DataFrame with the names and types of the spool's columns.

    `_add_missing_columns` adds those that are missing.

    Args:
        registered: what begins with the id of a schema in a registry.
    Raises:
        InvalidPipeline: a column is missing, unknown or of another type.
    """
    from pyspark.sql import functions as F

    _check_columns(config, rows)
    has_registered_values = config.registry and config.format != "raw"
    columns = {
        "topic": F.col("topic"),
        "partition": F.col("partition").cast("int"),
        "key": F.col("key").cast("binary"),
        "value": F.lit(None) if has_registered_values else _value(config, schema),
        "timestamp": F.unix_millis(F.col("timestamp")),
        "headers": F.coalesce(F.col("headers"), F.array().cast(HEADERS)),  # a null list takes Spark 4 µs per row
    }
    for part, heads in registered:
        if part.name in rows.columns:
            columns[part.name] = registered_schemas.encode_column(config, part, rows, heads)
    return rows.select(*(columns[name].alias(name) for name in SPOOL_SCHEMA.names if name in rows.columns))


def run(job: Job, rows: Any, is_small_batch: bool = False) -> list[Receipt]:
    """Stage `rows` (the result of `records`) in one Spark job.

    Args:
        is_small_batch: they are made of few records. If they are few themselves, this process writes them.
    Raises:
        InvalidPipeline: a row cannot be written, or is not allowed; the message names it.
        NotCommitted: the brokers did not accept the rows.
    """
    try:
        table = collect_small_batch(rows) if is_small_batch else None
        if table is not None:
            receipt = _stage_part(job, 0, table.to_batches())
            return [receipt] if receipt else []
        receipt_rows = rows.mapInArrow(_make_task(job), RECEIPT).collect()
    except Exception as error:
        raise _find_task_error(error) or error from error
    return [Receipt(**json.loads(row["receipt"])) for row in receipt_rows]


def _make_task(job: Job) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that stages one Spark partition on a worker, and yields its receipt as JSON."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        logins.AWS.use_variables(job.storage)  # this worker may have done other work before
        part, attempt_job = 0, job
        if context:
            part = context.partitionId()
            if context.attemptNumber():
                attempt_job = _without_pooled_ids(job)
        try:
            receipt = _stage_part(attempt_job, part, batches)
        except OnceonlyError as error:
            raise registered_schemas.worker_error(error) from error
        if receipt:
            yield pa.RecordBatch.from_pydict({"receipt": [json.dumps(vars(receipt))]})

    return stage


def _without_pooled_ids(job: Job) -> Job:
    """Return the job for a retry, or for a copy of a task that is still running: it takes no pooled id.

    It would fence the first attempt, whose result may be the one that counts. Spark would try that one again, which
    would fence the copy.
    """
    if job.ids is None:
        return job
    return replace(job, ids=replace(job.ids, slot=None))


def _find_task_error(error: Exception) -> OnceonlyError | None:
    """Return the OnceonlyError that a Spark task has raised, if it was one."""
    match = ERROR_IN_TEXT.search(str(error))
    if match is None:
        return None
    arguments = json.loads(match[1])
    kind: type[OnceonlyError] = getattr(errors, arguments.pop("kind"))
    return kind(**arguments)


def _stage_part(job: Job, part: int, batches: Iterable[pa.RecordBatch]) -> Receipt | None:
    """Stage one Spark partition: write every row to the spool and the output, then make both durable.

    Without rows it does nothing, and returns None.
    """
    spool: SpoolFile | None = None
    output: Output | None = None
    id = job.ids.first(part) if job.ids else None
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        records = _add_missing_columns(job.target, batch)
        limits.check(job.target.topics, CheckedRows(job.target.sink, records, rows, f"Spark partition {part}"))
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if job.spool:
            spool = spool or SpoolFile(job.spool, part)
            spool.write(records)
        if job.write:
            output = output or _open_output(job, id)
            output.write(records)
    if spool:
        spool.close()
    if output:
        output.flush()
    if not rows:
        return None
    spool_name = spool.name if spool else ""
    if output is None:
        return Receipt(spool_name, rows, size, id=None)
    return Receipt(spool_name, rows, size, id, output.producer)


def _add_missing_columns(target: SendTarget, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with all columns. Missing ones are added here, because Spark would send them row by row."""
    columns_by_name = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "topic" not in columns_by_name:
        columns_by_name["topic"] = _repeat(target.topics.only, batch.num_rows)
    columns = []
    for column_field in SPOOL_SCHEMA:
        if column_field.name in columns_by_name:
            columns.append(columns_by_name[column_field.name].cast(column_field.type))
        else:
            columns.append(_nulls(column_field.type, batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=SPOOL_SCHEMA)


@lru_cache(16)  # nearly all batches of a task have the same length
def _repeat(topic: str, rows: int) -> pa.Array:
    return pa.repeat(topic, rows)


@lru_cache(16)
def _nulls(kind: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, kind)


def _open_output(job: Job, id: str | None) -> Output:
    """Open an output that learns its producer's id and epoch if transactional ids are used again."""
    if not job.identify:
        return Output(job.target, id)
    with Transactions(client_settings.kafka_python_arguments(job.identify)) as transactions:
        return Output(job.target, id, transactions)


def _check_columns(config: KafkaSink, rows: Any) -> None:
    """Raise InvalidPipeline if the columns are not those of a record."""
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    problems = _problems_of_topic(config, types) + _problems_of_types(config, types)
    if problems:
        raise InvalidPipeline(
            f"sink '{config.name}': the rows cannot be written to Kafka.",
            f"Columns: {'; '.join(problems)}.",
            "Select value, and optionally key, headers, timestamp, partition, topic. Nothing was staged.",
            code="columns-unsuitable",
        )


def _problems_of_topic(config: KafkaSink, types: Mapping[str, str]) -> list[str]:
    """Say whether value and topic are missing, or the topic is one too many."""
    problems = []
    if "value" not in types:
        problems.append("'value' is missing")
    if not config.topic and "topic" not in types:
        problems.append("'topic' is missing, and the sink has several topics")
    if config.topic and "topic" in types:
        problems.append(f"'topic' is not allowed, because every row goes to '{config.topic}'")
    return problems


def _problems_of_types(config: KafkaSink, types: Mapping[str, str]) -> list[str]:
    """Say which columns have another type than that part of a record, or are none of its parts."""
    problems = []
    for name, kind in types.items():
        if name == "key" and config.key_format != "raw":
            continue  # of any type; see `encode`
        if name in TYPES and kind not in TYPES[name][1]:
            problems.append(f"'{name}' is {kind}, not {TYPES[name][0]}")
        elif name not in TYPES and name != "value":
            problems.append(f"'{name}' is not a part of a record")
    if config.format == "json" and not types.get("value", "struct").startswith(("struct", "map", "array")):
        problems.append(f"'value' is {types['value']}, and JSON needs a struct, a map or an array")
    if config.format == "raw" and types.get("value", "binary") not in ("binary", "string"):
        problems.append(f"'value' is {types['value']}, and format='raw' needs binary or string")
    return problems


def _value(config: KafkaSink, schema: str | None) -> Any:
    """Return the column with the values as bytes, for a sink without a registry."""
    from pyspark.sql import functions as F

    value = F.col("value")
    if config.format == "avro":
        from pyspark.sql.avro.functions import to_avro

        return F.when(value.isNotNull(), to_avro(value, schema or ""))  # a null value is a tombstone
    if config.format == "json":
        value = F.to_json(value, {"ignoreNullFields": "false", **MICROSECOND_FORMATS})
    return value.cast("binary")


def recreated_topic_error(sink: str, place: Mapping[str, Any]) -> NotCommitted:
    return NotCommitted(
        f"sink '{sink}': a topic was dropped or created again while rows were staged for it.",
        f"The rows were written for {place}, which is not there any more.",
        "Nothing of it is published. Retry, when nobody is changing the topics.",
        "target-recreated",
    )

"""Writes rows to the spool and to Kafka on Spark's Python workers, or in this process.

The workers need this package, confluent-kafka and pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from onceonly.errors import OnceonlyError
from onceonly.kafka import client_settings
from onceonly.kafka.transactions import Transactions
from onceonly.sinks.kafka import limits, spool
from onceonly.sinks.kafka.job import Job, Receipt
from onceonly.sinks.kafka.limits import CheckedRows
from onceonly.sinks.kafka.producer import Output, SendTarget
from onceonly.sinks.kafka.spool import SpoolFile
from onceonly.sinks.staging.worker_errors import worker_error
from onceonly.storage import logins

RECEIPT = "receipt STRING"


def run(job: Job, rows: Any) -> list[Receipt]:
    """Stage rows in one Spark job."""
    receipt_rows = rows.mapInArrow(_make_task(job), RECEIPT).collect()
    return [Receipt(**json.loads(row["receipt"])) for row in receipt_rows]


def run_here(job: Job, table: pa.Table) -> list[Receipt]:
    """Stage rows in this process."""
    receipt = _stage_part(job, 0, table.to_batches())
    return [receipt] if receipt else []


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
            raise worker_error(error) from error
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


def _stage_part(job: Job, part: int, batches: Iterable[pa.RecordBatch]) -> Receipt | None:
    """Stage one Spark partition: write every row to the spool and the output, then make both durable.

    Without rows it does nothing, and returns None.
    """
    with ExitStack() as outputs:
        return _write_part(job, part, batches, outputs)


def _write_part(job: Job, part: int, batches: Iterable[pa.RecordBatch], outputs: ExitStack) -> Receipt | None:
    """See `_stage_part`. The output is opened on `outputs`, which closes it."""
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
            output = output or outputs.enter_context(_open_output(job, id))
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
    if "topic" not in batch.schema.names:
        batch = batch.append_column("topic", _repeat(target.topics.only, batch.num_rows))
    return spool.complete(batch)


@lru_cache(16)  # nearly all batches of a task have the same length
def _repeat(topic: str, rows: int) -> pa.Array:
    return pa.repeat(topic, rows)


def _open_output(job: Job, id: str | None) -> Output:
    """Open an output that learns its producer's id and epoch if transactional ids are used again."""
    if not job.has_pooled_ids:
        return Output(job.target, id)
    with Transactions(client_settings.kafka_python_arguments(job.connection)) as transactions:
        return Output(job.target, id, transactions)

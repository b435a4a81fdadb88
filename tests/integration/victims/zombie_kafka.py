"""A process that does what a Spark worker does for the next attempt of an epoch, and stops itself in the middle.

Arguments: FOLDER SPARK EPOCH WHEN COPY. WHEN is 'before its first row', 'amid its rows' or 'after its last row'.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from integration.projects.copying import Copy
from integration.projects.project import Project
from integration.readers.kafka_reader import until

from onceonly.checkpoint.model import Transaction
from onceonly.sinks.kafka import python_writer
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.kafka.spool import SPOOL_SCHEMA


def stop(when: str) -> None:
    if sys.argv[4] == when:
        os.kill(os.getpid(), signal.SIGSTOP)


def batches(copy: Copy, txn: Transaction) -> Iterator[pa.RecordBatch]:
    """Rows of partitions 0 and 1, and when they are on the brokers, of 2 and 3."""
    stop("before its first row")
    yield batch(copy, 0, 1)
    with copy.known() as known:
        until(lambda: known.list_open(f".*-{txn.name}-.*"), what="its transaction")
    stop("amid its rows")
    yield batch(copy, 2, 3)


def batch(copy: Copy, *partitions: int) -> pa.RecordBatch:
    row = {"topic": copy.out, "key": None, "value": b"666", "timestamp": None, "headers": None}
    return pa.RecordBatch.from_pylist([{**row, "partition": number} for number in partitions], SPOOL_SCHEMA)


def main() -> None:
    folder, spark, epoch, _, text = sys.argv[1:6]
    copy = Copy(Project.found(folder, spark), **json.loads(text))
    txn = copy.through._stager.claim("copying", int(epoch), None).require(int(epoch)).transaction("copy")
    checked_sink: Any = copy.project.parts.sink(copy.pipeline, "copy")
    sink = checked_sink._sink
    assert isinstance(sink, KafkaWriter)
    with copy.known() as known:
        job = sink._job(txn, sink._target(known))
    if sys.argv[4] == "amid its rows":  # with a spool, which an abort deletes, it would not come as far as the brokers
        job = replace(job, has_spool=False)
    try:
        receipt = python_writer._stage_part(job, 0, batches(copy, txn))
        stop("after its last row")
        print(f"staged {receipt.rows if receipt else 0} rows")
    except Exception as error:  # Spark would print it, too
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()

"""Stages rows on Spark's Python workers, or in this process. The workers need this package, psycopg and numpy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from onceonly.errors import OnceonlyError
from onceonly.sinks.toolkit import find_worker_error, nothing_published, worker_error
from onceonly_postgres import errors, staging_tables
from onceonly_postgres.binary_copy import UnfitValue
from onceonly_postgres.columns import TableColumn
from onceonly_postgres.server import Server

RECEIPT = "receipt STRING"


@dataclass(frozen=True)
class Job:
    """What a worker needs. It is part of the task, not of the query plan, which people can see.

    Args:
        schema: of the staging tables.
        columns: of the table, in the order of the rows' columns.
        required: columns that may not be null: keys, and what orders changes.
    """

    server: Server
    schema: str
    txn_name: str
    columns: Sequence[TableColumn]
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class Receipt:
    """What a successful task has written."""

    table: str
    rows: int
    bytes: int


def run(job: Job, rows: Any) -> list[Receipt]:
    """Stage the rows of a DataFrame in one Spark job, and return what the winning attempt of each task has written.

    Raises:
        InvalidPipeline: a row is none that the table takes.
        NotCommitted: the server did not answer.
    """
    try:
        receipts = rows.mapInArrow(_make_task(job), RECEIPT).collect()
    except Exception as error:
        raise find_worker_error(str(error)) or error from error
    return [Receipt(**json.loads(row["receipt"])) for row in receipts]


def run_here(job: Job, table: pa.Table) -> list[Receipt]:
    """Stage rows in this process."""
    receipt = stage_part(job, table.to_batches())
    return [receipt] if receipt else []


def _make_task(job: Job) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that stages one Spark partition on a worker, and yields its receipt as JSON."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            receipt = stage_part(job, batches)
        except OnceonlyError as error:
            raise worker_error(error) from None
        if receipt:
            yield pa.RecordBatch.from_pydict({"receipt": [json.dumps(vars(receipt))]})

    return stage


def stage_part(job: Job, batches: Iterable[pa.RecordBatch]) -> Receipt | None:
    """Write one Spark partition into a table of its own; None: it has no rows."""
    try:
        with nothing_published():
            written = staging_tables.fill(job.server, job.schema, job.txn_name, job.columns, job.required, batches)
    except UnfitValue as error:
        raise errors.row_error(job.server.sink, f"{str(error)[:1].upper()}{str(error)[1:]}.") from error
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise errors.row_error(job.server.sink, job.server.describe(error)) from error
    except psycopg.Error as error:
        raise errors.stage_error(job.server, error) from error
    if written is None:
        return None
    return Receipt(*written)

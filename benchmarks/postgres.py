"""Rows into a PostgreSQL table by onceonly-postgres, beside Spark's own JDBC writer, which may double rows.

It needs a server (apt install postgresql). PostgreSQL's JDBC driver comes from Maven Central.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import psycopg
from tests.integration import debezium
from tests.integration.services.postgres import Postgres

from benchmarks.goals import DEFAULT, TUNED
from benchmarks.peers import SPARK
from benchmarks.ratio import against, alternate
from benchmarks.results import Result
from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Publication
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.spark.session import session
from onceonly.testing.fakes import FakeReceipts
from onceonly_postgres import PostgresSink

ROWS = 10_000_000
PARTITIONS = 4
SINK, CONNECTION = "prices", "bench_database"
COLUMNS = "id bigint, name text, price double precision, at timestamptz"
# "batchsize" is Spark's; with the other one, the driver puts the rows of a batch into few INSERTs.
BATCHES = {"batchsize": "10000", "reWriteBatchedInserts": "true"}


def postgres(folder: Path, rows: int = ROWS, rounds: int = 3) -> Result:
    """All sides in one warm session, from the same Parquet files, into a table of their own."""
    with _server() as port:
        frame = _read_rows(folder, rows)
        ours = Publisher(port, folder / "receipts")
        sides = {
            "Onceonly": lambda: ours.publish(frame),
            DEFAULT: lambda: _insert(port, frame, {}),
            TUNED: lambda: _insert(port, frame, BATCHES),
        }
        measured = against(alternate(sides, rounds))
        for table in ("ours", "theirs"):
            [(found,)] = _execute(port, f"SELECT count(DISTINCT id) FROM {table}")
            assert found == rows, f"{table} has {found:,} rows"
    how = (
        f"{rows:,} rows of four columns, staged, rehearsed and committed (binary COPY into staging tables, then one "
        f"transaction), beside Spark's JDBC writer into the same server. {PARTITIONS} partitions."
    )
    settings = {"Onceonly": SPARK, DEFAULT: SPARK, TUNED: SPARK | BATCHES}
    return Result("Rows into PostgreSQL", how, measured, settings=settings)


class Publisher:
    """Stages, rehearses and commits as the coordinator does it, one decision after the other."""

    def __init__(self, port: int, receipts: Path) -> None:
        self._port, self._receipts = port, receipts
        self._numbers, self._state_id = count(1), uuid.uuid4().hex
        sink = PostgresSink(SINK, "ours", CONNECTION)
        source, transform = KafkaSource("prices"), "benchmarks.checkpoint:shape"  # neither is used
        self._pipeline = Pipeline(name="bench", source=source, transform=transform, sinks=[sink])
        self._last: Publication | None = None

    def publish(self, frame: Any) -> None:
        _execute(self._port, "TRUNCATE ours")
        number, sink = next(self._numbers), LiveServices().sink(self._pipeline, SINK)
        handle = sink.stage(Transaction(self._state_id, "bench", SINK, number, 1, "a"), frame)
        handle = sink.rehearse(handle, number, self._last)
        outcome = sink.commit(handle, number, FakeReceipts(self._receipts / str(number)), self._last)
        self._last = Publication(number, number, outcome.proof)


def _insert(port: int, frame: Any, options: Mapping[str, str]) -> None:
    _execute(port, "TRUNCATE theirs")
    writer = frame.write.format("jdbc").option("url", f"jdbc:postgresql://127.0.0.1:{port}/postgres")
    writer.options(dbtable="theirs", user="airflow", driver="org.postgresql.Driver", **options).mode("append").save()


def _read_rows(folder: Path, rows: int) -> Any:
    """Return a DataFrame of rows that lie in Parquet files."""
    settings = Settings.from_env()
    driver = next(debezium.fetch().glob("postgresql-*.jar"))
    spark = session(settings, {"spark.jars": ",".join([*settings.spark_jars(), str(driver)])})
    place = f"file://{folder}/rows"
    spark.range(0, rows, 1, PARTITIONS).selectExpr(
        "id", "concat('name-', id % 1000) AS name", "id / 7 AS price", "timestamp_micros(id * 1000) AS at"
    ).write.parquet(place)
    return spark.read.parquet(place)


@contextmanager
def _server() -> Iterator[int]:
    """A server with a table for each side: its port."""
    with TemporaryDirectory(prefix="onceonly-bench-") as folder:
        server = Postgres(folder, "max_wal_size=8GB")
        server.start()
        extra = {"host": "127.0.0.1", "port": server.port, "dbname": "postgres", "user": "airflow"}
        connection = json.dumps({"conn_type": "postgres", "extra": extra})
        try:
            for table in ("ours", "theirs"):
                _execute(server.port, f"CREATE TABLE {table} ({COLUMNS})")
            with patch.dict("os.environ", {f"AIRFLOW_CONN_{CONNECTION.upper()}": connection}):
                yield server.port
        finally:
            server.stop()


def _execute(port: int, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(host="127.0.0.1", port=port, dbname="postgres", user="airflow", autocommit=True) as client:
        cursor = client.execute(sql)
        return cursor.fetchall() if cursor.description else []

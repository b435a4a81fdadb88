"""Rows into a PostgreSQL table by onceonly-postgres, beside Spark's own JDBC writer, which may double rows.

It needs a server (apt install postgresql). PostgreSQL's JDBC driver comes from Maven Central.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from benchmarks.verify import Output
from onceonly.checkpoint.model import Transaction
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.spark.session import session
from onceonly.testing.ledger import Ledger
from onceonly.testing.targets import Committer
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
        publish = _make_publisher(port, folder / "receipts")
        sides = {
            "Onceonly": lambda: publish(frame),
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


def _make_publisher(port: int, receipts: Path) -> Callable[[Any], None]:
    """Return what publishes a DataFrame, as the coordinator does it, one decision after the other."""
    source, transform = KafkaSource("prices"), "benchmarks.checkpoint:shape"  # neither is used
    sinks = [PostgresSink(SINK, "ours", CONNECTION)]
    pipeline = Pipeline(name="bench", source=source, transform=transform, sinks=sinks)
    target, state_id = Output(lambda: LiveServices().sink(pipeline, SINK)), uuid.uuid4().hex
    receipts.mkdir()
    ledger = Ledger(target.sink, Committer(target, str(receipts)))

    def publish(frame: Any) -> None:
        _execute(port, "TRUNCATE ours")
        epoch = len(ledger.published) + 1
        ledger.publish(epoch, target.sink().stage(Transaction(state_id, "bench", SINK, epoch, 1, "a"), frame))

    return publish


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

"""The transforms of the how-to pages on records of each kind."""

from __future__ import annotations

import json
import re
import uuid
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from integration.projects.project import Project
from integration.readers.kafka_reader import create_topic, values
from patience import PATIENCE

from onceonly.checkpoint.model import Checkpoint
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.owners import is_never_alive
from onceonly.statetable.table import StateTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
RECORDS = [b'{"id": 1, "shop": "Berlin", "cents": 5}', b'{"id": "x"}', b"not json", b'{"id": 2', None]

CHANGES = [
    b'{"before": null, "after": {"id": 1, "name": "a", "city": "x"}, "op": "c", "source": {"lsn": 5}, "ts_ms": 1}',
    b'{"before": {"id": 1}, "after": {"id": 1, "name": "b", "city": "x"}, "op": "u", "source": {"lsn": 6}}',
    b'{"before": {"id": 2, "name": "c", "city": null}, "after": null, "op": "d", "source": {"lsn": 7}}',
    None,
]


def defined(page: str, text: str = "\ndef ") -> dict[str, Any]:
    """What the page's example with that text defines: a transform, if nothing else is said."""
    names: dict[str, Any] = {}
    exec(code(page, text), names)
    return names


def code(page: str, text: str) -> str:
    codes = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    return next(code for code in codes if text in code)


def test_changes_become_rows_with_their_order(spark: SparkSession) -> None:
    batch = spark.createDataFrame([(value,) for value in CHANGES], "value BINARY")
    found = defined("upsert.md")["changes"](batch)
    assert found.columns == ["id", "name", "city", "lsn", "deleted"]
    assert [tuple(row) for row in found.collect()] == [
        (1, "a", "x", 5, False),
        (1, "b", "x", 6, False),
        (2, "c", None, 7, True),
    ]


def test_records_of_debezium_become_rows(spark: SparkSession) -> None:
    after = {"id": 1, "name": "a", "balance": "1.50", "born": "2000-01-01Z", "seen": None, "changed": None}
    source = {"connector": "postgresql", "lsn": 7, "sequence": '["5","7"]'}
    value = json.dumps({"before": None, "after": after, "op": "u", "source": source}).encode()
    rows = [(b'{"id":1}', value, "customers", 0, 3), (b'{"id":1}', None, "customers", 0, 4)]
    batch = spark.createDataFrame(rows, "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT")
    found = defined("cdc.md")["rows"](batch).collect()
    assert [tuple(row) for row in found] == [(1, "a", Decimal("1.50"), date(2000, 1, 1), None, None, 5, 7, 3, False)]


def test_what_cannot_be_read_goes_to_a_folder_of_its_own(spark: SparkSession) -> None:
    page = defined("bad-records.md", "def split")
    rows = [(value, "payments", 0, number) for number, value in enumerate(RECORDS)]
    batch = spark.createDataFrame(rows, "value BINARY, topic STRING, partition INT, offset BIGINT")
    found = page["split"](batch)
    assert [tuple(row) for row in found["payments"].collect()] == [(1, "Berlin", 5)]
    assert sorted(row["offset"] for row in found["unreadable"].collect()) == [1, 2, 3, 4]


READ = [
    b'{"id": 1, "shop": "Bern", "cents": 5}',
    b'{"id": 2, "shop": "Oslo", "cents": 7, "placed": "2026-03-01"}',
    b'{"id": 3, "shop": "Rome", "cents": -1}',
]


def test_dead_letters_are_read_again_once_after_the_schema_is_fixed(
    tmp_path: Path, broker: str, spark_server: str
) -> None:
    """The page's pipelines and transform. The schema was wrong about a column that half of the records do not have."""
    name = uuid.uuid4().hex[:8]
    topics = {
        topic: create_topic(broker, f"{topic}-{name}", 1) for topic in ("orders-dead-again", "orders-dead", "orders")
    }
    project = Project(tmp_path, broker, spark_server, topics["orders"])
    StateTable.make(project.settings.state)
    (tmp_path / "schemas").mkdir()
    columns = "id BIGINT, shop STRING, cents BIGINT"
    (tmp_path / "schemas" / "orders.ddl").write_text(f"{columns}, placed BIGINT")
    (tmp_path / "schemas" / "orders.v2.ddl").write_text(f"{columns}, placed STRING")
    (tmp_path / f"jobs_{name}.py").write_text(code("bad-records.md", "def clean("))
    made = pipelines({f'"{old}"': f'"{new}"' for old, new in topics.items()}, f"jobs_{name}:clean")

    producer = Producer({"bootstrap.servers": broker})
    for value in READ:
        producer.produce(topics["orders"], value)
    assert producer.flush(PATIENCE) == 0
    assert run(project, made["orders"]).bad_records == 2
    assert values(broker, topics["orders-dead"]) == [READ[1], READ[2]]
    assert run(project, made["orders_replay"]).bad_records == 1
    assert values(broker, topics["orders-dead-again"]) == [READ[2]]
    table = DeltaTable(str(tmp_path / "home" / "lake" / "orders")).to_pyarrow_table()
    assert sorted(table["id"].to_pylist()) == [1, 2]
    assert planned(project, made["orders_replay"], "again") is None


def pipelines(topics: dict[str, str], transform: str) -> dict[str, Any]:
    text = code("bad-records.md", "orders = Pipeline(") + code("bad-records.md", "orders_replay = Pipeline(")
    changes = {f"KafkaSource({old}": f"KafkaSource({new}" for old, new in topics.items()}
    changes |= {f"topic={old}": f"topic={new}" for old, new in topics.items()}
    for old, new in {**changes, "jobs.orders:clean": transform, "max_bad=0.01": "max_bad=0.9"}.items():
        text = text.replace(old, new)
    found: dict[str, Any] = {}
    exec(text, found)
    return found


def planned(project: Project, pipeline: Any, owner: str) -> Checkpoint | None:
    return live_services.open_coordinator(project.parts).plan(pipeline, owner, is_never_alive).checkpoint


def run(project: Project, pipeline: Any) -> Checkpoint:
    through, checkpoint = live_services.open_coordinator(project.parts), planned(project, pipeline, "run-1")
    assert checkpoint is not None
    spark_stage.stage(project.parts, through, pipeline.name, checkpoint.epoch, "run-1")
    return through.commit(pipeline.name, checkpoint.epoch)

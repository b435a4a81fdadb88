"""What Debezium has recorded, through Kafka into a table, with processes killed on the way: it equals PostgreSQL's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from integration.debezium.recorded import COLUMNS, Said, comparable, encodings, said, table
from integration.faults.sampling import seconds
from integration.programs.children import output
from integration.projects.project import Project, make_project
from patience import PATIENCE

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(seconds(1800))]

KILLED = -9
TRANSFORM = """
from onceonly.debezium import Changes

table = Changes({columns!r}, keys=["id"], encodings={encodings!r})


def rows(batch):
    return table.rows(batch)
"""
POINTS = ["before committing row", "after files of copies", "after entry"]


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str) -> Project:
    made = make_project(tmp_path, broker, spark_server, "changes_crash")
    transform = TRANSFORM.format(columns=COLUMNS["customers"], encodings=encodings("text", "customers"))
    (tmp_path / "transforms_changes_crash.py").write_text(transform)
    return made


def produce(project: Project, records: list[Said]) -> None:
    """As Kafka Connect does: by the partition of the key."""
    producer = Producer({"bootstrap.servers": project.bootstrap, "partitioner": "murmur2_random"})
    for record in records:
        key, value = record.record(schemas=False)
        producer.produce(project.topic, value, key)
    assert producer.flush(PATIENCE) == 0


def rows(project: Project) -> list[dict[str, Any]]:
    """As an independent reader finds them."""
    found = DeltaTable(str(project.folder / "home" / "lake" / "customers")).to_pyarrow_table().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key is there more than once"
    kept = sorted((row for row in found if not row["_deleted"]), key=lambda row: row["id"])
    return [comparable(row) for row in kept]


def test_the_table_equals_the_one_in_postgresql(project: Project) -> None:
    records = said("text", "customers")
    parts = [records[start : start + len(records) // 3] for start in (0, len(records) // 3)]
    parts.append(records[2 * (len(records) // 3) :])
    for part, point in zip(parts, POINTS, strict=True):
        produce(project, part)
        child = project.child("victims/mortal_changes.py", point)
        printed = output(child)
        assert child.returncode == KILLED, f"'{point}' was not reached: {printed}"
    produce(project, records[-40:])  # as Debezium does when it has not noted how far it had come
    child = project.child("victims/mortal_changes.py", "-")
    printed = output(child)
    assert child.returncode == 0, printed
    assert rows(project) == table("customers")

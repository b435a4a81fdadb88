"""PostgreSQL, Debezium, Kafka, a Delta table: with each of the processes killed, the table equals the one it is of."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from integration.crashes.test_changes_crash import KILLED, POINTS, TRANSFORM, rows
from integration.debezium import LOGGED, engine, properties
from integration.debezium.recorded import COLUMNS, FOLDER, encodings, typed
from integration.programs.children import output
from integration.projects.project import Project, make_project
from integration.readers.kafka_reader import committed
from integration.services.postgres import postgres, programs
from patience import PATIENCE

from onceonly.dev.demo.standalone import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.heavy,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed"),
]
SENTINEL = -1  # the id of the last row
CONNECTOR = {
    "topic_prefix": "cdc",
    "topic_delimiter": "_",
    "table_include_list": "public.customers",
    "converter_schemas_enable": "false",
    "decimal_handling_mode": "string",
    "time_precision_mode": "isostring",
    "binary_handling_mode": "hex",
    "slot_max_retries": 600,  # the server needs a while to notice that an engine was killed
    "slot_retry_delay_ms": 500,
}


@pytest.fixture
def database() -> Iterator[Any]:
    """A cursor, and the URL for Debezium."""
    import psycopg2

    with postgres(LOGGED) as url:
        connection = psycopg2.connect(url.replace("+psycopg2", ""))
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute((FOLDER / "tables.sql").read_text() + "ALTER TABLE customers ADD COLUMN level int;")
        yield cursor, url
        connection.close()


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str) -> Project:
    made = make_project(tmp_path, broker, spark_server, "cdc_public_customers")
    transform = TRANSFORM.format(columns=COLUMNS["customers"], encodings=encodings("text", "customers"))
    (tmp_path / f"transforms_{made.topic}.py").write_text(transform)
    return made


def change(cursor: Any, chance: random.Random, first_new: int, times: int = 100) -> None:
    """Inserts, updates, deletes and changed keys, some of them several in a transaction."""
    for number in range(first_new, first_new + times):
        at = chance.randint(1, first_new)
        statements = [
            f"INSERT INTO customers (id, name, balance, seen) VALUES ({number}, 'new {number}', {number}.25, now())",
            f"UPDATE customers SET name = 'name {number}', level = {number}, photo = '\\x{number:08x}' WHERE id = {at}",
            f"UPDATE customers SET tags = NULL, numbers = array_append(numbers, {number}) WHERE id = {at}",
            f"DELETE FROM customers WHERE id = {at}",
            f"UPDATE customers SET id = {number + 100_000} WHERE id = {at}",
        ]
        chosen = chance.sample(statements, chance.choice([1, 1, 2, 3]))
        cursor.execute("BEGIN;" + ";".join(chosen) + ";COMMIT")


def wanted(cursor: Any) -> list[dict[str, Any]]:
    """As PostgreSQL itself writes it."""
    cursor.execute("SET timezone = 'UTC'")
    cursor.execute("SELECT to_jsonb(t)::text FROM customers AS t ORDER BY id")
    return [typed(json.loads(text, parse_float=Decimal)) for (text,) in cursor.fetchall()]


def arrived(project: Project) -> bool:
    child = project.child("victims/mortal_changes.py", "-")
    printed = output(child)
    assert child.returncode == 0, printed
    return any(row["id"] == SENTINEL for row in rows(project))


def test_the_table_equals_the_one_in_postgresql(project: Project, database: Any, tmp_path: Path) -> None:
    cursor, url = database
    chance = random.Random(16)
    settings = properties(tmp_path, url, bootstrap_servers=project.bootstrap, **CONNECTOR)
    for turn, point in enumerate(POINTS):
        with engine(tmp_path, settings):  # killed at the end of the block
            change(cursor, chance, 1000 * (turn + 1))
            if turn == 0:
                wait_until(lambda: (tmp_path / "offsets").exists(), "Debezium has begun", PATIENCE)
            run_until_killed(project, point)
            change(cursor, chance, 1000 * (turn + 1) + 500)
    cursor.execute(f"INSERT INTO customers (id, name) VALUES ({SENTINEL}, 'the last one')")
    with engine(tmp_path, settings):
        wait_until(lambda: arrived(project), "the last row is in the table", PATIENCE)
    assert rows(project) == wanted(cursor)
    print(f"sent again: {sent_again(project)} records, {len(wanted(cursor))} rows")


def sent_again(project: Project) -> int:
    """How many records, all of which have the position that they had before."""
    found = [json.loads(record.value) for record in committed(project.bootstrap, project.topic) if record.value]
    positions: dict[str, list[str]] = {}
    for event in found:
        change = json.dumps([event["source"]["lsn"], event["op"], event["before"], event["after"]])
        positions.setdefault(change, []).append(event["source"]["sequence"])
    assert all(len(set(known)) == 1 for known in positions.values())
    return len(found) - len(positions)


def run_until_killed(project: Project, point: str) -> None:
    """There may be nothing to do yet: then a process ends by itself."""

    def killed() -> bool:
        child = project.child("victims/mortal_changes.py", point)
        printed = output(child)
        assert child.returncode in (0, KILLED), printed
        return child.returncode == KILLED

    wait_until(killed, f"a process was killed {point}", PATIENCE)

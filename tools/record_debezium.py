"""Record what a real Debezium says of a real PostgreSQL: python tools/record_debezium.py (see tests/data/debezium).

It runs tables.sql, the snapshot and changes.sql, once for each of SETTINGS, and writes what was said, and the tables.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
FOLDER = ROOT / "tests" / "data" / "debezium"
TABLES = ["customers", "lines", "documents", "papers", "visits", "races"]
SHARED = {"converter_schemas_enable": "true", "provide_transaction_metadata": "true", "skipped_operations": "none"}
SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "text": {"decimal_handling_mode": "string", "time_precision_mode": "isostring", "binary_handling_mode": "hex"},
}
ORDERS = {"lines": "order_id, line"}
Record = tuple[str, Any, Any]


def main() -> None:
    for name, settings in SETTINGS.items():
        records, tables = record(settings)
        write(FOLDER / f"{name}.jsonl", records)
        (FOLDER / "tables.jsonl").write_text("".join(tables))
        print(f"{name}: {len(records)} records")


def record(settings: dict[str, str]) -> tuple[list[Record], list[str]]:
    import psycopg2
    from integration.debezium import LOGGED, engine, properties
    from integration.services.postgres import postgres

    with TemporaryDirectory() as folder, postgres(LOGGED) as url:
        connect = lambda: psycopg2.connect(url.replace("+psycopg2", ""))  # noqa: E731
        first, second = connect(), connect()
        first.autocommit = second.autocommit = True
        first.cursor().execute((FOLDER / "tables.sql").read_text())
        with engine(Path(folder), properties(Path(folder), url, **SHARED, **settings)) as process:
            said, streaming = [], threading.Event()
            reader = threading.Thread(target=read, args=(process.stdout, said, streaming))
            reader.start()
            if not streaming.wait(120):
                sys.exit((Path(folder) / "engine.log").read_text())
            change(first, second)
            first.cursor().execute("INSERT INTO over VALUES (1)")
            reader.join(120)
            assert not reader.is_alive(), (Path(folder) / "engine.log").read_text()
        return said, list(rows(first))


def read(lines: Any, said: list[Record], streaming: threading.Event) -> None:
    """Until the row of the table `over`."""
    for line in lines:
        topic, *both = line.split()
        key, value = (None if text == "-" else json.loads(base64.b64decode(text)) for text in both)
        if topic.endswith(".over"):
            return
        said.append((topic, key, value))
        snapshot = value and value["payload"].get("source", {}).get("snapshot")
        if snapshot == "last":
            streaming.set()


def change(first: Any, second: Any) -> None:
    """Statement by statement; what is under `-- session 2` in the background, until `-- join`."""
    background: threading.Thread | None = None
    for statement in re.split(r";\n", (FOLDER / "changes.sql").read_text()):
        if "-- join" in statement and background:
            background.join(60)
            statement = statement.replace("-- join", "")
        if not statement.strip():
            continue
        if "-- session 2" in statement:
            background = threading.Thread(target=second.cursor().execute, args=(statement,))
            background.start()
            continue
        while "-- wait until it waits" in statement and not waits(first):
            time.sleep(0.05)
        first.cursor().execute(statement)


def waits(connection: Any) -> bool:
    cursor = connection.cursor()
    cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    return bool(cursor.fetchone()[0])


def rows(connection: Any) -> Iterator[str]:
    """Of each table, as PostgreSQL itself writes it as JSON."""
    cursor = connection.cursor()
    cursor.execute("SET timezone = 'UTC'")
    for table in TABLES:
        cursor.execute(f"SELECT to_jsonb(t)::text FROM {table} AS t ORDER BY {ORDERS.get(table, 'id')}")
        yield from (f'{{"table": "{table}", "row": {row}}}\n' for (row,) in cursor.fetchall())


def write(file: Path, records: list[Record]) -> None:
    """Each schema only once: a record has the number of its line among the schemas, which come first."""
    schemas: dict[str, int] = {}
    lines = []
    for topic, key, value in records:
        parts = {}
        for name, part in (("key", key), ("value", value)):
            if part is not None:
                number = schemas.setdefault(json.dumps(part["schema"]), len(schemas))
                parts[name] = {"schema": number, "payload": part["payload"]}
            else:
                parts[name] = None
        lines.append({"topic": topic, **parts})
    shown = [{"schema": number, "is": json.loads(text)} for text, number in schemas.items()]
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [*shown, *lines]))


if __name__ == "__main__":
    main()

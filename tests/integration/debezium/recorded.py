"""What Debezium has said (tests/data/debezium), as records of Kafka, and the tables that it said it of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "data" / "debezium"
COLUMNS = {
    "customers": "id BIGINT, name STRING, balance DECIMAL(12, 2), exact DECIMAL(38, 18), score DOUBLE, "
    "small SMALLINT, active BOOLEAN, born DATE, seen TIMESTAMP_NTZ, called TIMESTAMP_NTZ, changed TIMESTAMP, "
    "code STRING, extra STRING, tags ARRAY<STRING>, numbers ARRAY<INT>, photo BINARY, level INT",
    "lines": "order_id INT, line INT, amount DECIMAL(10, 2)",
    "documents": "id INT, title STRING, body STRING, bytes BINARY, words ARRAY<STRING>, numbers ARRAY<INT>, "
    "extra STRING",
    "papers": "id INT, title STRING, body STRING",
    "visits": "id INT, page STRING",
    "races": "id INT, who STRING",
}
KEYS = {"lines": ["order_id", "line"]}
ENCODINGS = {  # of each recording, for records without schemas
    "default": {"seen": "micros", "called": "millis", "photo": "base64"},
    "text": {"balance": "string", "exact": "string", "amount": "string", "photo": "hex"},
}


def encodings(recording: str, table: str) -> dict[str, str]:
    """Those of the table's columns."""
    return {column: how for column, how in ENCODINGS[recording].items() if f"{column} " in COLUMNS[table]}


@dataclass(frozen=True)
class Said:
    """A record, whose key and value are Debezium's with its schemas."""

    table: str
    key: Any
    value: Any

    def record(self, schemas: bool) -> tuple[bytes | None, bytes | None]:
        """Key and value as Debezium's JSON converter writes them."""
        return _written(self.key, schemas), _written(self.value, schemas)


def _written(part: Any, schemas: bool) -> bytes | None:
    return None if part is None else json.dumps(part if schemas else part["payload"], separators=(",", ":")).encode()


def said(recording: str, table: str) -> list[Said]:
    """In the order of Debezium."""
    lines = [json.loads(line) for line in (FOLDER / f"{recording}.jsonl").read_text().splitlines()]
    schemas = {line["schema"]: line["is"] for line in lines if "is" in line}

    def whole(part: Any) -> Any:
        return part and {"schema": schemas[part["schema"]], "payload": part["payload"]}

    names = {f"shop.public.{table}": table, f"shop.{table}": table}
    found = [line for line in lines if line.get("topic") in names]
    return [Said(table, whole(line["key"]), whole(line["value"])) for line in found]


def table(name: str) -> list[dict[str, Any]]:
    """Its rows as PostgreSQL had them at the end, in Python's types."""
    return [typed(row) for each, row in _tables() if each == name]


def _tables() -> Iterator[tuple[str, dict[str, Any]]]:
    for line in (FOLDER / "tables.jsonl").read_text().splitlines():
        found = json.loads(line, parse_float=Decimal)
        yield found["table"], found["row"]


def typed(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no type for some: by column, which has one meaning in all tables."""
    by_column = {
        "balance": Decimal,
        "exact": Decimal,
        "amount": Decimal,
        "score": float,
        "born": date.fromisoformat,
        "seen": datetime.fromisoformat,
        "called": datetime.fromisoformat,
        "changed": datetime.fromisoformat,
        "photo": lambda text: bytes.fromhex(text.removeprefix("\\x")),
        "bytes": lambda text: bytes.fromhex(text.removeprefix("\\x")),
        "extra": lambda value: value,
    }
    return {
        name: value if value is None else by_column.get(name, lambda kept: kept)(value) for name, value in row.items()
    }


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """A row that was read from elsewhere, to compare with one of `table`."""
    row = {name: value for name, value in row.items() if not name.startswith("_")}
    if row.get("extra") is not None:
        row["extra"] = json.loads(row["extra"], parse_float=Decimal)
    return {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.items()}

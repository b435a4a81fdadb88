"""What a client that knows nothing of Onceonly sees and does."""

from __future__ import annotations

from typing import Any

import psycopg


def execute(port: int, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
    """Run one statement in a transaction of its own, and return its rows."""
    with psycopg.connect(host="127.0.0.1", port=port, dbname="postgres", user="airflow", autocommit=True) as client:
        cursor = client.execute(sql, arguments or None)
        return cursor.fetchall() if cursor.description else []

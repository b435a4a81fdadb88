"""A program for a Python with DuckDB and its extensions: as `reader_by_runtime`, whose first argument it ignores."""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any

import duckdb
from duckdb_extensions import import_extension


def main(_: str, result: str) -> None:
    for name in ("avro", "iceberg"):
        import_extension(name)
        duckdb.load_extension(name)
    duckdb.sql("SET TimeZone = 'UTC'")
    answers = []
    for table in json.load(sys.stdin):
        scan = f"iceberg_scan('{table['metadata']}')"
        counts = [count(f"FROM {scan} WHERE {condition}") for condition in table["conditions"]]
        rows = duckdb.sql(f"FROM {scan}").fetchall()
        answers.append({"rows": sorted(repr(plain(row)) for row in rows), "counts": counts})
    Path(result).write_text(json.dumps(answers))


def count(query: str) -> int:
    [(number,)] = duckdb.sql(f"SELECT count(*) {query}").fetchall()
    return int(number)


def plain(value: Any) -> Any:
    """Return a value as Spark hands it to Python: times without a zone, and structs as tuples."""
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, dict) and "a" in value:  # a struct of these tests; the rest are maps
        return tuple(value.values())
    return tuple(plain(part) for part in value) if isinstance(value, tuple) else value


if __name__ == "__main__":
    main(*sys.argv[1:])

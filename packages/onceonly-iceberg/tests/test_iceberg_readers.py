"""Tables that this Spark has written, read by Iceberg's own runtime, on a Spark that it knows, and by DuckDB."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from iceberg_tables import create_table
from test_iceberg_spark import (
    COLUMNS,
    DDL,
    IDS,
    NESTED,
    NESTED_DDL,
    NESTED_ROWS,
    ROWS,
    SCHEMA,
    TRANSFORMS,
    publish,
    read,
    spec_by,
)

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(1800)]
EXTENSIONS = ("duckdb-extensions", "duckdb-extension-iceberg", "duckdb-extension-avro")
PACKAGES = (
    "pyspark==4.0.5",  # the newest for which Iceberg's runtime works: that of 4.0 fails on 4.2
    *(f"{name}==1.5.5" for name in ("duckdb", *EXTENSIONS)),  # the newest whose extensions are packages
    "pytz",  # by which DuckDB returns times with a zone
)
ENVIRONMENTS = Path(__file__).parents[3] / ".matrix"  # where environments of other versions are kept
UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def other_python() -> Path:
    """The Python of an environment with these packages, which is made once."""
    folder = ENVIRONMENTS / "iceberg-readers"
    python, made = folder / "bin" / "python", folder / "made"
    if not made.exists():
        subprocess.run([UV, "venv", "--clear", "--quiet", "--python", sys.executable, folder], check=True)
        subprocess.run([UV, "pip", "install", "--quiet", "--python", python, *PACKAGES], check=True)
        made.touch()
    return python


@pytest.mark.parametrize("reader", ["runtime", "duckdb"])
def test_every_type_and_transform_is_read(spark: Any, other_python: Path, tmp_path: Path, reader: str) -> None:
    """Rows and filters: readers leave out files by the metrics and partitions that the sink has written."""
    questions, expected = [], []
    for number, (name, transform) in enumerate(TRANSFORMS):
        folder = tmp_path / f"lake{number}"
        create_table(folder, SCHEMA, spec_by((name, transform)))
        publish(folder, spark.createDataFrame(ROWS, DDL))
        values = [value for value in COLUMNS[IDS[name] - 1][3] if finds(reader, str(transform), value)]
        conditions = [make_condition(reader, name, value) for value in values]
        questions.append({"metadata": read(folder).metadata_location, "conditions": conditions})
        rows = sorted(repr(tuple(map(without_zone, row))) for row in ROWS)
        expected.append({"rows": rows, "counts": [values.count(value) for value in values]})
    questions.append({"metadata": write_nested(spark, tmp_path / "nested"), "conditions": ["number = 1"]})
    expected.append({"rows": sorted(map(repr, NESTED_ROWS)), "counts": [1]})
    assert ask(other_python, reader, questions, tmp_path) == expected


def finds(reader: str, transform: str, value: Any) -> bool:
    """Return whether the reader finds rows by this value at all.

    Below zero, DuckDB 1.5.5 truncates decimals, months and days towards zero, where Iceberg says: downwards.
    """
    if reader == "runtime" or value is None:
        return True
    if transform.startswith("truncate") and isinstance(value, Decimal):
        return value >= 0
    return not (transform in ("month", "day") and isinstance(value, dt.datetime) and value.year < 1970)


def write_nested(spark: Any, folder: Path) -> str:
    """Write lists and maps, rename a column after that, and return where the metadata is."""
    create_table(folder, NESTED)
    publish(folder, spark.createDataFrame(NESTED_ROWS, NESTED_DDL))
    with read(folder).update_schema() as update:
        update.rename_column("n", "number")
    return read(folder).metadata_location


def make_condition(reader: str, name: str, value: Any) -> str:
    """Return a condition in the reader's SQL that the rows with this value satisfy."""
    with_zone, without = ("TIMESTAMP", "TIMESTAMP_NTZ") if reader == "runtime" else ("TIMESTAMPTZ", "TIMESTAMP")
    match value:
        case None:
            return f"{name} IS NULL"
        case str():
            return f"{name} = '{value}'"
        case bytes():
            return f"{name} = unhex('{value.hex()}')"
        case dt.datetime():
            return f"{name} = {with_zone if value.tzinfo else without} '{value.replace(tzinfo=None)}'"
        case dt.date():
            return f"{name} = DATE '{value}'"
        case _:
            return f"{name} = {value}"


def without_zone(value: Any) -> Any:
    """Return a value as Spark hands it to a Python whose zone is UTC."""
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


def ask(python: Path, reader: str, questions: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    program, result = Path(__file__).with_name(f"reader_by_{reader}.py"), folder / "answers.json"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    (ENVIRONMENTS / "ivy").mkdir(exist_ok=True)
    done = subprocess.run(
        [python, program, ENVIRONMENTS / "ivy", result],
        input=json.dumps(questions),
        env={**kept, "TZ": "UTC", "PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(result.read_text())
    return answers

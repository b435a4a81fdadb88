"""The transforms of the how-to pages on records of each kind."""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

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


def defined(page: str) -> dict[str, Any]:
    """What the page's example of a transform defines."""
    codes = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(next(code for code in codes if "\ndef " in code), names)
    return names


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
    page = defined("bad-records.md")
    rows = [(value, "payments", 0, number) for number, value in enumerate(RECORDS)]
    batch = spark.createDataFrame(rows, "value BINARY, topic STRING, partition INT, offset BIGINT")
    found = page["split"](batch)
    assert [tuple(row) for row in found["payments"].collect()] == [(1, "Berlin", 5)]
    assert sorted(row["offset"] for row in found["unreadable"].collect()) == [1, 2, 3, 4]

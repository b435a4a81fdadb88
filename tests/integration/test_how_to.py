"""The transform of docs/how-to/bad-records.md on records of each kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "bad-records.md"
RECORDS = [b'{"id": 1, "shop": "Berlin", "cents": 5}', b'{"id": "x"}', b"not json", b'{"id": 2', None]


def test_what_cannot_be_read_goes_to_a_folder_of_its_own(spark: SparkSession) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code
    page: dict[str, Any] = {}
    exec(code[1], page)
    rows = [(value, "payments", 0, number) for number, value in enumerate(RECORDS)]
    batch = spark.createDataFrame(rows, "value BINARY, topic STRING, partition INT, offset BIGINT")
    found = page["split"](batch)
    assert [tuple(row) for row in found["payments"].collect()] == [(1, "Berlin", 5)]
    assert sorted(row["offset"] for row in found["unreadable"].collect()) == [1, 2, 3, 4]

"""The rows of the contract suite tell their columns as a DataFrame does."""

from __future__ import annotations

import pytest

from onceonly.sinks.staging.row_types import arrow, read_schema
from onceonly.testing.fake_rows import FakeRows


@pytest.mark.parametrize("numbers", [[1, 2, 3], []])
def test_rows_know_their_columns(numbers: list[int]) -> None:
    rows = FakeRows(({"n": number} for number in numbers), {"n": "long"})
    assert rows.columns == rows.schema.names == ["n"]
    assert rows.toArrow().to_pydict() == {"n": numbers}
    assert rows.toArrow().schema == arrow(read_schema(rows))


def test_types_are_those_of_the_values() -> None:
    rows = FakeRows([{"name": "a", "ok": True, "size": 1.5, "raw": b"x", "n": 1}])
    assert rows.toArrow().to_pylist() == list(rows)
    assert rows.toArrow().schema == arrow(read_schema(rows))

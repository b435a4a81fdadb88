"""Which Spark types hold every value of another."""

from __future__ import annotations

import pytest

from onceonly.windows.state import fits


@pytest.mark.parametrize(
    ("kind", "into"),
    [
        ("bigint", "bigint"),
        ("string", "string"),
        ("varchar(3)", "string"),
        ("int", "bigint"),
        ("tinyint", "smallint"),
        ("int", "double"),
        ("bigint", "double"),
        ("float", "double"),
        ("bigint", "decimal(19,0)"),
        ("int", "decimal(12,2)"),
        ("decimal(10,2)", "decimal(20,2)"),
        ("decimal(10,2)", "decimal(12,4)"),
        ("timestamp", "timestamp"),
    ],
)
def test_it_holds_every_value(kind: str, into: str) -> None:
    assert fits(kind, into)


@pytest.mark.parametrize(
    ("kind", "into"),
    [
        ("double", "bigint"),
        ("float", "int"),
        ("bigint", "int"),
        ("double", "float"),
        ("int", "float"),
        ("decimal(10,2)", "bigint"),
        ("decimal(10,2)", "decimal(10,0)"),
        ("decimal(10,2)", "decimal(10,4)"),
        ("bigint", "decimal(18,0)"),
        ("double", "decimal(38,10)"),
        ("string", "int"),
        ("int", "string"),
        ("timestamp", "date"),
        ("boolean", "int"),
    ],
)
def test_it_would_cut_or_change_some(kind: str, into: str) -> None:
    assert not fits(kind, into)

"""What is refused, and how files are told apart, before Spark reads versions of a table."""

from __future__ import annotations

import json

import pytest

from onceonly.spark import row_files, tables


def test_columns_come_without_what_is_said_to_writers() -> None:
    """A default of a column would be filled into older files, in which it is null."""
    column = {"name": "n", "type": "long", "nullable": True, "metadata": {"EXISTS_DEFAULT": "7"}}
    inner = {"type": "struct", "fields": [{**column, "name": "m"}]}
    outer = {"name": "s", "type": inner, "nullable": True, "metadata": {}}
    found = tables.parse_schema(json.dumps({"type": "struct", "fields": [column, outer]}))
    assert found["n"].metadata == {}
    assert found["s"].dataType["m"].metadata == {}  # type: ignore[index]


@pytest.mark.parametrize(
    ("paths", "distinct"),
    [
        (["day=1/a.parquet", "day=2/b.parquet"], True),
        (["day=1/a.parquet", "day=2/a.parquet"], False),
        (["day=1/a b.parquet"], False),
    ],
)
def test_files_are_told_by_names_only_where_they_differ(paths: list[str], distinct: bool) -> None:
    assert tables._has_distinct_names([(path, {}) for path in paths]) is distinct


def test_a_path_means_nothing_but_itself() -> None:
    assert row_files.escape_glob("a{b}*?[c]") == r"a\{b\}\*\?\[c\]"

"""docs/reference.md against the classes that it describes: every field, its type and its default."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

import onceonly
from onceonly import debezium, windows

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
DECLARED = {
    name: kind
    for module in (onceonly, windows, debezium)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}
MADE_FOR_YOU = {"Value"}  # by the functions that the page names


def section(title: str) -> str:
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"the page has no section '{title}'"
    return found[1]


def rows(title: str) -> list[list[str]]:
    """The cells of the section's table."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")][2:]
    split = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[cell.replace("\\|", "|").strip().strip("`") for cell in cells] for cells in split]


def default(field: dataclasses.Field[Any]) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@pytest.mark.parametrize("name", sorted(set(DECLARED) - MADE_FOR_YOU))
def test_every_field_is_there_with_type_and_default(name: str) -> None:
    shown = {cells[0]: cells[1:] for cells in rows(name)}
    fields = {field.name: field for field in dataclasses.fields(DECLARED[name])}
    assert list(shown) == list(fields)
    for each, (kind, given, meaning) in shown.items():
        assert (kind.replace('"', "'"), bool(meaning)) == (fields[each].type, True)
        found = default(fields[each])
        assert (found is dataclasses.MISSING) == (given == ""), each
        if given:
            assert eval(given, vars(windows)) == found, each


def test_the_columns_of_a_batch() -> None:
    from onceonly.spark import topics

    shown = {
        name: kind.lower().replace(": ", ":").replace(", ", ",") for name, kind, _ in rows("The columns of `batch`")
    }
    assert shown == {field.name: field.dataType.simpleString() for field in topics.SCHEMA}


def test_nothing_is_left_out() -> None:
    assert {"Pipeline", "KafkaSource", "DeltaSink", "KafkaSink", "FileSink", "StateSink", "Gate", "Fresh"} <= set(
        DECLARED
    )

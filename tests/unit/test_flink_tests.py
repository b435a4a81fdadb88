"""docs/flink-tests.md: every test that it names exists, every row has a test or a reason, and its numbers are right.

As a program it prints the ids of all tests that are named, for pytest.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "flink-tests.md"
NAMED = re.compile(r"`((?:tests|src)/\S+\.py)::(\w+)`")
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", re.MULTILINE)
NUMBERS = re.compile(r"Of (\d+) tests, (\d+) have a counterpart, and (\d+) have none")
NONE = "no counterpart: "


def rows() -> list[tuple[str, str, str]]:
    """Flink's test with its class, what it checks, and what is here."""
    found = []
    for section in PAGE.read_text().split("\n### ")[1:]:
        name = section.splitlines()[0]
        for test, checks, here in ROW.findall(section):
            found.append((f"{name}.{test}", checks, here))
    return found


def named_tests() -> list[tuple[str, str]]:
    return sorted({named for _, _, here in rows() for named in NAMED.findall(here)})


@cache
def functions(file: str) -> set[str]:
    parsed = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(parsed) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "name"), named_tests())
def test_named_test_exists(file: str, name: str) -> None:
    assert name in functions(file), f"{file} has no {name}"


def test_every_row_has_a_test_or_a_reason() -> None:
    for test, checks, here in rows():
        has_reason = here.startswith(NONE) and len(here.split()) > 3
        assert checks, test
        assert NAMED.search(here) or has_reason, test
        assert here.startswith((NONE, "`")), test


def test_every_table_is_read() -> None:
    text = PAGE.read_text()
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(lines) == len(rows()) > 100
    names = [test for test, _, _ in rows()]
    assert len(set(names)) == len(names)


def test_numbers_are_those_of_the_tables() -> None:
    reasons = [here for _, _, here in rows() if here.startswith(NONE)]
    tested = len(rows()) - len(reasons)
    text = " ".join(PAGE.read_text().split())
    found = NUMBERS.search(text)
    assert found
    assert tuple(map(int, found.groups())) == (len(rows()), tested, len(reasons))
    counterparts = {named for _, _, here in rows() if here.startswith("`") for named in NAMED.findall(here)}
    assert f"The {tested} name {len(counterparts)} tests of this repository" in text


def test_tests_after_flinks_have_its_names() -> None:
    """Files of such tests have no other ones but those of the page."""
    for file in {file for file, _ in named_tests() if "test_flink_" in file}:
        written = {name for name in functions(file) if name.startswith("test_")}
        assert written == {name for other, name in named_tests() if other == file}


if __name__ == "__main__":
    print(" ".join(f"{file}::{name}" for file, name in named_tests() if file.startswith("tests/")))

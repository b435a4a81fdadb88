"""The codes of this package: each is explained, raised and expected by a test, and `onceonly explain` knows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceonly import error_codes
from onceonly.cli import main
from onceonly.errors import InvalidPipeline

PACKAGE = Path(__file__).parents[1]
CATALOGUE = error_codes.read_area("onceonly_postgres", "postgres")
CODE = re.compile(r'"(postgres-[a-z-]+)"')


def codes_in(folder: str) -> set[str]:
    codes: set[str] = set()
    for file in (PACKAGE / folder).rglob("*.py"):
        codes |= set(CODE.findall(file.read_text()))
    return codes


def test_each_code_is_raised_and_explained() -> None:
    assert codes_in("src") == set(CATALOGUE)


def test_each_code_is_expected_by_a_test() -> None:
    assert set(CATALOGUE) - codes_in("tests") == set()


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_code_is_explained_in_three_sentences(code: str) -> None:
    shown = CliRunner().invoke(main, ["explain", code])
    assert shown.exit_code == 0, shown.output
    assert len(shown.output.splitlines()) == 3
    assert all(line[-1] in ".`)" for line in shown.output.splitlines())


def test_values_of_rows_are_not_recorded() -> None:
    error = InvalidPipeline("A row.", "Key (name)=(Ada) exists.", "Fix it.", code="postgres-row-refused")
    assert error_codes.without_rows(error).why == error_codes.NOT_RECORDED


def test_no_code_is_one_of_the_core() -> None:
    assert set(CATALOGUE) & set(error_codes.read_catalogue()) == set()

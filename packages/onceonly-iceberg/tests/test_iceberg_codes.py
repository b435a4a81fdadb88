"""The codes of this package: each is explained, and raised and expected by a test."""

from __future__ import annotations

import re
from pathlib import Path

from onceonly import error_codes

PACKAGE = Path(__file__).parents[1]
CODE = re.compile(r'"(iceberg-[a-z-]+)"')


def codes_in(folder: str) -> set[str]:
    codes: set[str] = set()
    for file in (PACKAGE / folder).rglob("*.py"):
        codes |= set(CODE.findall(file.read_text(encoding="utf-8")))
    return codes


def test_each_code_is_raised_and_explained() -> None:
    assert codes_in("src") == set(error_codes.read_area("onceonly_iceberg", "iceberg"))


def test_each_code_is_expected_by_a_test() -> None:
    assert codes_in("src") - codes_in("tests") == set()

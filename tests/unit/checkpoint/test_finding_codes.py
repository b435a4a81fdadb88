"""The codes of findings are a fixed list, and the page has all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onceonly.checkpoint.finding_codes import FindingCode

PAGE = (Path(__file__).parents[3] / "docs" / "guarantee.md").read_text("utf-8")
TABLE = PAGE.partition("Each finding has a code:\n")[2].partition("\n## ")[0]


def test_page_has_every_code_with_its_meaning() -> None:
    assert dict(re.findall(r"^\| `([\w-]+)` \| (.+) \|$", TABLE, re.MULTILINE)) == {
        str(code): code.meaning for code in FindingCode
    }


@pytest.mark.parametrize("code", FindingCode)
def test_code_is_a_word_for_programs(code: FindingCode) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
    assert code.meaning

"""CONTRIBUTING.md and the glossary name what is there: modules of the reading path, folders, examples."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
SOURCES = sorted(
    path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)
)
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
PATH = re.compile(r"`([\w/-]+(?:\.py|/))`")
EXAMPLES = PAGE.partition("| what | is | example | not |\n")[2].partition("\n\n")[0].splitlines()[1:]
NOT = {name for row in EXAMPLES for name in re.findall(r"`(test_[a-z_]+)`", row.split("|")[4])}  # how it is not done
CODE = re.compile(r"`([^`]+)`")


def section(heading: str) -> str:
    return PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_reading_path_has_modules() -> None:
    assert len(PATH.findall(section("The architecture in ten minutes"))) > 10


@pytest.mark.parametrize("path", sorted(set(PATH.findall(PAGE))))
def test_named_path_exists(path: str) -> None:
    assert any((place / path).exists() for place in (ROOT, ROOT / "src" / "onceonly")), f"{path} does not exist"


@pytest.mark.parametrize("folder", re.findall(r"^\| `(tests/[\w/]+)` \|", PAGE, re.MULTILINE))
def test_folder_of_tests_exists(folder: str) -> None:
    assert (ROOT / folder).is_dir()


@pytest.mark.parametrize("row", EXAMPLES, ids=lambda row: row.split("|")[1].strip())
def test_example_is_in_the_code(row: str) -> None:
    what, example = row.split("|")[1].strip(), row.split("|")[3]
    if what == "commit":
        return
    for code in CODE.findall(example):
        text = code.removeprefix("raise ").removesuffix("(…)")
        assert text in TEXT, f"{text} is not in src or tests"


def test_example_of_a_loop_is_in_the_code() -> None:
    loop = PAGE.partition("# but\n")[2].partition("```")[0]
    assert textwrap.indent(loop, "    ") in TEXT


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_[a-z_]+)`", PAGE)) - NOT))
def test_named_test_exists(name: str) -> None:
    assert f"def {name}(" in TEXT


def test_each_row_of_the_glossary_has_its_columns() -> None:
    for table in re.findall(r"(?:^\|.*\|\n)+", GLOSSARY, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_glossary_names_each_word_once() -> None:
    words: list[str] = []
    for cell in re.findall(r"^\| ([^|]+) \|", GLOSSARY, re.MULTILINE):
        words += [word.strip(" `*") for word in cell.split(",")]
    entries = [word for word in words if word not in ("word", "---")]
    assert sorted({word for word in entries if entries.count(word) > 1}) == []

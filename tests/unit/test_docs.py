"""The pages: every link has a target, and every page is in the site's menu. Their words: see test_words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceonly import errors
from onceonly.cli import main
from onceonly.runtime import faults

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s#]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
WORD = r"[a-z]+(?:-[a-z]+)+"  # a code of an error
RAISED = {*vars(errors), "Unsuitable", "_action", "_refused"}  # what is called with a code


def prose(page: Path) -> str:
    """Without examples: a `#` there is a comment."""
    return CODE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"\s", "-", each) for each in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for file, anchor in LINK.findall(prose(page)):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{file} does not exist"
        if anchor and target.suffix == ".md":
            assert anchor[1:] in anchors(target), f"{file} has no {anchor}"


def test_every_page_is_in_the_menu_and_on_the_first_page() -> None:
    menu, first = (ROOT / "mkdocs.yml").read_text(), (DOCS / "index.md").read_text()
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS)
        assert f": {name}\n" in menu, f"{name} is not in mkdocs.yml"
        assert name.name == "index.md" or f"({name})" in first, f"{name} is not on the first page"


def test_every_command_is_in_the_table() -> None:
    section = (DOCS / "concepts.md").read_text().partition("## Commands\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])} == set(main.commands)


def test_every_code_has_a_row() -> None:
    """Of refusals: a person finds what to do by the code that is shown."""
    rows = [
        line.split("|")[1] for line in (ROOT / "docs" / "operations.md").read_text().splitlines() if "|" in line[:1]
    ]
    documented = {code for row in rows for code in re.findall(f"`({WORD})`", row)}
    raised = {code: path for path in sorted((ROOT / "src").rglob("*.py")) for code in _codes(path)}
    raised |= {fault.code: Path(faults.__file__) for fault in faults.FAULTS}
    assert {code: path for code, path in raised.items() if code not in documented} == {}


def _codes(path: Path) -> Iterator[str]:
    """What a file passes to its errors as a code: by name, or as the last of several texts."""
    tree = ast.parse(path.read_text())
    words = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        named = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
        last = call.args[-1:] if len(call.args) > 2 and _name(call.func) in RAISED else []
        for value in (*named, *last):
            code = words.get(value.id) if isinstance(value, ast.Name) else getattr(value, "value", None)
            if isinstance(code, str) and re.fullmatch(WORD, code) and not code.startswith("test-"):
                yield code


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else ""

"""The pages: every link has a target, and every page is in the site's menu."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onceonly.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
READMES = sorted(ROOT.glob("packages/*/README.md"))
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *READMES])
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s#]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """Without examples: a `#` there is a comment."""
    return CODE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"\s", "-", word) for word in plain}


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
    for readme in READMES:
        assert f": packages/{readme.parent.name}.md\n" in menu, f"{readme.parent.name} is not in mkdocs.yml"
        assert f"(../{readme.relative_to(ROOT)})" in first, f"{readme.parent.name} is not on the first page"


def test_every_command_is_in_the_table() -> None:
    section = (DOCS / "concepts.md").read_text().partition("## Commands\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])} == set(main.commands)

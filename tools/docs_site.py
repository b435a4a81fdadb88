"""A hook of mkdocs: what the pages link to outside of docs/.

CHANGELOG.md and CONTRIBUTING.md become pages. Other files of the checkout, such as dags/recovery.py, are no part of the
site: there the link's text stays.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
TAG = re.compile(r"(<[^>]+>)")
NAMED_PAGE = re.compile(r"\bdocs/(?P<page>[\w/-]+\.md)(?P<anchor>#[\w-]+)?")
IN_CODE = re.compile(r"`[^`\n]*`")
OUTSIDE = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<up>(?:\.\./)+)(?P<file>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages that lie beside docs/; their links begin there."""
    for name, page in PAGES.items():
        if page != "index.md":
            text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
            files.append(File.generated(config, page, content=re.sub(r"\]\((\w+\.md)", _page, text)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    folder = Path(page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        depth = len(folder.parts)
        leaves = link["up"].count("../") > depth
        if not leaves:
            return link[0]
        if link["file"] in PAGES:
            # The site's first page is another text, without the README's headings.
            anchor = "" if link["file"] == "README.md" else link["anchor"] or ""
            return f"[{link['text']}]({'../' * depth}{PAGES[link['file']]}{anchor})"
        assert (ROOT / link["file"]).exists(), f"{page.file.src_uri} links to {link['file']}, which does not exist"
        return link["text"]

    return OUTSIDE.sub(replaced, _bars(markdown))


def on_page_content(html: str, page: Any, files: Files, **_: Any) -> str:
    """Make links of the pages that docstrings and messages name, as in "(docs/kafka.md)"."""
    depth, is_in_link, parts = len(Path(page.file.src_uri).parts) - 1, False, []
    for part in TAG.split(html):
        if part.startswith("<"):
            is_in_link = part.startswith("<a ") or (is_in_link and part != "</a>")
        elif not is_in_link:
            part = NAMED_PAGE.sub(lambda name: _link(name, files, "../" * depth), part)
        parts.append(part)
    return "".join(parts)


def _link(name: re.Match[str], files: Files, up: str) -> str:
    """Return the link to a page that is named by its path in the checkout; the name alone, if it is no page."""
    file = files.get_file_from_path(name["page"])
    if file is None:
        return name[0]
    return f'<a href="{up}{file.url}{name["anchor"] or ""}">{name[0]}</a>'


def _bars(markdown: str) -> str:
    """GitHub wants `str \\| None` in a cell of a table, and shows it without the backslash; mkdocs would show both."""
    lines = markdown.split("\n")
    return "\n".join(
        IN_CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line for line in lines
    )


def _page(link: re.Match[str]) -> str:
    return f"]({PAGES.get(link[1], link[1])}"

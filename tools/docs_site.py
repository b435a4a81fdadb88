"""A hook of mkdocs: what the pages link to outside of docs/.

CHANGELOG.md, CONTRIBUTING.md and the README of each package become pages. Other files of the checkout, such as
dags/recovery.py, are no part of the site: there the link's text stays.
"""

from __future__ import annotations

import re
from os.path import normpath, relpath
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# a file of the checkout -> the page that it becomes
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"} | {
    f"packages/{readme.parent.name}/README.md": f"packages/{readme.parent.name}.md"
    for readme in sorted(ROOT.glob("packages/*/README.md"))
}
FILES = {page: name for name, page in PAGES.items() if page != "index.md"}
TAG = re.compile(r"(<[^>]+>)")
NAMED_PAGE = re.compile(r"\bdocs/(?P<page>[\w/-]+\.md)(?P<anchor>#[\w-]+)?")
IN_CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<file>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages that lie beside docs/."""
    for page, name in FILES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to pages, where their files have become some or lie elsewhere than their page."""
    here = page.file.src_uri
    file = FILES.get(here, f"docs/{here}")

    def replaced(link: re.Match[str]) -> str:
        target = normpath(PurePosixPath(file).parent / link["file"])
        if target.startswith("docs/") and file.startswith("docs/"):
            return link[0]
        if target.startswith("docs/") or target in PAGES:
            # The site's first page is another text, without the README's headings.
            anchor = "" if target == "README.md" else link["anchor"] or ""
            to = relpath(PAGES.get(target, target.removeprefix("docs/")), PurePosixPath(here).parent)
            return f"[{link['text']}]({to}{anchor})"
        assert (ROOT / target).exists(), f"{file} links to {target}, which does not exist"
        return link["text"]

    return LINK.sub(replaced, _bars(markdown))


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

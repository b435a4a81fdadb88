"""The documentation as it is installed: its pages, by the names under which `onceonly help` shows them.

A wheel has them in onceonly/docs, a checkout beside src. A message names a page by the command that shows it: who has
installed the wheel has no other way to it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from urllib.parse import urlsplit

SHARED_NAMES = (
    "probe",
    "settings",
    "state",
    "verify",
)  # of which `onceonly help` shows something else: their pages have the suffix
PAGE_SUFFIX = ".md"
FIRST_PAGE = "index"  # which names all others, in the order of a reader
LINK = re.compile(r"(!?)\[([^]]+)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```")
HEADING = re.compile(r"^(#+) (.+)$")
GENERATED = re.compile(r"^::: (\S+)$(?:\n    .*$)*", re.MULTILINE)  # what the site makes of docstrings


def name_page(page: str, section: str = "") -> str:
    """Return the command that shows a page of the documentation, or one section of it.

    Args:
        page: the name of its file without folder and suffix, as "erase".
        section: its heading as it is in addresses, as "backup-and-restore".
    """
    name = page + PAGE_SUFFIX if page in SHARED_NAMES else page
    return f"onceonly help {name} {section}".rstrip()


@dataclass(frozen=True)
class HelpPage:
    """A page of the documentation.

    Args:
        name: under which `onceonly help` shows it.
    """

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        """The whole page, in Markdown. Its links lead to files."""
        return self.path.read_text("utf-8")

    @property
    def title(self) -> str:
        return next((heading for _, _, heading in _list_headings(self.text.splitlines())), self.name)

    @property
    def sections(self) -> list[str]:
        """The sections, as `name_page` names them."""
        return [name_section(heading) for _, _, heading in _list_headings(self.text.splitlines())]


def find_folder() -> Path:
    """Return the folder of the pages: that of the package, else that of the checkout."""
    package = Path(__file__).parent
    installed = package / "docs"
    return installed if installed.is_dir() else package.parents[1] / "docs"


@cache
def list_pages() -> dict[str, HelpPage]:
    """Return all pages by their names, in the order in which the first one links to them."""
    folder = find_folder()
    pages = {}
    for path in sorted(folder.rglob(f"*{PAGE_SUFFIX}")):
        pages[path.relative_to(folder).as_posix()] = HelpPage(_name_file(path.name), path)
    if f"{FIRST_PAGE}{PAGE_SUFFIX}" not in pages:  # an installation without documentation
        return {}
    first = pages[f"{FIRST_PAGE}{PAGE_SUFFIX}"]
    linked_files = [address for _, _, address in LINK.findall(first.text) if address in pages]
    ordered = [first, *(pages[file] for file in linked_files), *pages.values()]
    return {page.name: page for page in ordered}


def find_page(word: str) -> HelpPage | None:
    """Return the page that somebody means by `erase`, `erase.md` or its path; None: there is none."""
    pages = list_pages()
    file = posixpath.basename(word)
    return pages.get(file) or pages.get(_name_file(f"{file.removesuffix(PAGE_SUFFIX)}{PAGE_SUFFIX}"))


def cut_section(text: str, section: str) -> str | None:
    """Return one section of a page, with the sections below it; None: there is no such section."""
    lines = text.splitlines()
    start, depth = None, 0
    for number, level, heading in _list_headings(lines):
        if start is not None and level <= depth:
            return "\n".join(lines[start:number])
        if start is None and name_section(heading) == section:
            start, depth = number, level
    return None if start is None else "\n".join(lines[start:])


def with_commands(text: str) -> str:
    """Return a page whose links name the commands that show other pages; those within a page are their text alone."""
    parts, prose, is_code = [], "", False
    for line in text.splitlines(keepends=True):
        is_fence = FENCE.match(line) is not None
        if is_code or is_fence:
            parts += [_replace_links(prose), line]
            prose = ""
            is_code = is_code != is_fence
        else:
            prose += line
    return "".join([*parts, _replace_links(prose)])


def name_target(address: str) -> str:
    """Return the command that shows what a link of a page leads to; empty: it leads to no other page."""
    link = urlsplit(address)
    if link.scheme or posixpath.basename(link.path) in ("", "README.md") or not link.path.endswith(PAGE_SUFFIX):
        return ""
    page = find_page(link.path)
    return name_page(page.name, link.fragment) if page else ""


def name_section(heading: str) -> str:
    """Return a heading as addresses have it: 'Backup and restore' is 'backup-and-restore'."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\- ]", "", heading.lower()).strip())


def _name_file(file: str) -> str:
    name = file.removesuffix(PAGE_SUFFIX)
    return file if name in SHARED_NAMES else name


def _list_headings(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """Yield number of line, level and text of each heading; a '#' in an example is none."""
    is_code = False
    for number, line in enumerate(lines):
        if FENCE.match(line):
            is_code = not is_code
        heading = HEADING.match(line)
        if heading and not is_code:
            yield number, len(heading[1]), heading[2]


def _replace_links(prose: str) -> str:
    prose = GENERATED.sub(r"`\1`: `python -m pydoc \1`", prose)
    return LINK.sub(_describe_link, prose)


def _describe_link(link: re.Match[str]) -> str:
    is_image, text, address = link.groups()
    if is_image:
        return f"(picture: {text})"
    if urlsplit(address).scheme:
        return f"{text} ({address})"
    command, file = name_target(address), find_folder() / address
    if not command and file.is_file():
        return f"{text} ({file})"
    return f"{text} (`{command}`)" if command else text

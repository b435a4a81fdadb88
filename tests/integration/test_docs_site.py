"""The documentation as a site, read from a folder: its search, its links, and nothing from another server."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.services import chromium

import onceonly
import onceonly.airflow
import onceonly.debezium
import onceonly.sinks
import onceonly.windows

ROOT = Path(__file__).parents[2]
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not MKDOCS.exists(), reason="the site's environment is missing: make docs"),
]
LOADED = re.compile(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=[\"']?([^\"' >]+)")
NOT_LOADED = re.compile(r"<link[^>]*rel=[\"']?(?:canonical|prev|next)[^>]*>")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [str(MKDOCS), "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


@pytest.fixture
def tab() -> Iterator[chromium.Chromium]:
    if chromium.BINARY is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with chromium.opened() as opened:
        yield opened


def test_search_works_in_a_folder(site: Path, tab: chromium.Chromium) -> None:
    tab.open(f"file://{site}/index.html")
    field = "document.querySelector('[data-md-component=search-query]')"
    tab.wait(f"!document.querySelector('[data-md-component=search]').hidden && ({field}.focus() || true)")
    tab.type_keys("watermark")
    hit = "document.querySelector('.md-search-result__link')"
    tab.wait(hit)
    target = tab.value(f"{hit}.href").partition("?")[0]
    assert target.startswith(f"file://{site}/") and not target.endswith("index.html")
    tab.value(f"{hit}.click()")
    tab.wait(f"location.href.startsWith({target!r}) && document.readyState === 'complete'")
    assert "watermark" in tab.text().lower()
    assert tab.errors == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = {}
    for page in site.rglob("*.html"):
        html = NOT_LOADED.sub("", page.read_text("utf-8"))
        loaded |= dict.fromkeys(LOADED.findall(html), page.name)
    assert len(loaded) > 20
    assert {url: page for url, page in loaded.items() if re.match(r"(?:https?:)?//", url)} == {}


def test_named_pages_are_links(site: Path) -> None:
    """A page of docs/ that a docstring, a message or the changelog names by its path."""
    bare = {}
    for page in site.rglob("*.html"):
        html = re.sub(r"<a [^>]*>.*?</a>", "", page.read_text("utf-8"), flags=re.DOTALL)
        for name in re.findall(r"\bdocs/([\w/-]+\.md)", re.sub(r"<[^>]+>", "", html)):
            if (ROOT / "docs" / name).exists():
                bare[name] = page.name
    assert bare == {}
    assert 'href="how-to/chain.html">docs/how-to/chain.md</a>' in (site / "api.html").read_text("utf-8")


def test_api_page_has_what_a_user_calls(site: Path) -> None:
    html = (site / "api.html").read_text("utf-8")
    headings = set(re.findall(r'id="(onceonly[\w.]*|\w+)"', html))
    classes = {name for name in onceonly.__all__ if not issubclass(getattr(onceonly, name), Exception)}
    assert {name.lower() for name in classes} <= headings
    for module in (onceonly.airflow, onceonly.sinks, onceonly.windows, onceonly.debezium):
        assert {f"{module.__name__}.{name}" for name in module.__all__} <= headings
    assert not {heading for heading in headings if heading.startswith("onceonly.Pipeline.")}

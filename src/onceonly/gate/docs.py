"""Self-contained Data Docs: Great Expectations' pages, without scripts, fonts and styles from other servers.

One folder per examination: a page per sink, and an index with every check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from onceonly.gate.arguments import convert_items
from onceonly.gate.bounds import Check
from onceonly.storage.folders import arrow_file_system
from onceonly.storage.paths import local_path

POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # the page contains values of bad rows: no script may run
METADATA = {"Content-Type": "text/html; charset=utf-8"}  # without it a browser downloads the page from an object store
FOREIGN_ELEMENTS = re.compile(
    r"<script\b.*?</script>|<style\b.*?</style>|<link\b[^>]*>|<img\b[^>]*>|<footer\b.*?</footer>", re.DOTALL
)
STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 75rem; padding: 1.5rem }
table { border-collapse: collapse; margin: .5rem 0 } td, th { border: 1px solid #8886; padding: .3rem .6rem;
text-align: left; vertical-align: top; overflow-wrap: anywhere } td.count { overflow-wrap: normal }
h1, h2, h5, h6 { margin: 1rem 0 .3rem }
.alert { border-left: 4px solid #888; background: #8881; padding: .5rem 1rem }
nav, .col-lg-2, .modal, [hidden], [data-toggle=collapse] { display: none }
ul { padding-left: 1.2rem } .badge { background: #8882; padding: 0 .3rem } span { overflow-wrap: anywhere }
.fa-times::before, .bad::before { content: "✗ "; color: light-dark(#c22, #f77) }
.fa-check-circle::before, .ok::before { content: "✓ "; color: light-dark(#182, #5c7) }
.fa-exclamation-triangle::before, .warning::before { content: "⚠ "; color: light-dark(#a60, #fb5) }
td > .ok, td > .bad, td > .warning { white-space: nowrap }
pre { white-space: pre-wrap } .show-scrollbars { overflow: auto }
"""


def write_pages(folder: str, title: str, checks: Mapping[str, Iterable[Check]], pages: Mapping[str, str]) -> str:
    """Write a new folder; return the address of its index.

    Args:
        folder: path or URI.
        checks: by sink, as in the verdict.
        pages: by sink, as rendered by Great Expectations.
    """
    for sink, page in pages.items():
        _write(f"{folder}/{sink}.html", _make_self_contained(page, f"{title}, sink {sink}"))
    body = f"<h1>{escape(title)}</h1>"
    for sink, sink_checks in checks.items():
        body += _section(sink, sink_checks, sink in pages)
    index = f'<!DOCTYPE html>\n<html lang="en"><head>{_head(title)}</head><body>{body}</body></html>\n'
    _write(f"{folder}/index.html", index)
    local = local_path(folder)
    address = local.absolute().as_uri() if local else folder
    return f"{address}/index.html"


def delete_pages(index: str) -> None:
    """Delete the folder whose index has that address."""
    folder, _, name = index.rpartition("/")
    assert name == "index.html"
    files, path = arrow_file_system(folder)
    files.delete_dir(path)


def _write(address: str, page: str) -> None:
    files, path = arrow_file_system(address)
    files.create_dir(path.rpartition("/")[0], recursive=True)
    with files.open_output_stream(path, metadata=METADATA) as out:
        out.write(page.encode())


def render_page(result: Any) -> str:
    """Return the page for one validation result, as in Great Expectations' own Data Docs.

    They render a stored result, so it is converted to plain types and loaded again.
    """
    from great_expectations.core.expectation_validation_result import expectationSuiteValidationResultSchema
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view.view import DefaultJinjaPageView

    result_json = json.loads(json.dumps(result.to_json_dict()))
    for expectation_json in result_json["results"]:
        expectation_json["result"] = _escape_result(expectation_json["result"])
    stored_result = expectationSuiteValidationResultSchema.load(result_json)
    view: Any = DefaultJinjaPageView()
    return str(view.render(ValidationResultsPageRenderer().render(stored_result)))


def render_missing_page(why: str) -> str:
    """Return a page for a sink whose page could not be made."""
    return f"<html><head></head><body><p>Great Expectations could not make this page: {escape(why)}</p></body></html>"


def _escape_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with its values escaped, which Great Expectations omits. For an aggregate, only the aggregate."""
    if "observed_value" in result and "unexpected_percent" not in result:
        result = {"observed_value": result["observed_value"]}
    escaped: dict[str, Any] = convert_items(result, _escape_text)
    return escaped


def _escape_text(item: Any) -> Any:
    if isinstance(item, str):
        return escape(item)
    return item


def _make_self_contained(page: str, title: str) -> str:
    """Return the page without what it loads from elsewhere, and with our head and a link to the index."""
    page = re.sub(r"<title>.*?</title>|<meta\b[^>]*>", "", FOREIGN_ELEMENTS.sub("", page), flags=re.DOTALL)
    page = re.sub(r'<a href="(?:\.\./)+[^"]*"\s*>(.*?)</a>', r"\1", page, flags=re.DOTALL)
    back = '<p><a href="index.html">All checks of this attempt</a></p>'
    return page.replace("<head>", f"<head>{_head(title)}", 1).replace("<body>", f"<body>{back}", 1)


def _head(title: str) -> str:
    return (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title><style>{STYLE}</style>'
    )


def _section(sink: str, checks: Iterable[Check], has_page: bool) -> str:
    link = ""
    if has_page:
        link = f'<p><a href="{sink}.html">Data Docs of sink {sink}</a></p>'
    return f"<h2>Sink {sink}</h2><table>{''.join(map(_check_row, checks))}</table>{link}"


def _check_row(check: Check) -> str:
    style = text = "ok"
    if not check["ok"]:
        text = check["severity"]
        style = "bad" if text == "critical" else "warning"
    cells = f'<td><span class="{style}">{text}</span></td><td>{escape(check["what"])}</td>'
    return f'<tr>{cells}<td class="count">{escape(check["observed"])}</td></tr>'

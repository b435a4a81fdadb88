"""The report of a verification, as one file that can be handed to somebody: Markdown, or HTML without anything else.

It is made of the verification's JSON (`verification.encoding`), so that the last one can be shown again later.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from onceonly.counts import count
from onceonly.views.formatting import clock, number

TITLES = {"right": "Right", "wrong": "Wrong", "unknown": "Can no longer be known"}
MARKS = {"right": "✓", "wrong": "✗", "unknown": "?"}
SHALLOW = "Names, sizes, statistics, offsets and marks were compared; no data file and no log was read, as --deep does."
DEEP = "Data files and logs were read."
HOW = (
    "The state table was read once, and its rows were compared with each other. The ranges of all checkpoints were "
    "laid side by side: each offset has to be in exactly one of them, or left out on purpose. Then each source and "
    "each target was asked what it has. Nothing was changed in them."
)
MEANING = {
    "right": "everything that was looked at is as it was recorded, or was so when it could last be seen",
    "wrong": "something is not as it was recorded",
    "unknown": "what could tell has expired, or does not answer; that is not taken for right",
}
STYLE = """
:root { color-scheme: light }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; background: #fff; max-width: 60rem; margin: 2.5rem auto;
  padding: 0 1.5rem }
h1 { font-size: 1.5rem; margin: 0 0 .25rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p { margin: .4rem 0 } .dim { color: #59636e } code { font: .9em ui-monospace, monospace }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid #d8dee4 }
th { font-weight: 600 } td { font-variant-numeric: tabular-nums } td:first-child { white-space: nowrap }
.judgement { border-left: 4px solid; padding: .5rem 1rem; margin: 1rem 0; background: #f6f8fa }
.right { color: #1a7f37 } .wrong { color: #cf222e } .unknown { color: #9a6700 }
.judgement.right { border-color: #1a7f37 } .judgement.wrong { border-color: #cf222e }
.judgement.unknown { border-color: #bf8700 } .judgement p { color: #1f2328 }
"""


@dataclass
class ReportTable:
    """A table of a report; its cells are text.

    Args:
        judgement: of all that is in it; empty: of none in particular.
    """

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    judgement: str = ""


def describe_judgement(data: Mapping[str, Any]) -> str:
    """Return in one sentence what came of a verification."""
    counts = data["checkpoints"]
    checkpoints = count(sum(counts.values()), "checkpoint")
    if data["judgement"] == "right":
        return f"{checkpoints}: all right."
    parts = []
    for judgement in ("wrong", "unknown", "right"):
        if counts[judgement]:
            parts.append(f"{counts[judgement]:,} {TITLES[judgement].lower()}")
    subject_findings = 0
    for finding in data["findings"]:
        subject_findings += finding["epochs"] == ""
    if subject_findings:
        parts.append(f"{count(subject_findings, 'finding')} about no single checkpoint")
    return f"{checkpoints}: {', '.join(parts)}."


def describe_until(data: Mapping[str, Any]) -> str:
    """Return up to when everything is right."""
    until = data["verified_right_until"]
    if until is None:
        return "Verified right until: not yet."
    return f"Verified right until {clock(datetime.fromisoformat(until))} UTC."


def name_subject(about: Mapping[str, Any]) -> str:
    """Return the subject of a finding: source 'flights'."""
    return f"{about['kind']} '{about['name']}'" if about["name"] else str(about["kind"])


def list_facts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what was checked, when and by which version."""
    yield "Pipeline", data["pipeline"]
    yield "When", f"{clock(datetime.fromisoformat(data['at']))} UTC, in {data['seconds']:.1f} s"
    yield "By", f"Onceonly {data['version']}"
    yield "State table", f"{data['state_table']} (identity {data['state_id']}), up to row {data['seq']:,}"
    since = data["since"]
    if since:
        yield "Since", f"{clock(datetime.fromisoformat(since))} UTC: earlier checkpoints were not looked at"
    yield "How closely", DEEP if data["deep"] else SHALLOW
    if data["open"]:
        yield "Not settled", f"epochs {data['open']}, of which nothing can be said yet"


def list_tables(data: Mapping[str, Any]) -> Iterator[ReportTable]:
    """Yield the tables of a report: figures, what is wrong, what cannot be known, and what was seen of the rest."""
    figures = ReportTable("Figures", ("Checkpoints by subject", *TITLES.values()))
    for subject in data["subjects"]:
        numbers = map(number, map(subject["counts"].get, TITLES))
        figures.rows.append((name_subject(subject), *numbers))
    yield figures
    for judgement in ("wrong", "unknown"):
        table = ReportTable(TITLES[judgement], ("Where", "Epochs", "Code", "Why, and what to do"), judgement=judgement)
        for finding in data["findings"]:
            if finding["judgement"] == judgement:
                why = " ".join(filter(None, (finding["why"], finding["advice"])))
                table.rows.append((name_subject(finding), finding["epochs"] or "-", finding["code"], why))
        if table.rows:
            yield table
    right = ReportTable("What was seen of the right ones", ("Where", "Epochs", "Code", "For example, of the last one"))
    for subject in data["subjects"]:
        for example in subject["examples"]:
            right.rows.append((name_subject(subject), example["epochs"], example["code"], example["why"]))
    yield right


def _list_remarks(data: Mapping[str, Any]) -> Iterator[str]:
    if data["findings_left_out"]:
        yield f"{count(data['findings_left_out'], 'more finding')} are not told here."


# ---- Markdown


def render_markdown(data: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    lines = [f"# Verification of {data['pipeline']}", ""]
    lines += [f"**{TITLES[data['judgement']]}.** {describe_judgement(data)} {describe_until(data)}", ""]
    lines += _markdown_table(("What", "Which"), list_facts(data))
    lines += ["", "## How", "", HOW, ""]
    for judgement, meaning in MEANING.items():
        lines.append(f"- *{TITLES[judgement]}*: {meaning}")
    for table in list_tables(data):
        lines += ["", f"## {table.title}", "", *_markdown_table(table.head, table.rows)]
    for remark in _list_remarks(data):
        lines += ["", remark]
    return "\n".join(lines) + "\n"


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for row in rows:
        text = "\0".join(row).replace("|", "\\|").replace("\n", " ").replace("\0", " | ")
        lines.append(f"| {text} |")
    return lines


# ---- HTML


def render_html(data: Mapping[str, Any]) -> str:
    """Return the report as a page of HTML, which needs no other file."""
    title, judgement = f"Verification of {_escape(data['pipeline'])}", data["judgement"]
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n',
        f"<style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n",
        f'<div class="judgement {judgement}"><strong>{MARKS[judgement]} {TITLES[judgement]}</strong>',
        f"<p>{_escape(describe_judgement(data))} {_escape(describe_until(data))}</p></div>\n",
        _html_table((), list_facts(data)),
        f"<h2>How</h2>\n<p>{_escape(HOW)}</p>\n",
    ]
    for name, meaning in MEANING.items():
        parts.append(f'<p class="dim"><span class="{name}">{TITLES[name]}</span>: {_escape(meaning)}.</p>\n')
    for table in list_tables(data):
        parts.append(f'<h2 class="{table.judgement}">{table.title}</h2>\n')
        parts.append(_html_table(table.head, table.rows))
    for remark in _list_remarks(data):
        parts.append(f"<p>{_escape(remark)}</p>\n")
    return "".join([*parts, "</body></html>\n"])


def _html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = []
    if head:
        lines.append(f"<tr><th>{'</th><th>'.join(head)}</th></tr>\n")
    for row in rows:
        cells = "</td><td>".join(map(_escape, row))
        lines.append(f"<tr><td>{cells}</td></tr>\n")
    return f"<table>{''.join(lines)}</table>\n"


def _escape(text: object) -> str:
    return html.escape(str(text))

"""The pages: what they show out of the state table, what is masked in it, and how it is written.

No page reads more than it needs. All is escaped: autoescape is on, and no template says "safe". What pages and answers
show passes the filter of Airflow's logs, and ours for addresses.

The Data Docs of a gate are pages that the gate has written. A verdict names their address. The state table may be
damaged or forged, so an address counts only where it is what this gate writes:
`<ONCEONLY_DOCS>/<pipeline>/<epoch>-<attempt>-<12 digits>/index.html`, and a page in that folder only where it is the
index or that of a sink which the verdict names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import Any

from airflow._shared.secrets_masker import mask_secret, redact
from fastapi import HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from onceonly import redaction
from onceonly.airflow import runs
from onceonly.checkpoint.data_docs import INDEX, find_page
from onceonly.checkpoint.model import Checkpoint, Event
from onceonly.checkpoint.offsets import Interval
from onceonly.counts import count
from onceonly.errors import OutcomeUnknown
from onceonly.kafka import connection
from onceonly.runtime import pipeline_file
from onceonly.runtime.owners import airflow_owner, installation_of, parse_airflow_run
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable
from onceonly.storage.folders import arrow_file_system
from onceonly.storage.paths import local_path
from onceonly.views import descriptions, formatting, gap_advice, queries, summary, verified
from onceonly.views.story import Story, describe_part, how_to_complete, list_lost
from onceonly.views.summary import Summary

CHECKPOINTS_PER_PAGE = 50
ACTORS = ("by", "who")  # keys of what an event recorded: a process, a person
MAX_DOCS_PAGE_BYTES = 20_000_000  # such a page has about 25,000
DOCS_POLICY = (  # values of bad rows are in the page: nothing in it may run, and it brings its own styles
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
    "sandbox allow-same-origin"
)


def mask(data: Any) -> Any:
    """Return JSON without the secrets of this process's connections and the passwords in addresses.

    Texts are masked, also in lists and dicts; other values are returned as they are, also HTML that a macro has made.
    """
    if isinstance(data, dict):
        return {key: mask(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [mask(value) for value in data]
    if isinstance(data, Markup) or not isinstance(data, str):  # markup is of a macro, whose parts were looked at
        return data
    return redaction.hide_credentials(redact(data))


def mask_secrets(settings: Mapping[str, Any]) -> None:
    """Mask a Kafka connection's secrets from now on, also those whose names say nothing to Airflow."""
    for key, value in settings.items():
        if connection.SECRET_PROPERTY.search(key):
            mask_secret(value)


_templates = Environment(
    loader=PackageLoader("onceonly.airflow.ui"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=mask,
    trim_blocks=True,
    lstrip_blocks=True,
)


class Summaries:
    """A cache of summaries, which are read again only when the pipeline has a new row."""

    def __init__(self) -> None:
        # by state table and pipeline: the last row of it that was read, and the summary up to there
        self._cache: dict[tuple[str, str], tuple[int, Summary]] = {}

    def get(self, state_table: StateTable, versions: Mapping[str, int]) -> tuple[list[Summary], list[OutcomeUnknown]]:
        """Return the summaries in the order of `versions`, and the errors of pipelines that cannot be read.

        Args:
            versions: by pipeline, the sequence number of its last row; 0: it could not be read, and is tried again.
        """
        outdated = []
        for name, last_row in versions.items():
            cached_row = self._cache.get((state_table.id, name), (0,))[0]
            if cached_row != last_row or not last_row:
                outdated.append(name)
        by_name, damaged = summary.read_summaries(state_table, outdated)
        for name, fresh in by_name.items():
            self._cache[state_table.id, name] = versions[name], fresh
        summaries = [self._cache[state_table.id, name][1] for name in versions if name not in damaged]
        return summaries, list(damaged.values())


@dataclass(frozen=True)
class Page:
    """Some checkpoints of a pipeline, newest first."""

    number: int
    pages: int
    checkpoints: list[Checkpoint]


def read_page(state_table: StateTable, pipeline: str, epochs: int, number: int) -> Page:
    """Return a page of a pipeline with that many epochs.

    Page 1 holds the last epochs; a number too high is the last page.
    """
    pages = max(1, -(-epochs // CHECKPOINTS_PER_PAGE))
    number = min(max(1, number), pages)
    last = epochs - (number - 1) * CHECKPOINTS_PER_PAGE
    first = last - CHECKPOINTS_PER_PAGE + 1
    return Page(number, pages, queries.list_checkpoints(state_table, pipeline, first, last))


def list_planned_by(state_table: StateTable, pipeline: str, dag_id: str, run_id: str) -> list[Checkpoint]:
    """Return the checkpoints that a DAG run of this Airflow has planned."""
    return state_table.view(pipeline).planned_by(airflow_owner(dag_id, run_id, runs.read_installation_on_server()))


def compute_duration(checkpoint: Checkpoint) -> timedelta | None:
    """Return the time from its plan to its end; None while it has not ended."""
    if not checkpoint.state.is_settled:
        return None
    return checkpoint.updated_at - checkpoint.planned_at


def read_timeline(state_table: StateTable, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Return the events of `queries.timeline` with their time, distance and style.

    That is "time", "after": the time since the event before, None of the first one, and "kind": how it looks.
    """
    events = []
    previous: datetime | None = None
    for event in queries.timeline(state_table, checkpoint):
        time = datetime.fromisoformat(event["at"])
        after = time - previous if previous else None
        events.append({**event, "time": time, "after": after, "kind": _kind(event)})
        previous = time
    return events


def _kind(event: Mapping[str, Any]) -> str:
    """Return the style of an event: a verdict looks like its outcome, as one that failed is not green.

    A new transaction is no warning, and not what the badge "replaced" says of rows.
    """
    if event["event"] == Event.VERDICT.value:
        return str(event["detail"]["outcome"])
    if event["event"] == Event.REPLACED.value:
        return "staged"
    return str(event["event"])


def render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page. In its template, addresses begin with `root` (ours) or `airflow` (its own pages)."""
    scope = request.scope
    roots = {"root": scope.get("root_path", ""), "airflow": scope.get("app_root_path", "")}
    html = _templates.get_template(template).render(**roots, now=datetime.now(UTC), **values)
    return HTMLResponse(html, status)


def serve_docs(verdict: Mapping[str, Any] | None, pipeline: str, epoch: int, attempt: int, page: str) -> Response:
    """Return a page of Data Docs; 404 unless it is one of this verdict."""
    settings = Settings.from_env()
    folder = find_docs_folder((verdict or {}).get("docs"), settings.docs, f"{pipeline}/{epoch}-{attempt}")
    if verdict is None or folder is None or page not in _docs_page_names(verdict):
        raise HTTPException(404, "There is no such page of Data Docs.")
    content = _link_back(_read_docs_page(settings.docs, f"{folder}/{page}"), pipeline, epoch, attempt)
    headers = {"Content-Security-Policy": DOCS_POLICY}
    return Response(content, media_type="text/html; charset=utf-8", headers=headers)


def _link_back(content: bytes, pipeline: str, epoch: int, attempt: int) -> bytes:
    """Return a page of Data Docs with a link to the checkpoint, where somebody decides about what it shows."""
    link = f'<p><a href="../../../{epoch}">Back to {pipeline} epoch {epoch}</a>, attempt {attempt}</p>'
    return content.replace(b"<body>", f"<body>{link}".encode(), 1)


def _docs_page_names(verdict: Mapping[str, Any]) -> set[str]:
    """Return the pages of a verdict: the index, and one for each sink."""
    return {INDEX, *(f"{sink}.html" for sink in verdict["sinks"])}


def find_docs_folder(docs: object, root: str, begin: str) -> str | None:
    """Return the folder of these pages relative to `root`; None where the address is not one that our gates write.

    Args:
        docs: the address of the index, as the verdict has it.
        root: where all Data Docs are, a path or URI.
        begin: what the folder's name has to begin with, such as 'flights/7-1'.
    """
    path = local_path(root)
    root_uri = path.absolute().as_uri() if path else root.rstrip("/")
    match = re.fullmatch(rf"{re.escape(root_uri)}/({re.escape(begin)}-[0-9a-f]{{12}})/{INDEX}", str(docs))
    return match[1] if match else None


def _read_docs_page(root: str, name: str) -> bytes:
    """Return the bytes of a file below the root; 404 for one that links lead out of it, is too large or deleted."""
    files, folder = arrow_file_system(root)
    path = f"{folder.rstrip('/')}/{name}"
    if local_path(root) and not Path(path).resolve().is_relative_to(Path(folder).resolve()):
        raise HTTPException(404, "There is no such page of Data Docs.")
    try:
        with files.open_input_file(path) as file:
            if file.size() > MAX_DOCS_PAGE_BYTES:
                raise HTTPException(404, "This page of Data Docs is too large to be shown here.")
            return bytes(file.read())
    except FileNotFoundError as error:
        raise HTTPException(404, "These Data Docs no longer exist: they were deleted.") from error


def seconds(length: timedelta | None) -> str:
    """Return a length of time, below two minutes to the tenth of a second; '-' where there is none."""
    if length is None:
        return "-"
    if length < timedelta(minutes=2):
        return f"{length.total_seconds():.1f} s"
    return formatting.span(length)


def pretty(data: Any) -> str:
    """Return data as indented JSON, without secrets."""
    return json.dumps(mask(data), indent=2, default=str)


def words(detail: Mapping[str, Any]) -> str:
    """Return the plain values of what an event recorded, and who did it last.

    A reason is a sentence of its own. Data Docs are left out: they are linked. The number of what was
    seen is for programs.
    """
    keys = [key for key in detail if key not in ("docs", "seen", *ACTORS)]
    keys += [key for key in ACTORS if key in detail]
    texts = []
    for key in keys:
        value = detail[key]
        if isinstance(value, (Mapping, list)) or value in (None, False, ""):
            continue
        if key in ("why", "reason"):
            texts.append(str(value))
        elif key in ACTORS:
            texts.append(f"by {value}")
        elif key == "rows" and isinstance(value, int):
            texts.append(count(value, "row"))
        else:
            texts.append(f"{key} {value}")
    return ", ".join(texts)


def owner(key: str) -> str:
    """Return the id of the run that an owner key names, and its Airflow unless that is this one; else the key."""
    run = parse_airflow_run(key)
    if run is None:
        return formatting.owner(key)
    if installation_of(key) != runs.read_installation_on_server():
        return f"{run[1]} (Airflow {installation_of(key)})"
    return run[1]


def rows(checkpoint: Checkpoint) -> str:
    """Return `formatting.rows` so that no line ends between a sink and its number."""
    return _keep_together(formatting.rows(checkpoint))


def rows_in_force(pipeline_summary: Summary) -> str:
    """Return the rows of the last commit by sink, as they are in force now."""
    return _keep_together(pipeline_summary.rows_text)


def _keep_together(text: str) -> str:
    """Return a text in which no line ends between a sink and its number, or in what follows in brackets."""
    return re.sub(r" (?=[\d(-])| (?=[^(]*\))", "\N{NO-BREAK SPACE}", text)


def covers(checkpoint: Checkpoint) -> str:
    """Return the interval of a checkpoint, and whether it is skipped; else its ranges."""
    if checkpoint.interval is None:
        return descriptions.describe_coverage(checkpoint)
    text = short(checkpoint.interval)
    if checkpoint.skipped is not None:
        text += ", skipped"
    if checkpoint.is_repair:
        text += f", {', '.join(checkpoint.sinks)} only"
    return text


def _describe_gaps(pipeline_summary: Summary) -> list[str]:
    """Return the gaps of a pipeline, with the commands for its DAG, which its last run tells."""
    run = parse_airflow_run(pipeline_summary.latest.owner)
    name, dag_id = pipeline_summary.name, run[0] if run else None
    if not pipeline_summary.gaps:
        return []
    return gap_advice.describe_gaps(name, pipeline_summary.gaps, quote(pipeline_file.find_in_project(name)), dag_id)


def _how_to_complete(story: Story) -> str:
    return pipeline_file.name_in_project(how_to_complete(story), story.checkpoints[0].pipeline)


def short(interval: Interval) -> str:
    """Return '2013-01-01 05:00 to 06:00': the end's date only where it is another day, seconds where there are any."""
    clock = "%H:%M"
    if interval.start.second or interval.end.second:
        clock = "%H:%M:%S"
    same_day = interval.start.date() == interval.end.date()
    end = interval.end.strftime(clock if same_day else f"%Y-%m-%d {clock}")
    return f"{interval.start:%Y-%m-%d {clock}} to {end}"


_templates.filters |= {
    "age": formatting.age,
    "approval": descriptions.describe_approval,
    "bad": descriptions.describe_bad_records,
    "clock": formatting.clock,
    "code": descriptions.describe_code,
    "covers": covers,
    "docs_page": find_page,
    "event": formatting.event,
    "gaps": _describe_gaps,
    "how_to_complete": _how_to_complete,
    "iso": queries.iso,
    "json": json.dumps,
    "missing": descriptions.describe_losses,
    "number": formatting.number,
    "other_code": descriptions.describe_other_code,
    "owner": owner,
    "pretty": pretty,
    "held": descriptions.describe_hold,
    "part": describe_part,
    "place": descriptions.describe_target,
    "repair": descriptions.describe_repair,
    "list_lost": list_lost,
    "askers": descriptions.describe_askers,
    "rows": rows,
    "rows_in_force": rows_in_force,
    "staged": descriptions.describe_staged_rows,
    "state": formatting.state,
    "unfit": descriptions.describe_unfit_attempts,
    "unsettled": descriptions.describe_unsettled,
    "verified": verified.describe,
    "waits_for": descriptions.describe_needed_action,
    "schemas": descriptions.describe_schemas,
    "seconds": seconds,
    "short": short,
    "span": formatting.span,
    "words": words,
}

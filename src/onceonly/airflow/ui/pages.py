"""Templates, and how values are written in them. All is escaped: autoescape is on, and no template says "safe"."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from onceonly.airflow import installation
from onceonly.airflow.ui import masking
from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import Interval
from onceonly.runtime.owners import installation_of, parse_airflow_run
from onceonly.views import formatting, queries

_templates = Environment(
    loader=PackageLoader("onceonly.airflow.ui"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=masking.shown,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Addresses begin with `root` (ours) or `airflow` (its own pages)."""
    scope = request.scope
    places = {"root": scope.get("root_path", ""), "airflow": scope.get("app_root_path", "")}
    return HTMLResponse(_templates.get_template(template).render(**places, now=datetime.now(UTC), **values), status)


def seconds(length: timedelta | None) -> str:
    """Short times to the tenth of a second."""
    if length is None:
        return "-"
    short = length < timedelta(minutes=2)
    return f"{length.total_seconds():.1f} s" if short else formatting.span(length)


def pretty(data: Any) -> str:
    return json.dumps(masking.shown(data), indent=2, default=str)


def words(detail: Mapping[str, Any]) -> str:
    """The plain values of what an event recorded; a reason is a sentence of its own, and Data Docs are linked."""
    plain = {key: value for key, value in detail.items() if not isinstance(value, (Mapping, list)) and key != "docs"}
    plain |= {"by": plain.pop("by")} if "by" in plain else {}  # last
    said = ((f"{value}" if key in ("why", "reason") else f"{key} {value}", value) for key, value in plain.items())
    return ", ".join(text for text, value in said if value not in (None, False, ""))


def run_path(owner: str) -> str | None:
    """Where Airflow shows the run that owns a checkpoint; nowhere, if it is a run of another Airflow."""
    run = parse_airflow_run(owner)
    if run and installation_of(owner) != installation.of_server():
        return None
    return f"/dags/{quote(run[0], safe='')}/runs/{quote(run[1], safe='')}" if run else None


def owner(key: str) -> str:
    run = parse_airflow_run(key)
    if run and installation_of(key) != installation.of_server():
        return f"{run[1]} (Airflow {installation_of(key)})"
    return run[1] if run else formatting.owner(key)


def rows(checkpoint: Checkpoint) -> str:
    """No line ends between a sink and its number."""
    return re.sub(r" (?=[\d-])", "\N{NO-BREAK SPACE}", formatting.rows(checkpoint))


def covers(checkpoint: Checkpoint) -> str:
    if checkpoint.interval is None:
        return formatting.covers(checkpoint)
    return short(checkpoint.interval) + (", skipped" if checkpoint.skipped is not None else "")


def short(interval: Interval) -> str:
    """'2013-01-01 05:00 to 06:00': the end's date only where it is another day."""
    times = (interval.start, interval.end)
    clock = "%H:%M:%S" if any(time.second for time in times) else "%H:%M"
    same_day = interval.start.date() == interval.end.date()
    return f"{interval.start:%Y-%m-%d {clock}} to {interval.end.strftime(clock if same_day else f'%Y-%m-%d {clock}')}"


_templates.filters |= {
    "age": formatting.age,
    "approval": formatting.approval,
    "bad": formatting.bad,
    "clock": formatting.clock,
    "covers": covers,
    "gaps": formatting.gaps,
    "iso": queries.iso,
    "missing": formatting.missing_by_sink,
    "number": formatting.number,
    "owner": owner,
    "pretty": pretty,
    "held": formatting.held,
    "place": formatting.target,
    "rows": rows,
    "staged": formatting.staged,
    "state": formatting.state,
    "unfit": formatting.unfit,
    "unsettled": formatting.unsettled,
    "waits_for": formatting.waits,
    "run_path": run_path,
    "schemas": formatting.schemas,
    "seconds": seconds,
    "short": short,
    "span": formatting.span,
    "words": words,
}

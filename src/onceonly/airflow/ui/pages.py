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
from onceonly.views import descriptions, formatting, queries

_templates = Environment(
    loader=PackageLoader("onceonly.airflow.ui"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=masking.mask,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page. In its template, addresses begin with `root` (ours) or `airflow` (its own pages)."""
    scope = request.scope
    roots = {"root": scope.get("root_path", ""), "airflow": scope.get("app_root_path", "")}
    html = _templates.get_template(template).render(**roots, now=datetime.now(UTC), **values)
    return HTMLResponse(html, status)


def seconds(length: timedelta | None) -> str:
    """Return a length of time, below two minutes to the tenth of a second; '-' where there is none."""
    if length is None:
        return "-"
    if length < timedelta(minutes=2):
        return f"{length.total_seconds():.1f} s"
    return formatting.span(length)


def pretty(data: Any) -> str:
    """Return data as indented JSON, without secrets."""
    return json.dumps(masking.mask(data), indent=2, default=str)


def words(detail: Mapping[str, Any]) -> str:
    """Return the plain values of what an event recorded, and who did it last.

    A reason is a sentence of its own. Data Docs are left out: they are linked.
    """
    keys = [key for key in detail if key not in ("docs", "by")]
    if "by" in detail:
        keys.append("by")
    texts = []
    for key in keys:
        value = detail[key]
        if isinstance(value, (Mapping, list)) or value in (None, False, ""):
            continue
        texts.append(f"{value}" if key in ("why", "reason") else f"{key} {value}")
    return ", ".join(texts)


def run_path(owner: str) -> str | None:
    """Return where Airflow shows the run that owns a checkpoint; None if it is no run of this Airflow."""
    run = parse_airflow_run(owner)
    if run is None or installation_of(owner) != installation.of_server():
        return None
    return f"/dags/{quote(run[0], safe='')}/runs/{quote(run[1], safe='')}"


def owner(key: str) -> str:
    """Return the id of the run that an owner key names, and its Airflow unless that is this one; else the key."""
    run = parse_airflow_run(key)
    if run is None:
        return formatting.owner(key)
    if installation_of(key) != installation.of_server():
        return f"{run[1]} (Airflow {installation_of(key)})"
    return run[1]


def rows(checkpoint: Checkpoint) -> str:
    """Return `formatting.rows` so that no line ends between a sink and its number."""
    return re.sub(r" (?=[\d-])", "\N{NO-BREAK SPACE}", formatting.rows(checkpoint))


def covers(checkpoint: Checkpoint) -> str:
    """Return the interval of a checkpoint, and whether it is skipped; else its ranges."""
    if checkpoint.interval is None:
        return descriptions.describe_coverage(checkpoint)
    text = short(checkpoint.interval)
    if checkpoint.skipped is not None:
        text += ", skipped"
    return text


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
    "covers": covers,
    "gaps": descriptions.describe_gaps,
    "iso": queries.iso,
    "missing": descriptions.describe_losses,
    "number": formatting.number,
    "owner": owner,
    "pretty": pretty,
    "held": descriptions.describe_hold,
    "place": descriptions.describe_target,
    "rows": rows,
    "staged": descriptions.describe_staged_rows,
    "state": formatting.state,
    "unfit": descriptions.describe_unfit_attempts,
    "unsettled": descriptions.describe_unsettled,
    "waits_for": descriptions.describe_needed_action,
    "run_path": run_path,
    "schemas": descriptions.describe_schemas,
    "seconds": seconds,
    "short": short,
    "span": formatting.span,
    "words": words,
}

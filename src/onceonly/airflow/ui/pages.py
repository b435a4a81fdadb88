"""Templates, and how values are written in them. All is escaped: autoescape is on, and no template says "safe"."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from onceonly import reading, wording
from onceonly.checkpoint import Checkpoint
from onceonly.liveness import parse_airflow_run

_templates = Environment(
    loader=PackageLoader("onceonly.airflow.ui"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


def render(request: Request, template: str, **values: Any) -> HTMLResponse:
    """Addresses begin with `root` (ours) or `airflow` (its own pages)."""
    scope = request.scope
    places = {"root": scope.get("root_path", ""), "airflow": scope.get("app_root_path", "")}
    return HTMLResponse(_templates.get_template(template).render(**places, now=datetime.now(UTC), **values))


def seconds(span: timedelta | None) -> str:
    """'4.2 s', '3 min', '5 h'."""
    if span is None:
        return "-"
    total = span.total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if total >= 2 * size:
            return f"{total / size:.0f} {unit}"
    return f"{total:.1f} s"


def pretty(data: Any) -> str:
    return json.dumps(reading.without_secrets(data), indent=2, default=str)


def run_path(owner: str) -> str | None:
    """Where Airflow shows the run that owns a checkpoint."""
    run = parse_airflow_run(owner)
    return f"/dags/{quote(run[0], safe='')}/runs/{quote(run[1], safe='')}" if run else None


def owner(key: str) -> str:
    run = parse_airflow_run(key)
    return run[1] if run else wording.owner(key)


def covers(checkpoint: Checkpoint) -> str:
    return str(checkpoint.interval) if checkpoint.interval else wording.covers(checkpoint)


_templates.filters |= {
    "age": wording.age,
    "clock": wording.clock,
    "covers": covers,
    "iso": reading.iso,
    "number": wording.number,
    "owner": owner,
    "pretty": pretty,
    "rows": reading.rows,
    "run_path": run_path,
    "seconds": seconds,
}

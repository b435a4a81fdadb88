"""The app that Airflow mounts at /onceonly. Every route needs a login, by the app's own dependency."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler, request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as StarletteHTTPException

from onceonly.airflow.ui import actions, charts, data_docs, live, masking, page_data, pages
from onceonly.airflow.ui.access import ReaderDep, Viewer, ViewerDep
from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import Interval
from onceonly.counts import count
from onceonly.errors import OnceonlyError, OutcomeUnknown
from onceonly.views import formatting, metrics, prometheus, summary, superseded
from onceonly.views import queries as reading
from onceonly.views.summary import Lag, Summary

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ASSETS = {"onceonly.css": "text/css", "onceonly.js": "text/javascript", "frame.js": "text/javascript"}

app = FastAPI(title="Onceonly", dependencies=[Depends(get_user)], openapi_url=None, docs_url=None, redoc_url=None)
app.include_router(actions.router)
_summaries = page_data.Summaries()


@app.middleware("http")
async def guarded(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


@app.exception_handler(OnceonlyError)
def explained(request: Request, error: OnceonlyError) -> Response:
    """Ours say what, why, and what to do."""
    status = 409 if request.method == "POST" else 503
    if _wants_page(request):
        return pages.render(request, "error.html", status, what=error.what, why=error.why, todo=error.todo)
    code = {"code": error.code} if error.code else {}
    told = {"what": error.what, "why": error.why, "todo": error.todo, **code}
    return JSONResponse(masking.shown(told), status)


@app.exception_handler(StarletteHTTPException)
async def refused(request: Request, error: StarletteHTTPException) -> Response:
    """A page for a browser that opens an address; JSON for the script of our pages, and for programs."""
    if not _wants_page(request):
        return await http_exception_handler(request, error)
    if error.status_code == 401:
        what, todo = "You are not logged in.", "Log in to Airflow, then open this page again."
    else:
        what, todo = str(error.detail), ""
    return pages.render(request, "error.html", error.status_code, what=what, why="", todo=todo)


@app.exception_handler(RequestValidationError)
async def not_understood(request: Request, error: RequestValidationError) -> Response:
    if not _wants_page(request):
        return await request_validation_exception_handler(request, error)
    return pages.render(request, "error.html", 422, what="There is no page at this address.", why="", todo="")


def _wants_page(request: Request) -> bool:
    """Browsers say so when a person opens an address."""
    return request.method == "GET" and "text/html" in Headers(scope=request.scope).get("accept", "")


@app.get("/static/{name}")
def asset(name: str) -> Response:
    if name not in ASSETS:
        raise HTTPException(404)
    return Response((files("onceonly.airflow.ui") / "static" / name).read_bytes(), media_type=ASSETS[name])


@app.get("/")
def pipelines(request: Request, viewer: ViewerDep) -> HTMLResponse:
    found, damaged = _all(viewer)
    told = [masking.shown(str(error)) for error in damaged]
    return pages.render(request, "pipelines.html", pipelines=found, damaged=told, pending=summary.pending)


@app.get("/lag")
def lag(viewer: ViewerDep) -> dict[str, Any]:
    """By pipeline: {"state", "text", "why"}; state is "behind", "even", "unknown" or "asked" (not answered yet)."""
    return {name: _lag_words(found) for name, found in live.lags(_all(viewer)[0]).items()}


@app.get("/metrics")
def measured(viewer: ViewerDep, lag: bool = True) -> Response:
    """What Prometheus collects, of the pipelines that the user may read; a source that has not answered is left out."""
    mine = viewer.pipelines()
    found = _summaries.get(viewer.state, mine)[0] if mine else []
    damaged = mine.keys() - {each.name for each in found}
    samples = metrics.of_all(found, damaged, datetime.now(UTC), live.lags(found) if lag else {})
    return Response(prometheus.text(samples), headers={"Content-Type": prometheus.CONTENT_TYPE})


@app.get("/runs")
def run(request: Request, dag_id: str, run_id: str, viewer: ViewerDep) -> Response:
    """The checkpoints that a DAG run has planned."""
    mine = [name for name in viewer.pipelines() if dag_id in viewer.dags(name)]
    found = [cp for name in mine for cp in page_data.planned_by(viewer.state, name, dag_id, run_id)]
    if len(found) == 1:
        return RedirectResponse(f"{request.scope['root_path']}/pipelines/{found[0].pipeline}/{found[0].epoch}", 303)
    return pages.render(request, "run.html", run_id=run_id, dag_id=dag_id, checkpoints=found)


@app.get("/pipelines/{pipeline}")
def one_pipeline(request: Request, pipeline: str, viewer: ReaderDep, page: int = 1) -> HTMLResponse:
    found, damaged = _summaries.get(viewer.state, {pipeline: viewer.version(pipeline)})
    if damaged:
        raise damaged[0]
    (mine,) = found
    shown = page_data.page(viewer.state, pipeline, mine.latest.epoch, page)
    drawn = [charts.rows(shown.checkpoints), charts.durations(shown.checkpoints)]
    fresh = charts.freshness(shown.checkpoints, _until(shown))
    return pages.render(
        request,
        "pipeline.html",
        pipeline=mine,
        page=shown,
        later=superseded.superseded(viewer.state, shown.checkpoints),
        charts=[*drawn, fresh] if fresh else drawn,
        pending=summary.pending,
        duration=page_data.duration,
        may_act=viewer.may("PUT", pipeline),
    )


@app.get("/pipelines/{pipeline}/targets")
def targets(pipeline: str, viewer: ReaderDep) -> dict[str, Any]:
    """{"lines"}: whether its targets lack what was published to them; null while they have not answered."""
    return {"lines": masking.shown(live.targets(viewer.state, pipeline))}


@app.get("/pipelines/{pipeline}/{epoch}")
def one_checkpoint(request: Request, pipeline: str, epoch: int, viewer: ReaderDep) -> HTMLResponse:
    found = _checkpoint(viewer, pipeline, epoch)
    return pages.render(
        request,
        "checkpoint.html",
        cp=found,
        later=superseded.superseded(viewer.state, [found]).get(epoch),
        timeline=page_data.timeline(viewer.state, found),
        pending=summary.pending((found,), datetime.now(UTC)),
        duration=page_data.duration(found),
        may_act=viewer.may("PUT", pipeline),
    )


@app.get("/pipelines/{pipeline}/{epoch}/evidence/{sink}")
def evidence(pipeline: str, epoch: int, sink: str, viewer: ReaderDep) -> dict[str, Any]:
    """{"lines"}: what the sink shows; null while it has not answered."""
    _checkpoint(viewer, pipeline, epoch)
    lines = live.evidence(pipeline, epoch, sink)
    return {"lines": masking.shown(lines)}


@app.get("/pipelines/{pipeline}/{epoch}/docs/{attempt}/{page}")
def docs(pipeline: str, epoch: int, attempt: int, page: str, viewer: ReaderDep) -> Response:
    """A page of the Data Docs that the gate of that attempt has written."""
    _checkpoint(viewer, pipeline, epoch)
    return data_docs.served(reading.verdict(viewer.state, pipeline, epoch, attempt), pipeline, epoch, attempt, page)


def _all(viewer: Viewer) -> tuple[list[Summary], list[OutcomeUnknown]]:
    """And why other pipelines cannot be read."""
    mine = viewer.pipelines()
    return _summaries.get(viewer.state, mine) if mine else ([], [])


def _checkpoint(viewer: Viewer, pipeline: str, epoch: int) -> Checkpoint:
    found = reading.list_checkpoints(viewer.state, pipeline, epoch, epoch)
    if not found:
        raise HTTPException(404, f"{pipeline} has no epoch {epoch}.")
    return found[0]


def _until(page: page_data.Page) -> datetime:
    """The last page's line continues to now, an older one's ends with it."""
    return datetime.now(UTC) if page.number == 1 else max(cp.updated_at for cp in page.checkpoints)


def _lag_words(found: Lag | None) -> dict[str, str]:
    if found is None:
        return {"state": "asked", "text": "no answer yet", "why": ""}
    if found.error is not None:
        return {"state": "unknown", "text": "no answer from the source", "why": masking.shown(found.error)}
    if not found.records and not found.versions and not found.gaps:
        return {"state": "even", "text": "up to date", "why": ""}
    behind = [f"up to {count(found.records, 'record')}"] if found.records else []
    behind += [f"{count(found.held, 'record')} behind open transactions"] if found.held else []
    behind += [count(found.versions, "version")] if found.versions else []
    since = [formatting.age(found.since)] if found.since else []
    return {"state": "behind", "text": ", ".join([*behind, *_count(found.gaps), *since]), "why": ""}


def _count(gaps: Sequence[Interval]) -> list[str]:
    return [count(len(gaps), "gap")] if gaps else []

"""The app that Airflow mounts at /onceonly. Every route needs a login, by the app's own dependency."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
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

from onceonly.airflow.ui import actions, charts, live, owner_runs, pages, publication, recovery_dag, repairs
from onceonly.airflow.ui.access import ReaderDep, Viewer, ViewerDep
from onceonly.airflow.ui.work import describe_work
from onceonly.checkpoint.model import Checkpoint
from onceonly.counts import count
from onceonly.errors import OnceonlyError, OutcomeUnknown, headline
from onceonly.runtime import pipeline_file
from onceonly.settings import Settings
from onceonly.verification.archive import Archive
from onceonly.views import (
    formatting,
    manual_actions,
    metrics,
    provenance,
    summary,
    verification_report,
    verified,
)
from onceonly.views import queries as reading
from onceonly.views.story import read_story
from onceonly.views.summary import Lag, Summary

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MAX_AT_WORK = 8  # unsettled checkpoints of which a pipeline's page says what is being done
NO_PAGE = "There is no page at this address."
ASSETS = {"onceonly.css": "text/css", "onceonly.js": "text/javascript", "frame.js": "text/javascript"}

app = FastAPI(title="Onceonly", dependencies=[Depends(get_user)], openapi_url=None, docs_url=None, redoc_url=None)
app.include_router(actions.router)
_summaries = pages.Summaries()


@app.middleware("http")
async def add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add SECURITY_HEADERS to every answer, unless its route has set them itself."""
    response = await call_next(request)
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    return response


@app.exception_handler(OnceonlyError)
def render_onceonly_error(request: Request, error: OnceonlyError) -> Response:
    """Answer with an error of Onceonly's own, which says what, why, and what to do."""
    status = 409 if request.method == "POST" else 503
    todo = pipeline_file.name_in_project(error.todo, error.pipeline)
    if _wants_page(request):
        what = headline(error.what, error.code)
        return pages.render(request, "error.html", status, what=what, why=error.why, todo=todo, may_pass=True)
    body = {"what": error.what, "why": error.why, "todo": todo}
    if error.code:
        body["code"] = error.code
    return JSONResponse(pages.mask(body), status)


@app.exception_handler(StarletteHTTPException)
async def render_http_error(request: Request, error: StarletteHTTPException) -> Response:
    """Answer with a page for a browser that opens an address, with JSON for the script of our pages and programs."""
    if not _wants_page(request):
        return await http_exception_handler(request, error)
    if error.status_code == 401:
        what, todo = "You are not logged in.", "Log in to Airflow, then open this page again."
    else:
        what, todo = str(error.detail), ""
    return pages.render(request, "error.html", error.status_code, what=what, why="", todo=todo, may_pass=False)


@app.exception_handler(RequestValidationError)
async def render_invalid_request(request: Request, error: RequestValidationError) -> Response:
    """Answer a browser that no page has this address, as where an epoch is no number; a program what is wrong."""
    if not _wants_page(request):
        return await request_validation_exception_handler(request, error)
    return pages.render(request, "error.html", 422, what=NO_PAGE, why="", todo="", may_pass=False)


def _wants_page(request: Request) -> bool:
    """Whether a person opens an address: browsers say so."""
    return request.method == "GET" and "text/html" in Headers(scope=request.scope).get("accept", "")


@app.get("/static/{name}")
def asset(name: str) -> Response:
    """Serve a style sheet or a script of our pages."""
    if name not in ASSETS:
        raise HTTPException(404)
    return Response((files("onceonly.airflow.ui") / "static" / name).read_bytes(), media_type=ASSETS[name])


@app.get("/")
def pipelines(request: Request, viewer: ViewerDep) -> HTMLResponse:
    """Show the pipelines that the user may read, one in each line."""
    summaries, damaged = _read_summaries(viewer)
    unsettled: list[Checkpoint] = []
    for pipeline_summary in summaries:
        unsettled += pipeline_summary.open
    left = owner_runs.find_left_behind(unsettled, owner_runs.read_owner_runs(unsettled))
    return pages.render(
        request,
        "pipelines.html",
        pipelines=summaries,
        damaged=[pages.mask(str(error)) for error in damaged],
        pending=summary.list_pending,
        plans=viewer.list_failed_plans(),
        recovery=left.recovery,
        left=left.texts,
        state_uri=Settings.from_env().state,
    )


@app.get("/lag")
def lag(viewer: ViewerDep) -> dict[str, Any]:
    """Return by pipeline {"state", "text", "why"}.

    The state is "behind", "even", "unknown" or "asked" (not answered yet).
    """
    summaries, _ = _read_summaries(viewer)
    return {name: _describe_lag(lag) for name, lag in live.lags(summaries).items()}


@app.get("/metrics")
def serve_metrics(viewer: ViewerDep, lag: bool = True) -> Response:
    """Return what Prometheus collects, of the pipelines that the user may read.

    A source that has not answered is left out.
    """
    versions = viewer.pipelines()
    summaries = _summaries.get(viewer.state, versions)[0] if versions else []
    damaged = versions.keys() - {readable.name for readable in summaries}
    now = datetime.now(UTC)
    lags = live.lags(summaries) if lag else {}
    results = verified.read_last_results(viewer.state.uri) if summaries else {}
    samples = metrics.list_samples(summaries, damaged, now, lags, results)
    return Response(metrics.format_for_prometheus(samples), headers={"Content-Type": metrics.PROMETHEUS_CONTENT_TYPE})


@app.get("/runs")
def run(request: Request, dag_id: str, run_id: str, viewer: ViewerDep) -> Response:
    """Show the checkpoints that a DAG run has planned: the only one's page, else a list."""
    checkpoints = []
    for name in viewer.pipelines():
        if dag_id in viewer.dags(name):
            checkpoints += pages.list_planned_by(viewer.state, name, dag_id, run_id)
    if len(checkpoints) == 1:
        page = f"{request.scope['root_path']}/pipelines/{checkpoints[0].pipeline}/{checkpoints[0].epoch}"
        return RedirectResponse(page, 303)
    left = owner_runs.find_left_behind(checkpoints, owner_runs.read_owner_runs(checkpoints)).texts
    return pages.render(request, "run.html", run_id=run_id, dag_id=dag_id, checkpoints=checkpoints, left=left)


@app.get("/pipelines/{pipeline}")
def one_pipeline(request: Request, pipeline: str, viewer: ReaderDep, page: int = 1) -> HTMLResponse:
    """Show a pipeline, and a page of its checkpoints.

    Raises:
        OutcomeUnknown: its rows in the state table are damaged.
    """
    summaries, damaged = _summaries.get(viewer.state, {pipeline: viewer.version(pipeline)})
    if damaged:
        raise damaged[0]
    (pipeline_summary,) = summaries
    checkpoint_page = pages.read_page(viewer.state, pipeline, pipeline_summary.latest.epoch, page)
    drawings = _draw_charts(checkpoint_page)
    runs = owner_runs.read_owner_runs([*checkpoint_page.checkpoints, *pipeline_summary.open])
    return pages.render(
        request,
        "pipeline.html",
        pipeline=pipeline_summary,
        page=checkpoint_page,
        later=provenance.find_superseded(viewer.state, checkpoint_page.checkpoints),
        charts=drawings,
        pending=summary.list_pending,
        duration=pages.compute_duration,
        runs=runs,
        left=owner_runs.find_left_behind(pipeline_summary.open, runs).texts,
        work=_describe_work(viewer, pipeline_summary.open, runs),
        approved=publication.describe_approved(pipeline_summary.open),
        may_act=viewer.may("PUT", pipeline),
        asked=manual_actions,
        verified=verified.read_last_results(viewer.state.uri).get(pipeline),
    )


@app.get("/verifications")
def list_verifications(request: Request, viewer: ViewerDep) -> HTMLResponse:
    """Show what the last verification of each pipeline has found, of those that the user may read."""
    names = list(viewer.pipelines())
    results = verified.read_last_results(viewer.state.uri) if names else {}
    return pages.render(
        request, "verifications.html", names=names, results=results, state_uri=Settings.from_env().state
    )


@app.get("/pipelines/{pipeline}/verification")
def show_verification(request: Request, pipeline: str, viewer: ReaderDep) -> HTMLResponse:
    """Show the report of a pipeline's last verification."""
    report = Archive(viewer.state.uri).read_last(pipeline)
    return pages.render(request, "verification.html", pipeline=pipeline, report=report, texts=verification_report)


@app.get("/pipelines/{pipeline}/targets")
def targets(pipeline: str, viewer: ReaderDep) -> dict[str, Any]:
    """Return {"lines"}: whether the targets lack what was published to them; null while they have not answered."""
    return {"lines": pages.mask(live.targets(viewer.state, pipeline))}


@app.get("/pipelines/{pipeline}/{epoch}")
def one_checkpoint(request: Request, pipeline: str, epoch: int, viewer: ReaderDep) -> HTMLResponse:
    """Show a checkpoint with its timeline."""
    checkpoint = _require_checkpoint(viewer, pipeline, epoch)
    story = read_story(viewer.state, checkpoint)
    may_start = viewer.may("PUT", pipeline) and viewer.may("POST", pipeline)
    obstacle = ""
    if checkpoint.is_held:
        obstacle = publication.describe_obstacle(checkpoint, recovery_dag.find_recovery_dag())
    runs = owner_runs.read_owner_runs([checkpoint])
    return pages.render(
        request,
        "checkpoint.html",
        cp=checkpoint,
        story=story,
        offer=repairs.make_offer(checkpoint, story) if may_start and repairs.find_dag(viewer, pipeline) else None,
        later=provenance.find_superseded(viewer.state, [checkpoint]).get(epoch),
        timeline=pages.read_timeline(viewer.state, checkpoint),
        pending=summary.list_pending((checkpoint,), datetime.now(UTC)),
        duration=pages.compute_duration(checkpoint),
        may_act=viewer.may("PUT", pipeline),
        obstacle=obstacle,
        runs=runs,
        left=owner_runs.find_left_behind([checkpoint], runs).texts,
        work=_describe_work(viewer, [checkpoint], runs),
        approved=publication.describe_approved([checkpoint]),
        red_run=owner_runs.describe_failed_run(checkpoint, runs.get(checkpoint.owner)),
        asked=manual_actions,
    )


@app.get("/pipelines/{pipeline}/{epoch}/publication/{attempt}")
def show_publication(pipeline: str, epoch: int, attempt: int, viewer: ReaderDep) -> dict[str, Any]:
    """Return {"text", "done"}: how far the publication of an attempt is that was approved here."""
    progress = publication.describe_progress(_require_checkpoint(viewer, pipeline, epoch), attempt)
    return {"text": pages.mask(progress["text"]), "done": progress["done"]}


@app.get("/pipelines/{pipeline}/{epoch}/evidence/{sink}")
def evidence(pipeline: str, epoch: int, sink: str, viewer: ReaderDep) -> dict[str, Any]:
    """Return {"lines"}: what the sink shows of the checkpoint; null while it has not answered."""
    _require_checkpoint(viewer, pipeline, epoch)
    lines = live.evidence(pipeline, epoch, sink)
    return {"lines": pages.mask(lines)}


@app.get("/pipelines/{pipeline}/{epoch}/docs/{attempt}/{page}")
def docs(pipeline: str, epoch: int, attempt: int, page: str, viewer: ReaderDep) -> Response:
    """Serve a page of the Data Docs that the gate of that attempt has written."""
    _require_checkpoint(viewer, pipeline, epoch)
    verdict = reading.find_verdict(viewer.state, pipeline, epoch, attempt)
    return pages.serve_docs(verdict, pipeline, epoch, attempt, page)


def _read_summaries(viewer: Viewer) -> tuple[list[Summary], list[OutcomeUnknown]]:
    """Return the summaries of the pipelines that the user may read, and the errors of those whose rows are damaged."""
    versions = viewer.pipelines()
    if not versions:
        return [], []
    return _summaries.get(viewer.state, versions)


def _require_checkpoint(viewer: Viewer, pipeline: str, epoch: int) -> Checkpoint:
    """Return the checkpoint of that epoch; 404 if there is none."""
    checkpoints = reading.list_checkpoints(viewer.state, pipeline, epoch, epoch)
    if not checkpoints:
        raise HTTPException(404, f"{pipeline} has no epoch {epoch}.")
    return checkpoints[0]


def _describe_work(
    viewer: Viewer, checkpoints: Iterable[Checkpoint], runs: Mapping[str, owner_runs.OwnerRun]
) -> dict[int, str]:
    """Return by epoch what is being done for unsettled checkpoints, of the newest ones."""
    texts = {}
    for checkpoint in list(checkpoints)[-MAX_AT_WORK:]:
        text = describe_work(viewer.state.uri, checkpoint, runs.get(checkpoint.owner))
        if text:
            texts[checkpoint.epoch] = text
    return texts


def _draw_charts(page: pages.Page) -> list[charts.Chart]:
    """Return the charts of a page; without that of the lag where too few of its checkpoints are committed."""
    drawings = [charts.rows(page.checkpoints), charts.durations(page.checkpoints)]
    freshness = charts.freshness(page.checkpoints, _end_of_line(page))
    if freshness:
        drawings.append(freshness)
    return drawings


def _end_of_line(page: pages.Page) -> datetime:
    """Return where a line over time ends: that of the newest page continues to now, an older one's ends with it."""
    if page.number == 1:
        return datetime.now(UTC)
    return max(checkpoint.updated_at for checkpoint in page.checkpoints)


def _describe_lag(lag: Lag | None) -> dict[str, str]:
    """Return what the page shows of a lag: its "state", "text", and "why" it is not known. None: no answer yet."""
    if lag is None:
        return {"state": "asked", "text": "no answer yet", "why": ""}
    if lag.error is not None:
        return {"state": "unknown", "text": "no answer from the source", "why": pages.mask(lag.error)}
    if not lag.records and not lag.versions and not lag.gaps:
        return {"state": "even", "text": "up to date", "why": ""}
    parts = []
    if lag.records:
        parts.append(f"up to {count(lag.records, 'record')}")
    if lag.blocked_records:
        parts.append(f"{count(lag.blocked_records, 'record')} behind open transactions")
    if lag.versions:
        parts.append(count(lag.versions, "version"))
    if lag.gaps:
        parts.append(count(len(lag.gaps), "gap"))
    text = ", ".join(parts)
    if lag.since:
        text = f"{text}; complete until {formatting.age(lag.since)} ago"
    return {"state": "behind", "text": text, "why": ""}

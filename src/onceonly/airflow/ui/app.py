"""The app that Airflow mounts at /onceonly. Every route needs a login, by the app's own dependency."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse

from onceonly.airflow.ui import pages, queries
from onceonly.airflow.ui.access import ReaderDep, ViewerDep

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ASSETS = {"onceonly.css": "text/css", "onceonly.js": "text/javascript", "theme.js": "text/javascript"}

app = FastAPI(title="Onceonly", dependencies=[Depends(get_user)], openapi_url=None, docs_url=None, redoc_url=None)
_summaries = queries.Summaries()


@app.middleware("http")
async def guarded(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers.update(HEADERS)
    return response


@app.get("/static/{name}")
def asset(name: str) -> Response:
    if name not in ASSETS:
        raise HTTPException(404)
    return Response((files("onceonly.airflow.ui") / "static" / name).read_bytes(), media_type=ASSETS[name])


@app.get("/")
def pipelines(request: Request, viewer: ViewerDep) -> HTMLResponse:
    found = [_summaries.get(viewer.state, name, seq) for name, seq in viewer.pipelines().items()]
    return pages.render(request, "pipelines.html", pipelines=found, pending=queries.pending)


@app.get("/pipelines/{pipeline}")
def one_pipeline(request: Request, pipeline: str, viewer: ReaderDep, page: int = 1) -> HTMLResponse:
    summary = _summaries.get(viewer.state, pipeline, viewer.seq(pipeline))
    shown = queries.page(viewer.state, pipeline, summary.latest.epoch if summary.latest else 0, page)
    return pages.render(request, "pipeline.html", pipeline=summary, page=shown, may_act=viewer.may("PUT", pipeline))

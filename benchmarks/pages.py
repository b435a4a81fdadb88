"""The pages of the Airflow plugin with 10,000 checkpoints, over HTTP from a real api-server."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import httpx
from tests.integration.services.airflow_server import Server

from benchmarks import past
from benchmarks.results import Result, Row
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable.table import StateTable

PAGES = {
    "first page": "/pipelines/long",
    "last page": "/pipelines/long?page=200",
    "one checkpoint": "/pipelines/long/17",
    "all pipelines": "/",
}


def pages(folder: Path, epochs: int = 10_000, others: int = 40, rounds: int = 20) -> Result:
    """One pipeline with a long history beside others with a short one."""
    home = folder / "home"
    state = StateTable.make(str(home / "state"))
    past.write(state, [_pipeline("long")], epochs)
    past.write(state, [_pipeline(f"short_{number:02}") for number in range(others)], epochs // others)
    server = Server(folder / "airflow", {"ONCEONLY_HOME": str(home)})
    try:
        server.start()
        with server.login("adam") as user:
            times = {name: _times(user, path, rounds) for name, path in PAGES.items()}
    finally:
        server.stop()
    rows = [Row(page, "s", runs) for page, runs in times.items()]
    slowest = max(rows, key=lambda row: median(row.runs))
    return Result(
        "Pages in Airflow",
        f"First byte to last, over HTTP from an api-server: {epochs:,} checkpoints of one pipeline, {others} others.",
        [*rows, replace(slowest, measure="slowest kind of page")],
    )


def _times(user: httpx.Client, path: str, rounds: int) -> list[float]:
    user.get(path).raise_for_status()  # not counted: the first one after a start imports
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        user.get(path).raise_for_status()
        times.append(time.perf_counter() - started)
    return times


def _pipeline(name: str) -> Pipeline:
    sink = DeltaSink("s", path="s")
    return Pipeline(name=name, source=KafkaSource("t"), transform="m:f", sinks=[sink], mode="interval")

"""The pages of the Airflow plugin with 10,000 checkpoints, over HTTP from a real api-server."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
from tests.integration.airflow_server import Server

from benchmarks.history import generate
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable.table import StateTable

TARGET = 0.3  # seconds, of the median
PAGES = {
    "first page": "/pipelines/long",
    "last page": "/pipelines/long?page=200",
    "one checkpoint": "/pipelines/long/17",
    "all pipelines": "/",
}


@dataclass(frozen=True)
class Pages:
    """Seconds by page, first byte to last, as the client saw them."""

    name: str
    times: dict[str, list[float]]

    def __str__(self) -> str:
        met = all(median(times) <= TARGET for times in self.times.values())
        lines = [f"  {page}: {median(times):.3f} s, at most {max(times):.3f}" for page, times in self.times.items()]
        return "\n".join([self.name, *lines, f"  target ≤ {TARGET}: {'met' if met else 'NOT met'}"])


def pages(folder: Path, epochs: int = 10_000, others: int = 40, rounds: int = 20) -> Pages:
    """One pipeline with a long history beside others with a short one."""
    home = folder / "home"
    state = StateTable.make(str(home / "state"))
    generate(state, _pipeline("long"), "an-id", epochs)
    for number in range(others):
        generate(state, _pipeline(f"short_{number}"), "an-id", epochs // others)
    server = Server(folder / "airflow", {"ONCEONLY_HOME": str(home)})
    try:
        server.start()
        with server.login("adam") as user:
            times = {name: _times(user, path, rounds) for name, path in PAGES.items()}
    finally:
        server.stop()
    return Pages(f"pages of a pipeline with {epochs:,} checkpoints beside {others}, {rounds} requests each", times)


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

"""A process's session on a Connect server: all its threads find the same one, also after one has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from codes import raises

from onceonly.dev.services.spark import TOKEN, SparkConnect
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings
from onceonly.spark import connect
from onceonly.spark.session import session

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PySpark knows of no session, as in a process that has just begun."""
    from pyspark.sql.connect.session import SparkSession

    monkeypatch.setattr(SparkSession, "_active_session", threading.local())
    monkeypatch.setattr(SparkSession, "_default_session", None)
    yield
    if ours := SparkSession._get_default_session():
        ours.stop()


def check_all_threads_find_the_same(settings: Settings) -> None:
    first = session(settings)
    with ThreadPoolExecutor(1) as another:
        assert another.submit(session, settings).result() is first
    assert session(settings) is first
    assert first.range(3).count() == 3


def check_a_session(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    connect.require_session(settings.spark_remote or "", settings.home)


def have_a_token_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as wrong, raises(InvalidPipeline, "spark-token-refused"):
        wrong.setenv(TOKEN, "not-the-token")
        session(settings)


@pytest.mark.parametrize("before", [check_a_session, have_a_token_refused])
def test_after_a_session_has_ended_all_threads_find_the_same(
    before: Callable[[Settings, pytest.MonkeyPatch], None],
    spark_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings.from_env({"SPARK_REMOTE": spark_server, "ONCEONLY_HOME": str(tmp_path)})
    before(settings, monkeypatch)
    check_all_threads_find_the_same(settings)


class SameToken(SparkConnect):
    """A server that keeps its token when it starts again, as one that somebody else has configured."""

    def _draw_token(self) -> None:
        if self.token() is None:
            super()._draw_token()


def test_after_the_server_has_started_again_all_threads_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = start_server(tmp_path, 0)
    server = SameToken(tmp_path, port)
    monkeypatch.setenv(TOKEN, server.token() or "")
    settings = Settings.from_env({"SPARK_REMOTE": server.address(port), "ONCEONLY_HOME": str(tmp_path / "home")})
    try:
        before = session(settings)
        assert before.range(3).count() == 3
        server.daemon.stop()
        assert start_server(tmp_path, port) == port
        with pytest.raises(Exception, match="session"):
            before.range(3).count()
        check_all_threads_find_the_same(settings)
        session(settings).stop()
    finally:
        server.daemon.stop()


def start_server(folder: Path, port: int) -> int:
    """Start it, and return its port."""
    server = SameToken(folder, port)
    server.launch()
    server.wait()
    running = server.daemon.running()
    assert running
    return running.port

"""What the pages say of checkpoints on which no run works any more, and of pipelines that have no checkpoint yet."""

from __future__ import annotations

import html
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from integration.projects.past import SECOND, Past
from integration.services import chromium
from integration.services.airflow_server import Server

from onceonly.checkpoint.offsets import Interval
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.owners import airflow_owner
from onceonly.statetable.table import StateTable

pytestmark = [pytest.mark.integration]
browser = pytest.mark.skipif(chromium.BINARY is None, reason="Chromium is not installed: apt-get install chromium")
NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
DAG_FILE = """
from airflow.sdk import DAG, BaseOperator

from onceonly.airflow import checkpoint_dag, recovery_dag
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import KafkaSource

settle = recovery_dag("settle_it")
with DAG("sales", schedule=None):
    BaseOperator(task_id="plan")
new = Pipeline(name="returns", source=KafkaSource("t"), transform="a:b", sinks=[FileSink("out", path="lake/returns")])
built = checkpoint_dag(new, schedule=None, dag_id="returns_hourly")
"""
GONE, FAILED, GREEN, ALIVE = 1, 2, 3, 4  # epochs, by what has become of their runs
PARTLY_CLEARED = "its run 'green' has ended without a commit, although Airflow calls it a success"


@dataclass
class Site:
    """A server whose recovery DAG no scheduler runs."""

    server: Server
    state: StateTable

    def update(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.server.folder / "airflow.db", timeout=60)) as database, database:
            database.execute(statement, values)

    def page(self, path: str, user: str = "adam") -> str:
        with self.server.login(user) as client:
            return " ".join(html.unescape(client.get(path).text).split())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("ended")
    state = StateTable.make(str(folder / "home" / "state"))
    sales(state).write()
    env = {"ONCEONLY_HOME": str(folder / "home"), "ONCEONLY_KAFKA_BOOTSTRAP": "127.0.0.1:1"}
    server = Server(folder / "airflow", env, {"dags.py": DAG_FILE})
    try:
        server.start()
        site = Site(server, state)
        for run_id, run_state in (("failed", "failed"), ("green", "success"), ("alive", "running")):
            server.trigger("sales", run_id)
            site.update("UPDATE dag_run SET state = ? WHERE run_id = ?", run_state, run_id)
        yield site
    finally:
        server.stop()


def sales(state: StateTable) -> Past:
    sinks = [FileSink("out", path="lake/sales")]
    source = KafkaSource("sales")
    past = Past(state, Pipeline(name="sales", source=source, transform="a:b", sinks=sinks, mode="interval"))
    for epoch, run_id in ((GONE, "deleted"), (FAILED, "failed"), (GREEN, "green"), (ALIVE, "alive")):
        day, at = NOW - (9 - epoch) * DAY, NOW - (9 - epoch) * 60 * SECOND
        owner = airflow_owner("sales", run_id)
        past.plan(epoch, at, owner, {0: (epoch, epoch + 1)}, Interval(day, day + DAY))
        past.claim(epoch, at + SECOND)
        if epoch == GREEN:
            past.stage(epoch, at + 2 * SECOND, {"out": {"kind": "files", "rows": 7, "files": 1}})
    return past


def test_a_checkpoint_without_a_run_says_so_and_what_becomes_of_it(site: Site) -> None:
    site.update("UPDATE dag SET is_paused = 1 WHERE dag_id = 'settle_it'")
    pages = {epoch: site.page(f"/pipelines/sales/{epoch}") for epoch in (GONE, FAILED, GREEN, ALIVE)}
    assert "Nobody works on sales epoch 1, which is planned: its run 'deleted' no longer exists" in pages[GONE]
    assert 'deleted <span class="hint nowrap">(no longer exists)</span>' in pages[GONE]
    assert "runs/deleted" not in pages[GONE], "a link to it would lead nowhere"
    assert "its run 'failed' has failed. Recovery aborts it" in pages[FAILED] and '/runs/failed"' in pages[FAILED]
    assert f"{PARTLY_CLEARED}. What is staged is not published: recovery publishes it." in pages[GREEN]
    for epoch in (GONE, FAILED, GREEN):
        assert "The recovery DAG 'settle_it' is paused: airflow dags unpause settle_it." in pages[epoch]
        assert 'data-action="/onceonly/pipelines/sales/recover"' in pages[epoch]
    assert "Nobody works" not in pages[ALIVE] and "run ended" not in pages[ALIVE]


def test_lists_show_what_waits_for_recovery(site: Site) -> None:
    site.update("UPDATE dag SET is_paused = 1 WHERE dag_id = 'settle_it'")
    overview, pipeline = site.page("/"), site.page("/pipelines/sales")
    assert "3 checkpoints wait for recovery, and the recovery DAG settle_it is paused" in overview
    assert overview.count(">run ended</span>") == 3
    assert pipeline.count("Nobody works on sales epoch") == 3 * 3, "a notice, and titles of the badges above and below"
    site.update("UPDATE dag SET is_paused = 0 WHERE dag_id = 'settle_it'")
    assert "wait for recovery" not in site.page("/")
    assert "The next run of the recovery DAG 'settle_it' does it." in site.page(f"/pipelines/sales/{GREEN}")
    site.update("UPDATE dag SET is_stale = 1 WHERE dag_id = 'settle_it'")
    assert "This Airflow has no recovery DAG" in site.page(f"/pipelines/sales/{GREEN}")
    site.update("UPDATE dag SET is_stale = 0 WHERE dag_id = 'settle_it'")


@pytest.mark.parametrize("run_id", ["green", "deleted"])
def test_the_tab_of_a_run_says_that_it_has_published_nothing(site: Site, run_id: str) -> None:
    with site.server.login("adam") as adam:
        address = f"/runs?dag_id=sales&run_id={quote(run_id)}"
        tab = adam.get(address, follow_redirects=True).text
    assert "Nobody works on sales epoch" in tab


def test_a_plan_that_has_never_succeeded_is_listed_with_its_task(site: Site) -> None:
    link = "/dags/returns_hourly/runs/first/tasks/plan"
    set_plan = "UPDATE task_instance SET state = ?, start_date = ? WHERE dag_id = 'returns_hourly' AND task_id = 'plan'"
    assert "returns" not in site.page("/")
    site.server.trigger("returns_hourly", "first")
    for state in ("up_for_retry", "failed"):
        site.update(set_plan, state, f"{NOW - DAY:%Y-%m-%d %H:%M:%S.%f}")
        page = site.page("/")
        assert '<th scope="row">returns</th>' in page and "plan has never succeeded" in page and link in page
    assert "returns" not in site.page("/", "olga"), "who may not see the DAG does not see this"
    site.update(set_plan, "success", f"{NOW:%Y-%m-%d %H:%M:%S.%f}")
    assert "returns" not in site.page("/")
    site.update(set_plan, "failed", f"{NOW - DAY:%Y-%m-%d %H:%M:%S.%f}")


@browser
@pytest.mark.parametrize("width", [1280, 420])
def test_people_find_the_way_from_the_overview_to_what_to_do(
    site: Site, width: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = Path(os.environ.get("PICTURES") or tmp_path_factory.mktemp("pictures"))
    site.update("UPDATE dag SET is_paused = 1 WHERE dag_id = 'settle_it'")
    with chromium.opened() as tab:
        tab.login(site.server.url, site.server.token("adam"))
        tab.resize(width, 900)
        tab.open(f"{site.server.url}/onceonly/")
        tab.screenshot(folder / f"ended-pipelines-{width}.png", width, 900)
        tab.open(f"{site.server.url}/onceonly/pipelines/sales")
        tab.screenshot(folder / f"ended-pipeline-{width}.png", width, 1600)
        tab.value("[...document.querySelectorAll('#held a')].find((a) => a.textContent === 'epoch 3').click()")
        tab.wait("location.pathname.endsWith('/sales/3') && document.readyState === 'complete'")
        assert PARTLY_CLEARED in tab.text()
        tab.screenshot(folder / f"ended-checkpoint-{width}.png", width, 1200)
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert tab.errors == []

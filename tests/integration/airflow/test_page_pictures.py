"""Every page at 1280 and at 420 pixels, light and dark: no page scrolls sideways, and a table that does shows it.

The pictures are left in the folder that PICTURES names, for people to look at:

    PICTURES=pictures pytest tests/integration/airflow/test_page_pictures.py
"""

from __future__ import annotations

import html
import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from integration.airflow.everything_shown import (
    ABORTED,
    BAD,
    COMMITTING,
    DOUBTFUL,
    FIRST,
    HELD,
    HOUR,
    MISSING,
    PASSED,
    REFUSED,
    REPLACED,
    SKIPPED,
    UNFIT,
    Everything,
)
from integration.services import chromium
from integration.services.airflow_server import Server

from onceonly.runtime import owners
from onceonly.statetable.table import Snapshot, StateTable
from onceonly.testing.fakes import FakeParts
from onceonly.verification.archive import Archive
from onceonly.verification.encoding import to_json
from onceonly.verification.verify import Verifier

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(chromium.BINARY is None, reason="Chromium is not installed: apt-get install chromium"),
]
RUN = f"scheduled__{FIRST + (HELD + 2) * HOUR:%Y-%m-%dT%H}"
RUN_COMMITTING = f"scheduled__{FIRST + (COMMITTING + 2) * HOUR:%Y-%m-%dT%H}"
PAGES = {
    "pipelines": "",
    "pipeline": "pipelines/flights_daily",
    "rewound": "pipelines/orders",
    "held": f"pipelines/flights_daily/{HELD}",
    "in-doubt": f"pipelines/flights_daily/{DOUBTFUL}",
    "aborted": f"pipelines/flights_daily/{ABORTED}",
    "bad-records": f"pipelines/orders/{BAD}",
    "skipped": f"pipelines/orders/{SKIPPED}",
    "replaced": f"pipelines/flights_daily/{REPLACED}",
    "waiting": "pipelines/invoices",
    "refused": f"pipelines/invoices/{REFUSED}",
    "to-be-staged-again": f"pipelines/invoices/{UNFIT}",
    "missing-in-a-target": f"pipelines/invoices/{MISSING}",
    "run": f"runs?dag_id=flights_daily&run_id={quote(RUN)}",
    "docs": f"pipelines/flights_daily/{HELD}/docs/1/index.html",
    "missing": "pipelines/no_such",
    "verify": "verifications",
    "verification": "pipelines/orders/verification",
    "never-verified": "pipelines/invoices/verification",
}
NARROW = ("bad-records", "docs", "missing", "never-verified", "run", "skipped")  # their tables fit a telephone
DAG_FILE = """
from airflow.sdk import DAG, BaseOperator

from onceonly.airflow import recovery_dag

settle = recovery_dag()
for name in ("flights_daily", "invoices"):
    with DAG(name, schedule=None):
        BaseOperator(task_id="plan") >> BaseOperator(task_id="stage") >> BaseOperator(task_id="commit")
"""
AT_WORK, ENDED = "running", "failed"
RUN_STATES = {10: ENDED, 11: AT_WORK, 12: ENDED, 13: AT_WORK, HELD: ENDED}  # by epoch; the others are green


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pictures")
    home = folder / "home"
    state = StateTable.make(str(home / "state"))
    Everything(state, broker, home).write()
    Archive(state.uri).append(to_json(Verifier(lambda: Snapshot(state.uri), FakeParts(folder)).verify("orders")))
    env = {"ONCEONLY_HOME": str(home), "ONCEONLY_KAFKA_BOOTSTRAP": broker}
    server = Server(folder / "airflow", env, {"flights_daily.py": DAG_FILE})
    try:
        server.start()
        for name in ("flights_daily", "invoices"):
            add_runs(server, state, name)
        with closing(sqlite3.connect(server.folder / "airflow.db", timeout=60)) as database, database:
            database.execute("UPDATE dag SET is_paused = 0")
        yield server
    finally:
        server.stop()


def add_runs(server: Server, state: StateTable, name: str) -> None:
    """The runs that own the checkpoints, as a scheduler would have left them."""
    states: dict[str, str] = {}
    for checkpoint in state.view(name).rows.checkpoints(range(1, state.view(name).head.epoch + 1)).values():
        run = owners.parse_airflow_run(checkpoint.owner)
        assert run
        state_word = RUN_STATES.get(checkpoint.epoch, "success") if name == "flights_daily" else "success"
        states[run[1]] = "success" if run[1] in states else state_word
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}"
    for run_id, run_state in states.items():
        server.trigger(name, "by-hand")  # the API gives nobody the name of a scheduled run
        with closing(sqlite3.connect(server.folder / "airflow.db", timeout=60)) as database, database:
            for table in ("dag_run", "task_instance"):
                database.execute(f"UPDATE {table} SET run_id = ? WHERE run_id = 'by-hand'", [run_id])
            database.execute("UPDATE dag_run SET state = ? WHERE run_id = ?", [run_state, run_id])
            if run_state == AT_WORK:
                begun = "UPDATE task_instance SET state = 'running', start_date = ? WHERE run_id = ? AND task_id = ?"
                database.execute(begun, [now, run_id, "commit" if run_id == RUN_COMMITTING else "stage"])


@pytest.fixture(scope="module")
def tab(server: Server) -> Iterator[chromium.Chromium]:
    with chromium.opened() as opened:
        opened.login(server.url, server.token("adam"))
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("PICTURES") or tmp_path_factory.mktemp("pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [1280, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_fits_its_window(
    server: Server, tab: chromium.Chromium, folder: Path, page: str, width: int, scheme: str
) -> None:
    tab.scheme(scheme)
    tab.resize(width, 900)
    tab.open(f"{server.url}/onceonly/{PAGES[page]}")
    tab.wait(
        "[...document.querySelectorAll('[data-lag]')].every((each) => (each.dataset.state ?? 'asked') !== 'asked')"
    )
    tab.screenshot(folder / f"{page}-{width}-{scheme}.png", width, min(tab.value(HEIGHT), 2_400))
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value(CUT_OFF) == []
    wide = tab.value(WIDE)
    assert wide or width > 500 or page in NARROW
    assert all(shadow for _, shadow in wide)


HEIGHT = "document.documentElement.scrollHeight"
CUT_OFF = """
[...document.querySelectorAll("body *")].filter((each) => each.checkVisibility() &&
  each.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !each.closest(".scroll, pre, .skip"))
  .map((each) => each.outerHTML.slice(0, 200))
"""
WIDE = """
[...document.querySelectorAll(".scroll")].filter((each) => each.scrollWidth > each.clientWidth).map((each) =>
  [each.ariaLabel, getComputedStyle(each).backgroundImage.includes("gradient")])
"""


def test_every_column_of_the_overview_is_in_sight(server: Server, tab: chromium.Chromium) -> None:
    tab.resize(1280, 900)
    tab.open(f"{server.url}/onceonly/")
    tab.wait("document.querySelectorAll('[data-lag]').length === 4")
    assert tab.value(WIDE) == []


@pytest.mark.parametrize("page", ["pipeline", "rewound", "held"])
def test_no_line_ends_between_a_number_and_its_unit(server: Server, tab: chromium.Chromium, page: str) -> None:
    tab.resize(800, 900)
    tab.open(f"{server.url}/onceonly/{PAGES[page]}")
    assert tab.value("document.querySelectorAll('td.number').length")
    assert tab.value(BROKEN) == []


def test_no_line_ends_within_an_option_of_a_command(server: Server, tab: chromium.Chromium) -> None:
    for width in (1280, 800, 420):
        tab.resize(width, 900)
        tab.open(f"{server.url}/onceonly/pipelines/invoices")
        tab.wait("document.querySelector('#gaps .nowrap')")
        assert tab.value(BROKEN_OPTIONS) == []
        assert "--reprocess-behavior completed" in tab.text()


def test_the_definition_is_json(server: Server, tab: chromium.Chromium) -> None:
    tab.open(f"{server.url}/onceonly/pipelines/flights_daily/{HELD}")
    shown = json.loads(tab.value("document.querySelector('main > details pre').textContent"))
    assert shown["name"] == "flights_daily"


ROWS_OF_TEXT = """
var rowsOf = (node) => {
  const range = document.createRange();
  range.selectNodeContents(node);
  return new Set([...range.getClientRects()].map((each) => Math.round(each.top))).size;
};
"""
BROKEN = f"""
{ROWS_OF_TEXT}
[...document.querySelectorAll("td.number, td.observed")].filter((each) => rowsOf(each) > 1)
  .map((each) => each.textContent)
"""
BROKEN_OPTIONS = f"""
{ROWS_OF_TEXT}
[...document.querySelectorAll(".notice")].flatMap((each) => [...each.querySelectorAll(".nowrap")])
  .filter((each) => rowsOf(each) > 1).map((each) => each.textContent)
"""


def test_a_table_stays_where_it_was_scrolled_to(server: Server, tab: chromium.Chromium) -> None:
    """The page is kept fresh, and does not take a reader back to the left for it."""
    tab.resize(420, 900)
    tab.open(f"{server.url}/onceonly/pipelines/flights_daily")
    tab.value("document.querySelector('#checkpoints .scroll').scrollLeft = 150")
    tab.value("window.before = document.querySelector('#checkpoints')")
    tab.value("served.delete('checkpoints')")  # as if the server's answer differed
    tab.wait("document.querySelector('#checkpoints') !== window.before")
    assert tab.value("document.querySelector('#checkpoints .scroll').scrollLeft") == 150


def test_a_browser_gets_a_page_and_a_program_gets_json(server: Server) -> None:
    with server.login("adam") as adam, server.client(None) as nobody:
        for address, status in (("no_such", 404), ("flights_daily/99", 404), ("flights_daily?page=last", 422)):
            page = adam.get(f"/pipelines/{address}", headers={"Accept": "text/html,*/*"})
            assert (page.status_code, page.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
            assert "All pipelines" in page.text
            assert adam.get(f"/pipelines/{address}").headers["Content-Type"] == "application/json"
        stranger = nobody.get("/pipelines/flights_daily", headers={"Accept": "text/html"})
        assert stranger.status_code == 401
        assert "flights_daily" not in stranger.text and "not logged in" in stranger.text


def test_data_docs_are_served_to_who_may_see_the_pipeline(server: Server) -> None:
    docs = f"/pipelines/flights_daily/{HELD}/docs/1"
    with server.login("vera") as vera, server.login("olga") as olga, server.client(None) as nobody:
        page = vera.get(f"/pipelines/flights_daily/{HELD}").text
        assert f'href="/onceonly{docs}/delays.html">The values that failed' in page
        assert "file:///" not in page
        served = vera.get(f"{docs}/index.html")
        assert "37 of 4,211 rows" in served.text
        assert "script-src" not in served.headers["Content-Security-Policy"]
        assert "sandbox" in served.headers["Content-Security-Policy"]
        values = vera.get(f"{docs}/delays.html")
        assert "Great Expectations" in values.text
        assert values.url.join(re.findall('href="([^"]*)">Back to', values.text)[0]).path.endswith(
            f"flights_daily/{HELD}"
        )
        assert [user.get(f"{docs}/index.html").status_code for user in (olga, nobody)] == [404, 401]
        for wrong in ("late.html", "nothing.html", "..%2Findex.html", "%2e%2e%2findex.html", ".."):
            assert vera.get(f"{docs}/{wrong}").status_code == 404, wrong
        assert vera.get(f"/pipelines/flights_daily/{HELD}/docs/2/index.html").status_code == 404


def test_a_first_publication_replaces_nothing(server: Server) -> None:
    """ "Replaced" is said of rows that a later checkpoint has taken out, and of nothing else."""
    with server.login("vera") as vera:
        page = vera.get(f"/pipelines/flights_daily/{PASSED}").text
    assert "new transaction late</span>" in page
    assert "replaced" not in page.partition("<main")[2].partition("<details")[0].lower()


def test_an_empty_project_says_what_to_do(tmp_path: Path) -> None:
    """Also where the tasks' state table is another one."""
    server = Server(tmp_path / "airflow", {"ONCEONLY_HOME": str(tmp_path / "home")})
    try:
        server.start()
        with server.login("adam") as adam:
            page = adam.get("/").text
            assert f"{tmp_path / 'home'}/state" in page and "unpause its DAG" in page and "ONCEONLY_*" in page
            log = tmp_path / "home" / "state" / "_delta_log"
            log.mkdir(parents=True)
            (log / f"{0:020}.json").write_text("{damaged")
            damaged = adam.get("/", headers={"Accept": "text/html"})
    finally:
        server.stop()
    assert damaged.status_code == 503
    assert "store-unreachable" in damaged.text and '<a href="">Try again</a>' in damaged.text


def test_what_waits_for_a_person_has_its_reason_and_way_out(server: Server) -> None:
    with server.login("adam") as adam:
        everywhere = adam.get("/").text
        assert '<span class="state refused">refused</span>' in everywhere and ">stage again<" in everywhere
        pipeline, refused, unfit = (
            html.unescape(adam.get(f"/pipelines/invoices{epoch}").text) for epoch in ("", f"/{REFUSED}", f"/{UNFIT}")
        )
    for page in (pipeline, refused):
        assert "refuses it until a person acts (target-missing): there is no topic 'late-flights'" in page
        assert 'data-action="/onceonly/pipelines/invoices/recover"' in page
    for page in (pipeline, unfit):
        assert "onceonly run FILE.py:NAME --interval" in page and "is missing until then" in page
        assert "to be staged again, 1 of 3 times" in page
    assert "by ann: a quiet day (ended with its attempt, and publishes nothing)" in unfit

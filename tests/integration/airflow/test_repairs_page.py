"""What the page of a checkpoint shows of its repairs, and the run that it starts for one, on a real api-server."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from integration.projects.past import SECOND, Past
from integration.services import chromium
from integration.services.airflow_server import Server

from onceonly.checkpoint.offsets import Interval
from onceonly.checkpoint.transaction_names import manifest_path
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.owners import airflow_owner
from onceonly.sinks.files import manifest
from onceonly.sinks.files.handle import FileHandle, staging_of
from onceonly.statetable.table import StateTable

pytestmark = [pytest.mark.integration]
browser = pytest.mark.skipif(chromium.BINARY is None, reason="Chromium is not installed: apt-get install chromium")

DAY = timedelta(days=1)
MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
ENDED = datetime(2024, 1, 1, tzinfo=UTC)
ACT = {"X-Onceonly-Action": "1"}
DAG_FILE = """
from airflow.sdk import DAG, BaseOperator

with DAG("NAME", schedule=None, **OPTIONS):
    BaseOperator(task_id="plan")
"""
LATE = KafkaSink(name="late", topic="late-flights")
NEW = DeltaSink("new", path="lake/by_carrier")


@dataclass
class Site(Server):
    """The server, and the state table that it shows."""

    pasts: dict[str, Past] = field(default_factory=dict)

    @property
    def state(self) -> StateTable:
        return StateTable(str(self.folder.parent / "home" / "state"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("repairs")
    state = StateTable.make(str(folder / "home" / "state"))
    pasts = {name: history(state, name) for name in ("delays", "clicked", "by_hand", "ended")} | {
        "totals": chain(state)
    }
    for past in pasts.values():
        past.write()
    files = {f"{name}.py": dag_file(name) for name in ("delays", "clicked", "totals")}
    files["ended.py"] = dag_file("ended", end_date=ENDED)
    env = {"ONCEONLY_HOME": str(folder / "home"), "ONCEONLY_KAFKA_BOOTSTRAP": "127.0.0.1:1"}
    server = Site(folder / "airflow", env, files, pasts=pasts)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def dag_file(name: str, **options: Any) -> str:
    return "import datetime\n" + DAG_FILE.replace("NAME", name).replace("OPTIONS", repr(options))


def history(state: StateTable, name: str) -> Past:
    """Two days, of which the first was corrected beside its topic; a sink is new since the second."""
    lake = FileSink("lake", path=f"lake/{name}")
    past = Past(state, pipeline(name, lake, LATE, mode="interval"))
    write(past, 1, MONDAY + DAY, Interval(MONDAY, MONDAY + DAY), lake=120, late=7)
    body = {"replaces": 1, "request": "a run", "repair": wish("ann", "the rates of Monday were wrong", "lake")}
    write(past, 2, MONDAY + 2 * DAY, Interval(MONDAY, MONDAY + DAY), body, lake=118)
    past.pipeline = pipeline(name, lake, LATE, NEW, mode="interval")
    write(past, 3, MONDAY + 2 * DAY, Interval(MONDAY + DAY, MONDAY + 2 * DAY), lake=131, late=4, new=131)
    return past


def chain(state: StateTable) -> Past:
    lake = FileSink("lake", path="lake/totals")
    past = Past(state, pipeline("totals", lake))
    write(past, 1, MONDAY, lake=10)
    past.pipeline = pipeline("totals", lake, NEW)
    write(past, 2, MONDAY + DAY, lake=12, new=12)
    return past


def pipeline(name: str, *sinks: Any, mode: Any = "chained") -> Pipeline:
    source = KafkaSource("flights")
    return Pipeline(name=name, source=source, transform=f"jobs.{name}:clean", sinks=sinks, mode=mode)


def wish(who: str, reason: str, *only: str) -> dict[str, Any]:
    return {"only": list(only), "of": 1, "who": who, "reason": reason}


def write(
    past: Past, epoch: int, at: datetime, interval: Interval | None = None, repair: Any = None, **rows: int
) -> None:
    owner = airflow_owner(past.pipeline.name, f"manual__{epoch}")
    if past.pipeline.name == "by_hand":
        owner = "cli:laptop:12:34"
    past.plan(epoch, at, owner, {0: (epoch, epoch + 1)}, interval, more=repair or {})
    past.claim(epoch, at + SECOND)
    handles: dict[str, Any] = {sink: {"rows": number, "kind": "?"} for sink, number in rows.items()}
    handles["lake"] = publish_files(past, epoch, rows["lake"])
    past.stage(epoch, at + 2 * SECOND, {sink: handles[sink] for sink in rows})
    past.decide(epoch, at + 3 * SECOND)
    past.publish(epoch, at + 4 * SECOND, *rows)
    past.commit(epoch, at + 5 * SECOND)


def publish_files(past: Past, epoch: int, rows: int) -> dict[str, Any]:
    """Write the manifest of a publication, as a replacement looks for it; return its handle."""
    txn = past.known(epoch).transaction("lake")
    target = Path(past.state.uri).parent / "lake" / past.pipeline.name
    places = {"target": str(target), "folder": f"{staging_of(str(target))}/{txn.name}/data"}
    handle = {"kind": "files", "format": "json", "rows": rows, "bytes": 0, "files": [], "txn": txn.name, **places}
    handle["manifest"] = manifest_path(txn)
    file = target / handle["manifest"]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(manifest.to_text(manifest.build(FileHandle.parse("lake", handle), epoch)))
    return handle


def runs_of(server: Site, dag_id: str) -> list[dict[str, Any]]:
    """The runs that Airflow itself knows."""
    header = {"Authorization": f"Bearer {server.token('adam')}"}
    answer = httpx.get(f"{server.url}/api/v2/dags/{dag_id}/dagRuns", headers=header)
    return list(answer.json()["dag_runs"])


def number_shown(client: httpx.Client, page: str) -> int:
    """The number that the page's buttons send."""
    return int(client.get(page).text.split('data-seen="')[1].split('"')[0])


def ask(client: httpx.Client, page: str, reason: str = "late rates", **body: Any) -> httpx.Response:
    shown = {"seen": number_shown(client, page)} if "seen" not in body else {}
    return client.post(f"{page}/repair", headers=ACT, json={"reason": reason, **shown, **body})


def test_a_page_shows_what_is_in_force_in_each_sink_and_who_asked_for_it(server: Site) -> None:
    with server.login("vera") as vera:
        page = " ".join(vera.get("/pipelines/delays/1").text.split())
        plain = vera.get("/pipelines/totals/2").text
        listed = " ".join(vera.get("/pipelines/delays").text.split())
    assert '<span class="state committed">in force</span> 118 rows in place of epoch 1' in page
    assert '<span class="state committed">in force</span> 7 rows' in page
    assert "kept epoch 1" in page
    assert "ann: the rates of Monday were wrong" in page
    assert "No rows of these records are in force in sink new." in page
    assert "onceonly run dags/delays.py:delays --interval 2026-11-23T00:00:00Z 2026-11-24T00:00:00Z --only new" in page
    assert "data-action" not in page
    assert "Sink by sink <span" not in plain
    assert "2026-11-23 00:00 to 2026-11-24 00:00, lake only" in listed
    assert 'title="replaced, not in every sink, by epoch 2"' in listed


def test_a_correction_is_called_by_the_checkpoint_whose_page_it_is_on(server: Site) -> None:
    with server.login("adam") as adam:
        first, repaired = adam.get("/pipelines/delays/1").text, adam.get("/pipelines/delays/2").text
    assert 'data-title="Correct delays epoch 1 (2026-11-23 00:00 to 2026-11-24 00:00)"' in first
    assert 'data-title="Correct delays epoch 2 (2026-11-23 00:00 to 2026-11-24 00:00)"' in repaired
    assert "Epoch 2 has corrected epoch 1: their records are the same." in repaired and "has corrected" not in first


def test_a_correction_is_a_run_whose_conf_says_what_was_chosen(server: Site) -> None:
    before = sum(server.state.versions().values())
    with server.login("adam") as adam:
        answer = ask(adam, "/pipelines/delays/3", keep=["late", "new"])
        again = ask(adam, "/pipelines/delays/3", keep=["late", "new"])
    run = runs_of(server, "delays")[-1]
    assert answer.status_code == 200, answer.text
    assert answer.json()["done"].startswith(f"Run '{run['dag_run_id']}' is queued. It writes lake.")
    assert answer.json()["run"].startswith("/dags/delays/runs/repair__delays-3-")
    interval = ["2026-11-24T00:00:00+00:00", "2026-11-25T00:00:00+00:00"]
    assert run["conf"] == {"keep": ["late", "new"], "reprocess": True, "interval": interval, "reason": "late rates"}
    assert (run["data_interval_start"], run["data_interval_end"]) == ("2026-11-24T00:00:00Z", "2026-11-25T00:00:00Z")
    assert run["triggering_user_name"] == "adam"
    assert (again.status_code, again.json()["code"]) == (409, "asked-before")
    assert len(runs_of(server, "delays")) == 1
    assert sum(server.state.versions().values()) == before, "the plan task of the run decides"
    (audited,) = [extra for who, dag, extra in audit(server) if dag == "delays"][:1]
    assert (audited["keep"], audited["reason"], audited["epoch"]) == (["late", "new"], "late rates", 3)


def audit(server: Site) -> list[tuple[str, str, dict[str, Any]]]:
    query = "SELECT owner, dag_id, extra FROM log WHERE event = 'onceonly_repair' ORDER BY id"
    with closing(sqlite3.connect(server.folder / "airflow.db")) as database:
        return [(who, dag, json.loads(extra)) for who, dag, extra in database.execute(query)]


def test_a_run_of_a_dag_that_has_ended_is_before_its_end(server: Site) -> None:
    """After it, Airflow would make no tasks, and say that the run has succeeded."""
    with server.login("adam") as adam:
        answers = [ask(adam, "/pipelines/ended/1", reason, only=["new"]) for reason in ("once", "twice")]
    assert [answer.status_code for answer in answers] == [200, 200], [answer.text for answer in answers]
    dates = {datetime.fromisoformat(run["logical_date"]) for run in runs_of(server, "ended")}
    assert len(dates) == 2
    assert all(ENDED - timedelta(seconds=1) < date <= ENDED for date in dates)
    assert [covered(run) for run in runs_of(server, "ended")] == [Interval(MONDAY, MONDAY + DAY)] * 2


def covered(run: dict[str, Any]) -> Interval:
    """What the plan task of that run makes of it, long after the run was asked for."""
    from airflow.sdk import CronDataIntervalTimetable

    from onceonly.airflow import intervals

    names = ("logical_date", "data_interval_start", "data_interval_end", "run_after", "start_date")
    times: dict[str, Any] = {name: run[name] and datetime.fromisoformat(run[name]) for name in names}
    dag_run = SimpleNamespace(dag_id=run["dag_id"], run_type=run["run_type"], conf=run["conf"], **times)
    dag = SimpleNamespace(timetable=CronDataIntervalTimetable("@daily", timezone="UTC"))
    return intervals.find_covered("ended", {**times, "dag": dag, "dag_run": dag_run}, lambda span: False).interval


def test_a_chain_is_completed_by_the_number_of_its_checkpoint(server: Site) -> None:
    with server.login("adam") as adam:
        answer = ask(adam, "/pipelines/totals/1", only=["new"])
    assert answer.status_code == 200, answer.text
    (run,) = runs_of(server, "totals")
    assert run["conf"] == {"only": ["new"], "epoch": 1, "reason": "late rates"}
    assert (run["logical_date"], run["data_interval_start"]) == (None, None)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"seen": 1}, "seen-outdated"),
        ({"seen": None}, "seen-outdated"),
        ({}, "rows-not-retractable"),
        ({"keep": ["nowhere"]}, "no-such-sink"),
        ({"keep": ["late"], "only": ["new"]}, "options-conflict"),
        ({"only": ["lake"]}, "nothing-to-repair"),
    ],
)
def test_what_cannot_be_starts_no_run(server: Site, body: dict[str, Any], code: str) -> None:
    with server.login("adam") as adam:
        answer = ask(adam, "/pipelines/clicked/1", "no", **body)
    assert (answer.status_code, answer.json().get("code")) == (409, code)
    assert [run for run in runs_of(server, "clicked") if run["conf"]["reason"] == "no"] == []


def test_who_may_not_start_runs_and_who_came_from_elsewhere_start_none(server: Site) -> None:
    with server.login("vera") as vera, server.login("adam") as adam:
        body = {"reason": "mine", "only": ["new"], "seen": number_shown(adam, "/pipelines/clicked/1")}
        refused = vera.post("/pipelines/clicked/1/repair", headers=ACT, json=body)
        foreign = adam.post("/pipelines/clicked/1/repair", json=body)
        by_hand = ask(adam, "/pipelines/by_hand/1", only=["new"], seen=body["seen"])
        assert "data-choices" not in adam.get("/pipelines/by_hand/1").text
    assert (refused.status_code, foreign.status_code) == (403, 403)
    assert (by_hand.status_code, by_hand.json()["code"]) == (409, "no-dag-to-run")
    assert [run for run in runs_of(server, "clicked") if run["conf"]["reason"] == "mine"] == []


# ---- in a browser


@pytest.fixture(scope="module")
def tab(server: Site) -> Iterator[chromium.Chromium]:
    with chromium.opened() as opened:
        yield opened


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("PICTURES") or tmp_path_factory.mktemp("pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@browser
def test_a_person_completes_a_sink_and_sees_the_repair_go_on(
    server: Site, tab: chromium.Chromium, pictures: Path
) -> None:
    tab.login(server.url, server.token("adam"))
    tab.open(f"{server.url}/onceonly/pipelines/clicked/1")
    tab.screenshot(pictures / "story.png", 1280, 1400)
    tab.value("[...document.querySelectorAll('button')].find((each) => each.textContent === 'Complete new').click()")
    tab.wait("document.querySelector('dialog[open]')")
    assert tab.value("document.getElementById('ask-choices').hidden")
    tab.type("its past")
    tab.screenshot(pictures / "complete.png")
    tab.value("document.getElementById('ask-yes').click()")
    tab.wait("document.getElementById('ask-answer').textContent.includes('It writes new.')")
    assert tab.value("document.querySelector('#ask-answer a').pathname").startswith("/dags/clicked/runs/repair__")
    assert tab.value("document.getElementById('ask-no').textContent") == "Close"
    tab.screenshot(pictures / "started.png")
    (run,) = [run for run in runs_of(server, "clicked") if run["conf"]["reason"] == "its past"]
    assert run["conf"]["only"] == ["new"]
    tab.press("Escape")
    past = server.pasts["clicked"]  # what the tasks of that run would write
    body = {"replaces": 2, "request": "a run", "repair": wish("adam", "its past", "new")}
    owner = airflow_owner("clicked", run["dag_run_id"])
    past.plan(4, MONDAY + 3 * DAY, owner, {0: (1, 2)}, Interval(MONDAY, MONDAY + DAY), more=body)
    past.write()
    tab.wait("document.querySelector('#story').innerText.includes('adam: its past')")
    assert "planned" in tab.value("document.querySelector('#story').innerText")
    assert not tab.value("[...document.querySelectorAll('button')].some((each) => each.dataset.choices)")
    tab.screenshot(pictures / "under-way.png", 1280, 1400)
    assert tab.errors == []


@browser
@pytest.mark.parametrize("width", [1280, 420])
def test_a_person_says_for_each_sink_what_becomes_of_its_rows(
    server: Site, tab: chromium.Chromium, pictures: Path, width: int
) -> None:
    tab.login(server.url, server.token("adam"))
    tab.resize(width, 900)
    tab.open(f"{server.url}/onceonly/pipelines/clicked/3")
    tab.value("[...document.querySelectorAll('button')].find((each) => each.textContent === 'Correct…').click()")
    tab.wait("document.querySelector('dialog[open]')")
    chosen = "Object.fromEntries([...document.querySelectorAll('#ask-choices select')].map((s) => [s.name, s.value]))"
    assert tab.value(chosen) == {"lake": "replace", "late": "keep", "new": "replace"}
    tab.value("document.querySelector('select[name=new]').value = 'keep'")
    tab.type(f"rates, seen at {width}")
    tab.screenshot(pictures / f"correct-{width}.png", width, 900)
    assert tab.value("document.documentElement.scrollWidth") <= width
    tab.value("document.getElementById('ask-yes').click()")
    tab.wait("document.getElementById('ask-answer').textContent.includes('It writes lake.')")
    (run,) = [run for run in runs_of(server, "clicked") if run["conf"]["reason"] == f"rates, seen at {width}"]
    assert run["conf"]["keep"] == ["late", "new"]
    assert tab.errors == []


@browser
@pytest.mark.parametrize(
    ("word", "kept", "written"), [("add", ["late"], "lake, new"), ("keep", ["late", "new"], "lake")]
)
def test_a_person_says_whether_a_sink_that_lacks_the_rows_gets_them_with_a_correction(
    server: Site, tab: chromium.Chromium, pictures: Path, word: str, kept: list[str], written: str
) -> None:
    reason = f"rates, new: {word}"
    tab.login(server.url, server.token("adam"))
    tab.resize(1280, 900)
    tab.open(f"{server.url}/onceonly/pipelines/delays/1")
    tab.value("[...document.querySelectorAll('button')].find((each) => each.textContent === 'Correct…').click()")
    tab.wait("document.querySelector('dialog[open]')")
    assert tab.value("document.querySelector('select[name=new]').value") == "add"
    tab.value(f"document.querySelector('select[name=new]').value = '{word}'")
    tab.type(reason)
    tab.screenshot(pictures / f"lacking-{word}.png", 1280, 900)
    tab.value("document.getElementById('ask-yes').click()")
    tab.wait(f"document.getElementById('ask-answer').textContent.includes('It writes {written}.')")
    (run,) = [run for run in runs_of(server, "delays") if run["conf"]["reason"] == reason]
    interval = ["2026-11-23T00:00:00+00:00", "2026-11-24T00:00:00+00:00"]
    assert run["conf"] == {"keep": kept, "reprocess": True, "interval": interval, "reason": reason}
    assert tab.errors == []

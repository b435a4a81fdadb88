"""Approve in the page and on the command line: one path, one wording; the page goes on until the rows are out."""

from __future__ import annotations

import html
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from integration.projects.past import Past
from integration.services import chromium
from integration.services.airflow_server import Server

from onceonly.checkpoint.model import Checkpoint, Event, State
from onceonly.checkpoint.transaction_names import file_stem, manifest_path
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.owners import airflow_owner
from onceonly.sinks.files.handle import StagedFile, staging_of
from onceonly.statetable.table import StateTable
from onceonly.storage.local import LocalFiles

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:the checkpoint is committed, but consumer group"),  # there is no such topic
]
browser = pytest.mark.skipif(chromium.BINARY is None, reason="Chromium is not installed: apt-get install chromium")
ACT = {"X-Onceonly-Action": "1"}
SECOND = timedelta(seconds=1)
REASON = "a quiet day"
DAG_FILE = """
from airflow.sdk import DAG, BaseOperator

from onceonly.airflow import recovery_dag

dag = recovery_dag("settle_it", tags=["ours"])
for name in ("clicked", "seen", "by_page", "typed", "red"):
    with DAG(name, schedule=None):
        BaseOperator(task_id="plan")
"""


@dataclass
class Site:
    """A server whose recovery DAG no scheduler runs, and the state table that it shows."""

    server: Server
    home: Path
    state: StateTable

    def checkpoint(self, name: str) -> Checkpoint:
        return self.state.view(name).require(1)

    def hold(self, name: str) -> None:
        """Epoch 1, held by its gate, with a file as the sink has staged it, of a run that is still alive."""
        now = datetime.now(UTC).replace(microsecond=0)
        sinks = [FileSink("out", path=f"lake/{name}")]
        source, gate = KafkaSource(f"topic-of-{name}"), Gate(min_rows=2, on_fail="hold")
        past = Past(self.state, Pipeline(name=name, source=source, transform="a:b", sinks=sinks, gate=gate))
        past.plan(1, now - 60 * SECOND, airflow_owner(name, "alive"), {0: (0, 1)})
        past.claim(1, now - 59 * SECOND)
        txn = past.known(1).transaction("out")
        target, file = self.home / "lake" / name, f"{file_stem(txn)}-00000.jsonl"
        folder = Path(staging_of(str(target)), txn.name, "data")
        folder.mkdir(parents=True)
        (folder / file).write_text("a row\n")
        files = [StagedFile(file, file, LocalFiles().read_fingerprint(str(folder / file))).to_json()]
        places = {"target": str(target), "folder": str(folder), "manifest": manifest_path(txn), "txn": txn.name}
        past.stage(
            1,
            now - 58 * SECOND,
            {"out": {"kind": "files", "format": "json", "rows": 1, "bytes": 5, "files": files, **places}},
        )
        check = {"what": "at least 2 rows", "ok": False, "severity": "critical", "observed": "1 row"}
        examined = {"rows": 1, "path": "in process", "checks": [check]}
        past.add(
            1, Event.VERDICT, now, body={"outcome": "failed", "sinks": {"out": examined}, "docs": None, "by": "it"}
        )
        past.write()
        self.server.trigger(name, "alive")

    def rows(self, name: str) -> list[str]:
        """What a reader of the folder finds."""
        lines: list[str] = []
        for file in sorted((self.home / "lake" / name).glob("*.jsonl")):
            lines += file.read_text().splitlines()
        return lines

    def set_recovery(self, **columns: int) -> None:
        with closing(sqlite3.connect(self.server.folder / "airflow.db", timeout=60)) as database, database:
            for name, value in columns.items():
                database.execute(f"UPDATE dag SET {name} = ? WHERE dag_id = 'settle_it'", [value])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("approval")
    home = folder / "home"
    state = StateTable.make(str(home / "state"))
    env = {"ONCEONLY_HOME": str(home), "ONCEONLY_KAFKA_BOOTSTRAP": broker}
    server = Server(folder / "airflow", env, {"dags.py": DAG_FILE})
    try:
        server.start()
        yield Site(server, home, state)
    finally:
        server.stop()


@pytest.fixture
def recover(site: Site, broker: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Do what the task of a recovery run does."""
    from onceonly.airflow import RecoverOperator, runs

    monkeypatch.setenv("ONCEONLY_HOME", str(site.home))
    monkeypatch.setenv("ONCEONLY_KAFKA_BOOTSTRAP", broker)
    monkeypatch.setattr(runs, "read_installation", lambda: "")

    def run(run_id: str) -> Any:
        conf = site.server.api("GET", f"/dags/settle_it/dagRuns/{run_id}").json()["conf"]
        task = SimpleNamespace(dag_id="settle_it", xcom_push=lambda key, value: None)
        context = {"ti": task, "dag_run": SimpleNamespace(conf=conf)}
        return RecoverOperator(task_id="recover").execute(context)

    return run


def approve_by_command(name: str, seen: int) -> str:
    from onceonly.cli import main

    command = ["approve", name, "1", "--reason", REASON, "--seen", str(seen)]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(main, command)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_page_and_command_publish_what_is_approved(site: Site, recover: Callable[[str], Any]) -> None:
    site.set_recovery(is_paused=0)
    for name in ("by_page", "typed"):
        site.hold(name)
    seen = site.checkpoint("by_page").changed_seq
    with site.server.login("uma") as uma:
        for _ in range(2):  # pressed twice: one run
            answer = uma.post("/pipelines/by_page/1/approve", headers=ACT, json={"reason": REASON, "seen": seen}).json()
            assert answer["run"] == "/dags/settle_it/runs/approved__by_page-1-1"
        waits = uma.get(answer["follow"]).json()
        assert not waits["done"] and "queued" in waits["text"] and site.rows("by_page") == []
        assert recover("approved__by_page-1-1") == {"by_page": {1: "committed"}}
        assert site.rows("by_page") == ["a row"]
        ended = uma.get(answer["follow"]).json()
        assert ended["done"]
        again = uma.post("/pipelines/by_page/1/approve", headers=ACT, json={"reason": REASON, "seen": seen}).json()
        assert again == {"done": ended["text"]}
    printed = approve_by_command("typed", site.checkpoint("typed").changed_seq)
    assert site.rows("typed") == ["a row"]
    assert printed.strip().removeprefix("✓ ").replace("typed", "by_page") == ended["text"]
    bodies = [dict(site.checkpoint(name).approved or {}) for name in ("by_page", "typed")]
    assert bodies[0].pop("who") == "uma" and bodies[1].pop("who")
    assert bodies[0] == bodies[1]


def test_a_run_that_its_gate_has_failed_stays_red_and_the_way_out_is_said(
    site: Site, recover: Callable[[str], Any]
) -> None:
    site.set_recovery(is_paused=0)
    site.hold("red")
    with closing(sqlite3.connect(site.server.folder / "airflow.db", timeout=60)) as database, database:
        database.execute("UPDATE dag_run SET state = 'failed' WHERE dag_id = 'red'")
    with site.server.login("uma") as uma:
        assert "stays failed" not in uma.get("/pipelines/red/1").text
        seen = site.checkpoint("red").changed_seq
        answer = uma.post("/pipelines/red/1/approve", headers=ACT, json={"reason": REASON, "seen": seen}).json()
        recover("approved__red-1-1")
        ended, page = uma.get(answer["follow"]).json(), uma.get("/pipelines/red/1").text
    for text in (ended["text"], html.unescape(page)):
        assert "its run 'alive' stays failed in Airflow" in text and "Clear the task 'gate' and what follows" in text


def test_page_and_command_ask_the_same(site: Site) -> None:
    from onceonly.views import manual_actions

    site.set_recovery(is_paused=0)
    site.hold("seen")
    with site.server.login("uma") as uma:
        page = uma.get("/pipelines/seen/1").text
    for action in (manual_actions.APPROVE, manual_actions.ABORT):
        assert f'data-what="{action}"' in page


def test_a_paused_recovery_is_told_before(site: Site) -> None:
    if "seen" not in site.state.pipelines():
        site.hold("seen")
    seen = site.checkpoint("seen").changed_seq
    with site.server.login("uma") as uma:
        site.set_recovery(is_paused=1)
        page = uma.get("/pipelines/seen/1").text
        assert "airflow dags unpause settle_it" in page
        site.set_recovery(is_stale=1)
        page = uma.get("/pipelines/seen/1").text
        assert "this Airflow has no recovery DAG" in page and f"--seen {seen}" in page
        body = {"reason": REASON, "seen": seen}
        recorded = uma.post("/pipelines/seen/1/approve", headers=ACT, json=body).json()
        assert "approved, and not published yet" in recorded["done"] and "follow" not in recorded
        for address in ("/pipelines/seen/1", "/pipelines/seen"):
            assert recorded["done"] in html.unescape(uma.get(address).text)
        site.set_recovery(is_stale=0)
        started = uma.post("/pipelines/seen/1/approve", headers=ACT, json=body).json()
        assert "is paused" in started["done"]
        for address in ("/pipelines/seen/1", "/pipelines/seen"):
            assert started["done"] in html.unescape(uma.get(address).text)
        command = re.search(r"airflow dags unpause \S+", started["done"])
        assert command
        site.server.command(*shlex.split(command[0])[1:])
        assert "is paused" not in uma.get(started["follow"]).json()["text"]
    assert site.checkpoint("seen").state is State.STAGED


@browser
def test_the_dialog_stays_until_the_rows_are_out(site: Site, recover: Callable[[str], Any]) -> None:
    site.set_recovery(is_paused=0)
    site.hold("clicked")
    with chromium.opened() as tab:
        tab.login(site.server.url, site.server.token("uma"))
        tab.open(f"{site.server.url}/onceonly/pipelines/clicked/1")
        tab.value("[...document.querySelectorAll('button')].find((each) => each.textContent === 'Approve').click()")
        tab.wait("document.querySelector('dialog[open]')")
        tab.type(REASON)
        tab.value("document.getElementById('ask-yes').click()")
        tab.wait("document.getElementById('ask-answer').textContent.includes('queued')")
        recover("approved__clicked-1-1")
        tab.wait(
            "document.getElementById('ask-answer').textContent.startsWith('clicked epoch 1: held → committed, 1 row')"
        )
        shown = "[...document.querySelectorAll('dialog button')].filter((each) => !each.hidden)"
        assert tab.value(f"{shown}.map((each) => each.textContent).join()") == "Close"
        tab.value("document.getElementById('ask-no').click()")
        tab.wait("document.querySelector('h1 .state').textContent === 'committed'")
        assert tab.errors == []

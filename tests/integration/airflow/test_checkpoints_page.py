"""The page "Checkpoints" on a real api-server: over HTTP who sees and may do what, in Chromium how it looks."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from exposition import parsed
from integration.projects.past import SECOND, Past
from integration.readers.kafka_reader import create_topic, new_topic, until
from integration.services import chromium
from integration.services.airflow_server import Server
from patience import PATIENCE
from person import Person

from onceonly.checkpoint.model import Checkpoint, Event, State
from onceonly.checkpoint.offsets import Interval
from onceonly.checkpoint.transaction_names import file_stem, manifest_path
from onceonly.coordinator.coordinator import Coordinator
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.owners import airflow_owner
from onceonly.sinks.files.handle import StagedFile, staging_of
from onceonly.statetable import location
from onceonly.statetable.table import StateTable
from onceonly.storage.local import LocalFiles
from onceonly.testing.fakes import FakeParts

pytestmark = [pytest.mark.integration]
browser = pytest.mark.skipif(chromium.BINARY is None, reason="Chromium is not installed: apt-get install chromium")

NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
EVIL = "<script>document.title = 'broken'</script>"
DAG_FILE = """
from airflow.sdk import DAG, BaseOperator

with DAG("flights", schedule=None):
    BaseOperator(task_id="plan")
"""
ACT = {"X-Onceonly-Action": "1"}
PASSWORD = "kn0wn-t0-few"


@dataclass
class Site:
    """The server, and the state table that it shows."""

    server: Server
    home: Path
    state: StateTable

    def checkpoint(self, pipeline: str, epoch: int) -> Checkpoint:
        found = self.state.view(pipeline).checkpoint(epoch)
        assert found is not None
        return found

    def looked(self, pipeline: str, epoch: int, reason: str) -> dict[str, Any]:
        """What an action says of a user who looks at the checkpoint now."""
        return {"reason": reason, "seen": self.checkpoint(pipeline, epoch).changed_seq}

    def version(self) -> int:
        return sum(self.state.versions().values())

    def audited(self, event: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Of Airflow's audit log: who, which DAG, and what."""
        query = "SELECT owner, dag_id, extra FROM log WHERE event = ? ORDER BY id"
        with closing(sqlite3.connect(self.server.folder / "airflow.db")) as database:
            return [(who, dag, json.loads(extra)) for who, dag, extra in database.execute(query, [event])]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Site]:
    global NOW
    NOW = datetime.now(UTC).replace(microsecond=0)  # other tests may have taken an hour since this file was imported
    folder = tmp_path_factory.mktemp("page")
    home = folder / "home"
    state = StateTable.make(str(home / "state"))
    for past in (flights(state), other(state), by_hand(state)):
        past.write()
    secret = {"bootstrap.servers": "127.0.0.1:1", "sasl.username": "reader", "sasl.password": PASSWORD}
    kafka = {
        "conn_type": "kafka",
        "extra": {**secret, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"},
    }
    known = {"AIRFLOW_CONN_KAFKA_SECRET": json.dumps(kafka)}
    env = {"ONCEONLY_HOME": str(home), "ONCEONLY_KAFKA_BOOTSTRAP": broker, **known}
    server = Server(folder / "airflow", env, {"flights.py": DAG_FILE})
    try:
        server.start()
        yield Site(server, home, state)
    finally:
        server.stop()


def pipeline(name: str, *sinks: Any, mode: Any = "chained") -> Pipeline:
    outputs = sinks or (FileSink("out", path=f"lake/{name}"),)
    return Pipeline(
        name=name, source=KafkaSource(f"topic-of-{name}"), transform="jobs.any:thing", sinks=outputs, mode=mode
    )


def run_of(epoch: int) -> str:
    return f"manual__{epoch}:00+00:00"


def flights(state: StateTable) -> Past:
    """Three pages; the newest one holds an abort, and a transaction that is about to time out."""
    alerts = KafkaSink(name="alerts", topic="alerts", mode="staged", unordered=True)
    past = Past(state, pipeline("flights", FileSink("out", path="lake/flights"), alerts, mode="interval"))
    for epoch in range(1, 121):
        at, rows = NOW - (121 - epoch) * HOUR, 1000 + 37 * epoch % 500
        past.plan(epoch, at, airflow_owner("flights", run_of(epoch)), {0: (epoch, epoch + 1)}, Interval(at - HOUR, at))
        past.claim(epoch, at + SECOND)
        opened = {"opened_at": (NOW - 9 * HOUR).isoformat(), "timeout": 36_000}
        alerted = {"kind": "kafka", "mode": "staged", "rows": 1, "parts": [], "topics": {}} | opened
        past.stage(epoch, at + 9 * SECOND, {"out": {"rows": rows, "files": 2}, "alerts": alerted})
        if epoch == 120:
            break
        if epoch == 119:
            past.abort(epoch, at + 10 * SECOND, EVIL)
            continue
        past.decide(epoch, at + 10 * SECOND)
        past.publish(epoch, at + 11 * SECOND, "out", "alerts")
        past.commit(epoch, at + 12 * SECOND)
    return past


def other(state: StateTable) -> Past:
    past = Past(state, pipeline("other_orders"))
    past.plan(1, NOW - HOUR, airflow_owner("other", "a run"), {0: (0, 1)})
    return past


def by_hand(state: StateTable) -> Past:
    past = Past(state, pipeline("by_hand"))
    past.plan(1, NOW - HOUR, "cli:laptop:12:34", {0: (0, 1)})
    return past


# ---- who sees


def test_without_a_login_nothing_is_seen_on_any_route(site: Site) -> None:
    routes = _routes(site)
    assert {"/", "/lag", "/runs", "/static/{name}", "/pipelines/{pipeline}/{epoch}/abort"} <= {
        path for path, _ in routes
    }
    server, before = site.server, site.version()
    with server.client(None) as nobody, server.client("forged") as liar, server.login("adam") as adam:
        for path, method in routes:
            address = _filled(path)
            refused = nobody.request(method, address, headers=ACT, json={"reason": "I may not"})
            assert refused.status_code == 401, (method, path)
            assert "flights" not in refused.text
            assert liar.request(method, address, headers=ACT).status_code in (401, 403), (method, path)
            if method == "GET":
                answer = adam.get(address)
                there = (404,) if path.endswith("/docs/{attempt}/{page}") else (200, 303)  # that epoch has no gate
                assert answer.status_code in there, (path, answer.text)
                assert _policy(answer) == _policy(refused) == "'self'"
    assert site.version() == before


def _routes(site: Site) -> list[tuple[str, str]]:
    """(path, method) of the app itself, so that no new route is forgotten; by a process of its own, as Airflow is."""
    program = (
        "import json; from onceonly.airflow.ui.app import app; "
        "print(json.dumps([[each.path, method] for each in app.routes for method in sorted(each.methods)]))"
    )
    env = {**os.environ, "AIRFLOW_HOME": str(site.server.folder), "AIRFLOW__CORE__UNIT_TEST_MODE": "False"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return [(path, method) for path, method in json.loads(done.stdout.splitlines()[-1])]


def _filled(path: str) -> str:
    given = {
        "pipeline": "flights",
        "epoch": "7",
        "sink": "out",
        "name": "onceonly.css",
        "attempt": "1",
        "page": "index.html",
    }
    filled = path.format(**given)
    return f"{filled}?dag_id=flights&run_id={quote(run_of(7))}" if path == "/runs" else filled


def _policy(answer: httpx.Response) -> str:
    """What scripts may come from; inline ones and other hosts are not named, so they may not."""
    rules = dict(rule.strip().split(" ", 1) for rule in answer.headers["Content-Security-Policy"].split(";"))
    assert rules["default-src"] == rules["base-uri"] == "'none'"
    assert rules["style-src"] == rules["frame-ancestors"] == "'self'"
    return rules["script-src"]


def test_a_viewer_sees_and_cannot_act(site: Site) -> None:
    with site.server.login("vera") as vera:
        shown = vera.get("/pipelines/flights/120")
        assert shown.status_code == 200
        assert "not act on it" in shown.text
        assert "data-action" not in shown.text
        before = site.version()
        for action in ("recover", "120/abort", "120/approve", "120/resolve"):
            body = {"reason": "because", "sink": "out", "word": "give-up"}
            answer = vera.post(f"/pipelines/flights/{action}", headers=ACT, json=body)
            assert answer.status_code == 403, action
            assert "permission to edit" in answer.json()["detail"]
        assert site.version() == before
        assert site.checkpoint("flights", 120).state is State.STAGED


def test_of_another_dag_nothing_is_told(site: Site) -> None:
    with site.server.login("olga") as olga:  # may edit the DAG "other", and see no other
        listed = olga.get("/")
        assert "other_orders" in listed.text
        assert "flights" not in listed.text
        assert "by_hand" not in listed.text
        assert list(olga.get("/lag").json()) == ["other_orders"]
        for hidden in ("flights", "by_hand", "no_such"):
            answers = [olga.get(f"/pipelines/{hidden}{rest}") for rest in ("", "/1", "/1/evidence/out")]
            answers.append(olga.post(f"/pipelines/{hidden}/1/abort", headers=ACT, json={"reason": "mine now"}))
            assert {(answer.status_code, answer.text) for answer in answers} == {(404, answers[0].text)}
        assert "flights" not in olga.get("/runs", params={"dag_id": "flights", "run_id": run_of(7)}).text
        assert "epoch" in olga.get("/pipelines/other_orders/1").text


def test_a_pipeline_of_two_dags_takes_the_rights_to_both(site: Site) -> None:
    past = Past(site.state, pipeline("moved"))
    past.plan(1, NOW - 2 * HOUR, airflow_owner("other", "before it was renamed"), {0: (0, 1)})
    past.abort(1, NOW - 2 * HOUR, "no rows")
    past.write()
    with site.server.login("olga") as olga:
        assert olga.get("/pipelines/moved").status_code == 200
        past.plan(2, NOW - HOUR, airflow_owner("renamed", "a run"), {0: (0, 1)})
        past.write()
        assert olga.get("/pipelines/moved").status_code == 404
        assert "moved" not in olga.get("/").text


# ---- who acts


def test_a_request_that_another_site_could_send_changes_nothing(site: Site) -> None:
    with site.server.login("adam") as adam:
        before = site.version()
        for plain in ({"json": {"reason": "r"}}, {"data": {"reason": "r"}}, {"content": b'{"reason": "r"}'}):
            assert adam.post("/pipelines/flights/120/abort", **plain).status_code == 403
        assert site.version() == before


@pytest.mark.parametrize("reason", ["", "   ", "x" * 501, None, 7])
def test_an_action_needs_a_reason(site: Site, reason: Any) -> None:
    before = site.version()
    with site.server.login("adam") as adam:
        answer = adam.post("/pipelines/flights/120/abort", headers=ACT, json={"reason": reason})
    assert answer.status_code == 422
    assert site.version() == before


def test_who_may_edit_the_dag_aborts_and_name_and_reason_are_recorded(site: Site) -> None:
    past = Past(site.state, pipeline("doomed"))
    past.plan(1, NOW - HOUR, airflow_owner("doomed", "a run"), {0: (0, 1)})
    past.claim(1, NOW - HOUR)
    past.write()
    reason = f"the source was wrong {EVIL}"
    with site.server.login("uma") as uma:
        looked = site.looked("doomed", 1, f"  {reason}  ")
        answer = uma.post("/pipelines/doomed/1/abort", headers=ACT, json=looked)
        assert answer.json()["done"].startswith("doomed epoch 1: planned → aborted (")
        page = uma.get("/pipelines/doomed/1").text
        assert "uma" in page
        assert "the source was wrong &lt;script&gt;" in page
        again = uma.post("/pipelines/doomed/9/abort", headers=ACT, json={"reason": "no such epoch", "seen": 1})
        assert again.status_code == 409
        assert "has no epoch 9" in again.json()["what"]
    aborted = site.checkpoint("doomed", 1)
    assert aborted.state is State.ABORTED
    assert reason in (aborted.reason or "")
    said = {"pipeline": "doomed", "epoch": 1, "reason": reason, "seen": looked["seen"]}
    assert site.audited("onceonly_abort")[0] == ("uma", "doomed", said)


def test_a_pipeline_whose_rows_are_damaged_hides_no_other(site: Site) -> None:
    broken = Past(site.state, pipeline("broken"))
    broken.plan(1, NOW - HOUR, airflow_owner("broken", "a run"), {0: (0, 1)})
    broken.abort(1, NOW, "wrong")
    broken.write()
    log = Path(location.table_folder(site.state.uri, "broken"), "_delta_log")
    whole = (log / f"{1:020}.json").read_text()
    (log / f"{1:020}.json").write_text("{")
    with site.server.login("adam") as adam:
        shown = adam.get("/").text
        assert "broken: the state table at" in shown
        assert ">flights</a>" in shown
        assert adam.get("/pipelines/flights").status_code == 200
        assert "cannot be read" in adam.get("/pipelines/broken").text
        (log / f"{1:020}.json").write_text(whole)
        assert ">broken</a>" in adam.get("/").text


def test_recover_publishes_what_an_ended_run_has_staged(site: Site) -> None:
    _, file = staged(site, "left")
    with site.server.login("adam") as adam:
        answer = adam.post("/pipelines/left/recover", headers=ACT, json={"reason": "the worker is gone"})
        assert answer.json() == {"done": "left epoch 1: staged → committed, 1 row"}
        shown = adam.get("/pipelines/left/1/evidence/out").json()
        assert "every file was moved" in shown["lines"][0]
    assert (site.home / "lake" / "left" / file).read_text() == "a row\n"
    assert [(who, dag) for who, dag, _ in site.audited("onceonly_recover")] == [("adam", "left")]


def test_a_sink_that_lost_its_file_is_given_up_by_a_person(site: Site) -> None:
    past, file = staged(site, "lost")
    past.decide(1, NOW - 50 * SECOND)
    past.write()
    for there in (site.home / "lake").rglob(file):
        there.unlink()
    with site.server.login("adam") as adam:
        said = site.looked("lost", 1, "the disk is gone") | {"sink": "out", "word": "give-up"}
        unclear = adam.post("/pipelines/lost/1/resolve", headers=ACT, json=said | {"word": "committed"})
        assert (unclear.status_code, unclear.json()["why"]) == (409, "In doubt: none.")
        answer = adam.post("/pipelines/lost/1/resolve", headers=ACT, json=said)
        assert answer.json()["done"].splitlines() == [
            "sink 'out' is recorded as given up by adam: the disk is gone",
            "lost epoch 1: committing → committed, 0 rows",
        ]
    given_up = site.checkpoint("lost", 1).given_up["out"]
    assert (given_up["who"], given_up["reason"]) == ("adam", "the disk is gone")


@pytest.mark.parametrize("word", ["committed", "give-up"])
def test_a_person_who_knows_ends_what_is_in_doubt(site: Site, broker: str, word: str) -> None:
    """Its transaction was committed, and then the log lost every trace of it."""
    name = f"doubtful_{word.replace('-', '_')}"
    in_doubt(site, broker, name)
    with site.server.login("adam") as adam, site.server.login("vera") as vera:
        tried = adam.post(f"/pipelines/{name}/recover", headers=ACT, json={"reason": "what became of it?"})
        assert tried.status_code == 409
        assert "is not known whether" in tried.text
        assert "IN DOUBT" in vera.get(f"/pipelines/{name}/1").text.upper()
        assert "unknown" in adam.get(f"/pipelines/{name}/1/evidence/out").json()["lines"][0]
        said = site.looked(name, 1, "their consumers have it") | {"sink": "out", "word": word}
        assert vera.post(f"/pipelines/{name}/1/resolve", headers=ACT, json=said).status_code == 403
        assert list(site.checkpoint(name, 1).in_doubt) == ["out"]
        done = adam.post(f"/pipelines/{name}/1/resolve", headers=ACT, json=said).json()["done"]
        assert f"{name} epoch 1: committing → committed, " in done
    heard = [row.body for row in site.state.history(name) if row.body.get("who") == "adam"]
    assert [body["reason"] for body in heard] == ["their consumers have it"]


def in_doubt(site: Site, broker: str, name: str) -> None:
    topic = new_topic(broker, 1)
    past = Past(site.state, pipeline(name, KafkaSink(name="out", topic=topic)))
    past.plan(1, NOW - 60 * SECOND, airflow_owner(name, "deleted"), {0: (0, 1)})
    past.claim(1, NOW - 59 * SECOND)
    txn = past.known(1).transaction("out")
    producer = Producer({"bootstrap.servers": broker, "transactional.id": txn.name, "log_level": 0})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, "a row", partition=0)
    producer.flush()
    with Transactions({"bootstrap_servers": broker}) as known:
        seen, place = known.describe([txn.name])[txn.name], {"topics": known.read_topic_ids([topic])}
        place |= {"cluster": known.read_cluster_id(), "transaction_version": known.read_transaction_version()}
        end = known.read_ends([(topic, 0)])[topic, 0]
        producer.commit_transaction()
        until(lambda: known.read_ends([(topic, 0)])[topic, 0] > end, what="its marker")
    everything = TopicPartition(topic, 0, -1)
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_records([everything])[everything].result(PATIENCE)
    tx = {"id": txn.name, "producer_id": seen.producer_id, "epoch": seen.epoch, "partitions": [[topic, 0, 0, end]]}
    parts = [{"spool": "0.parquet", "rows": 1, "tx": tx}]
    kind = {"kind": "kafka", "guarantee": "exactly-once", "mode": "staged", "slot": None, "txn": txn.name}
    size = {"rows": 1, "bytes": 5, "folder": str(site.home / "spool" / txn.name), "parts": parts}
    past.stage(1, NOW - 58 * SECOND, {"out": {**kind, **place, **size, "opened_at": NOW.isoformat(), "timeout": 60.0}})
    past.decide(1, NOW - 57 * SECOND)
    past.write()


def test_what_the_gate_holds_is_shown_and_approved_by_a_person(site: Site) -> None:
    past, _ = staged(site, "gated", gate={"min_rows": 2, "on_fail": "hold"})
    check = {"what": f"at least 2 rows {EVIL}", "ok": False, "severity": "critical", "observed": "1 row"}
    examined = {"rows": 1, "path": "in process", "checks": [check]}
    verdict = {"outcome": "failed", "sinks": {"out": examined}, "docs": "https://docs.example/gated", "by": "a test"}
    past.add(1, Event["VERDICT"], NOW, body=verdict)
    past.write()
    with site.server.login("vera") as vera, site.server.login("uma") as uma:
        page = vera.get("/pipelines/gated/1").text
        assert "Held: the gate failed the staged rows" in page
        assert '<span class="state held">held</span>' in page
        assert '<li class="event failed">' in page  # its verdict's dot is not green
        assert "1 row, 5 B, 1 file, staged for" in page
        assert "at least 2 rows &lt;script&gt;" in page
        assert '<a href="https://docs.example/gated">' in page
        said = site.looked("gated", 1, "a quiet day")
        assert vera.post("/pipelines/gated/1/approve", headers=ACT, json=said).status_code == 403
        shown = uma.get("/pipelines/gated/1").text
        assert "/gated/1/approve" in shown and f'data-seen="{said["seen"]}"' in shown
        for looked, code in (({}, "seen-missing"), ({"seen": said["seen"] - 1}, "seen-outdated")):
            refused = uma.post("/pipelines/gated/1/approve", headers=ACT, json={"reason": "a quiet day", **looked})
            assert (refused.status_code, refused.json()["code"]) == (409, code)
        for _ in range(2):  # pressed twice
            assert uma.post("/pipelines/gated/1/approve", headers=ACT, json=said).status_code == 200
        assert "Approved by uma: a quiet day" in vera.get("/pipelines/gated/1").text
        refused = uma.post("/pipelines/flights/120/approve", headers=ACT, json=site.looked("flights", 120, "why not"))
        assert (refused.status_code, "does not wait" in refused.json()["what"]) == (409, True)


def test_no_answer_shows_a_password(site: Site) -> None:
    """Neither one in an address, nor one of a connection that the server has looked up."""
    path = f"ftp://user:{PASSWORD}-too@127.0.0.1:1/leaky"
    leaky = replace(pipeline("leaky", DeltaSink("out", path=path)), source=KafkaSource("t", connection="kafka_secret"))
    past = Past(site.state, leaky)
    past.plan(1, NOW - 2 * HOUR, airflow_owner("leaky", "deleted"), {0: (0, 1)})
    past.abort(1, NOW - 2 * HOUR, f"the broker refused {PASSWORD}")
    past.plan(2, NOW - HOUR, airflow_owner("leaky", "deleted"), {0: (0, 1)})
    past.claim(2, NOW - HOUR)
    txn = past.known(2).transaction("out")
    table = {"kind": "delta", "uri": path, "table_id": "x", "fingerprint": "f", "added": [], "publish": "delta-rs"}
    sizes = {"files": 1, "rows": 1, "bytes": 5}
    past.stage(2, NOW - HOUR, {"out": {**table, **sizes, "app_id": txn.app_id, "folder": f"staged-{txn.name}"}})
    past.write()
    with site.server.login("adam") as adam:
        chromium.until(lambda: _answered(adam, "leaky"), "the connection was looked up")
        tried = adam.post("/pipelines/leaky/recover", headers=ACT, json={"reason": "the worker is gone"})
        pages = [adam.get(f"/pipelines/leaky/{rest}") for rest in ("1", "2", "2/evidence/out")]
    assert "ftp://…@127.0.0.1:1/leaky" in tried.json()["why"]
    assert "the broker refused ***" in pages[0].text
    assert not [response.text for response in (tried, *pages) if PASSWORD in response.text]


def staged(site: Site, name: str, gate: dict[str, Any] | None = None) -> tuple[Past, str]:
    """Epoch 1, with a file as the sink itself would have staged it, by a run that Airflow does not know any more."""
    past = Past(site.state, gated(pipeline(name), gate) if gate else pipeline(name))
    past.plan(1, NOW - 60 * SECOND, airflow_owner(name, "deleted"), {0: (0, 1)})
    past.claim(1, NOW - 59 * SECOND)
    txn = past.known(1).transaction("out")
    target, file = site.home / "lake" / name, f"{file_stem(txn)}-00000.jsonl"
    folder = Path(staging_of(str(target)), txn.name, "data")
    folder.mkdir(parents=True)
    (folder / file).write_text("a row\n")
    files = [StagedFile(file, file, LocalFiles().read_fingerprint(str(folder / file))).to_json()]
    places = {"target": str(target), "folder": str(folder), "manifest": manifest_path(txn), "txn": txn.name}
    plain = {"kind": "files", "format": "json", "rows": 1, "bytes": 5}
    past.stage(1, NOW - 58 * SECOND, {"out": {**plain, "files": files, **places}})
    past.write()
    return past, file


def gated(plain: Pipeline, asked: dict[str, Any]) -> Pipeline:
    from onceonly.pipeline.gate import Gate

    return replace(plain, gate=Gate(**asked))


# ---- what is shown


def test_pages_of_checkpoints_and_the_last_one_for_a_number_too_high(site: Site) -> None:
    with site.server.login("vera") as vera:
        first, last = vera.get("/pipelines/flights").text, vera.get("/pipelines/flights?page=99").text
        assert "Page 1 of 3" in first
        assert "/pipelines/flights/120" in first
        assert "/pipelines/flights/70" not in first
        assert "Page 3 of 3" in last
        assert "/pipelines/flights/20" in last
        assert "/pipelines/flights/21" not in last
        assert vera.get("/pipelines/flights?page=last").status_code == 422
        assert vera.get("/pipelines/flights/121").status_code == 404


def test_what_a_user_gave_is_text(site: Site) -> None:
    with site.server.login("vera") as vera:
        page = vera.get("/pipelines/flights/119").text
        assert "<script>document" not in page
        assert "&lt;script&gt;document.title" in page
        tab = vera.get("/runs", params={"dag_id": "flights", "run_id": EVIL})
        assert "<script>document" not in tab.text


def test_a_transaction_that_is_about_to_time_out_stands_out(site: Site) -> None:
    with site.server.login("vera") as vera:
        for page in ("/", "/pipelines/flights", "/pipelines/flights/120"):
            assert "9 h of 10 h</span>: about to time out" in vera.get(page).text, page


def test_the_tab_of_a_run_leads_to_its_checkpoint(site: Site) -> None:
    with site.server.login("vera") as vera:
        answer = vera.get("/runs", params={"dag_id": "flights", "run_id": run_of(7)})
        assert (answer.status_code, answer.headers["Location"]) == (303, "/onceonly/pipelines/flights/7")
        assert "No checkpoint names this run" in vera.get("/runs", params={"dag_id": "flights", "run_id": "none"}).text


def test_lag_is_what_the_topic_holds_beyond_the_last_commit(site: Site, broker: str) -> None:
    behind = pipeline("behind")
    topic_id = _topic(broker, behind.sources[0].topic, 10)
    past = Past(site.state, behind)
    past.plan(1, NOW - 3 * HOUR, airflow_owner("behind", "a run"), {0: (0, 4)}, topic_id=topic_id)
    past.claim(1, NOW - 3 * HOUR)
    past.stage(1, NOW - 3 * HOUR, {"out": {"rows": 4}})
    past.decide(1, NOW - 3 * HOUR)
    past.publish(1, NOW - 3 * HOUR, "out")
    past.commit(1, NOW - 3 * HOUR)
    past.write()
    with site.server.login("vera") as vera:
        lags = chromium.until(lambda: _answered(vera, "behind", "other_orders"), "the broker answers")
        measured = parsed(vera.get("/metrics").text)
        without = parsed(vera.get("/metrics", params={"lag": False}).text)
    assert lags["behind"] == {"state": "behind", "text": "up to 6 records; complete until 3 h ago", "why": ""}
    assert lags["other_orders"]["state"] == "unknown"
    assert "does not exist" in lags["other_orders"]["why"]
    assert measured['onceonly_lag_records{pipeline="behind"}'] == 6
    assert measured['onceonly_source_up{pipeline="other_orders"}'] == 0
    assert not [key for key in without if key.startswith(("onceonly_lag_", "onceonly_source_up"))]


def test_prometheus_reads_what_its_login_may_see(site: Site) -> None:
    def scraped(user: str) -> dict[str, float]:
        header = {"Authorization": f"Bearer {site.server.token(user)}"}
        answer = httpx.get(f"{site.server.url}/onceonly/metrics", headers=header, timeout=PATIENCE)
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parsed(answer.text)

    seen, hers = scraped("vera"), scraped("olga")
    assert seen['onceonly_epochs_total{pipeline="flights"}'] >= 120
    used = seen['onceonly_transaction_timeout_used_ratio{pipeline="flights",sink="alerts"}']
    assert 0.89 < used < 1
    assert {re.findall('pipeline="([^"]+)"', key)[0] for key in hers} == {"other_orders"}


def test_what_no_interval_covers_is_shown_and_is_not_up_to_date(site: Site, broker: str) -> None:
    gappy = pipeline("gappy", mode="interval")
    topic_id = _topic(broker, gappy.sources[0].topic, 4)
    past = Past(site.state, gappy)
    for epoch, hours_ago in ((1, 9), (2, 5)):
        at = NOW - hours_ago * HOUR
        past.plan(epoch, at, airflow_owner("gappy", f"run {epoch}"), {0: (0, 4)}, Interval(at - HOUR, at), topic_id)
        past.claim(epoch, at)
        past.stage(epoch, at, {"out": {"rows": 4}})
        past.decide(epoch, at)
        past.publish(epoch, at, "out")
        past.commit(epoch, at)
    past.write()
    gap = Interval(NOW - 9 * HOUR, NOW - 6 * HOUR)
    with site.server.login("vera") as vera:
        lags = chromium.until(lambda: _answered(vera, "gappy"), "the broker answers")
        assert f"gappy: no checkpoint covers {gap}." in vera.get("/pipelines/gappy").text
        assert f'/pipelines/gappy">{gap.start:%Y-%m-%d %H:%M}' in vera.get("/").text
        Person(Coordinator(site.state, FakeParts(site.home))).skip("gappy", gap, "ann", "a strike")
        assert "no checkpoint covers" not in vera.get("/pipelines/gappy").text
        assert "a strike" in vera.get("/pipelines/gappy/3").text
    assert lags["gappy"] == {"state": "behind", "text": "1 gap; complete until 9 h ago", "why": ""}


def _answered(user: httpx.Client, *names: str) -> Any:
    lags = user.get("/lag").json()
    return lags if all(lags[name]["state"] != "asked" for name in names) else None


def _topic(broker: str, name: str, records: int) -> str:
    """Its id; made with one partition and so many records."""
    from confluent_kafka import Producer, TopicCollection
    from confluent_kafka.admin import AdminClient

    create_topic(broker, name, 1)
    admin = AdminClient({"bootstrap.servers": broker})
    producer = Producer({"bootstrap.servers": broker})
    for number in range(records):
        producer.produce(name, str(number).encode(), partition=0)
    assert producer.flush(PATIENCE) == 0
    return str(admin.describe_topics(TopicCollection([name]))[name].result().topic_id)


# ---- in a browser


@pytest.fixture(scope="module")
def tab(site: Site) -> Iterator[chromium.Chromium]:
    with chromium.opened() as opened:
        yield opened


@browser
def test_a_person_with_a_keyboard_aborts_a_checkpoint(site: Site, tab: chromium.Chromium) -> None:
    past = Past(site.state, pipeline("typed"))
    past.plan(1, NOW - HOUR, airflow_owner("typed", "a run"), {0: (0, 1)})
    past.write()
    tab.login(site.server.url, site.server.token("adam"))
    tab.open(f"{site.server.url}/onceonly/")
    _walk(tab, "/pipelines/typed")
    tab.press("Enter")
    tab.wait("location.pathname.endsWith('/pipelines/typed') && document.readyState === 'complete'")
    _walk(tab, "/pipelines/typed/1")
    tab.press("Enter")
    tab.wait("location.pathname.endsWith('/typed/1') && document.readyState === 'complete'")
    _walk(tab, "/typed/1/abort")
    tab.press("Enter")
    tab.wait("document.querySelector('dialog[open]')")
    tab.press("Escape")
    tab.wait("!document.querySelector('dialog[open]')")
    assert site.checkpoint("typed", 1).state is State.PLANNED
    tab.press("Enter")  # the focus is where it was
    tab.wait("document.activeElement.id === 'ask-reason'")
    tab.type("typed by hand")
    tab.press("Tab")
    tab.press("Tab")
    tab.press("Enter")
    tab.wait("document.getElementById('ask-answer').textContent.startsWith('typed epoch 1: planned → aborted')")
    tab.press("Escape")
    tab.wait("document.querySelector('h1 .state').textContent === 'aborted'")
    assert "typed by hand" in (site.checkpoint("typed", 1).reason or "")
    assert tab.errors == []


def _walk(tab: chromium.Chromium, goal: str) -> None:
    """Tab by tab until what leads to `goal` has the focus, and shows it."""
    focused = "(document.activeElement.getAttribute('href') || document.activeElement.dataset.action || '')"
    for _ in range(100):
        tab.press("Tab")
        if tab.value(f"{focused}.endsWith({json.dumps(goal)})"):
            assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            return
    pytest.fail(f"no Tab leads to {goal}")


@browser
@pytest.mark.parametrize("page", ["", "pipelines/flights", "pipelines/flights/119", "pipelines/flights/120"])
@pytest.mark.parametrize(("scheme", "lighter"), [("light", False), ("dark", True)])
def test_every_page_is_readable_in_light_and_in_dark(
    site: Site, tab: chromium.Chromium, page: str, scheme: str, lighter: bool
) -> None:
    tab.login(site.server.url, site.server.token("adam"))
    tab.scheme(scheme)
    tab.open(f"{site.server.url}/onceonly/{page}")
    assert (
        tab.value(f"{LUMINANCE}; (() => {{ const [text, ground] = colours(document.body); return text > ground }})()")
        is lighter
    )
    faint = tab.value(f"{LUMINANCE}; {FAINT}")
    assert faint == []
    assert tab.value(UNLABELLED) == []
    assert "Onceonly" in tab.value("document.title")
    assert tab.errors == []


LUMINANCE = """
var canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
var pen = canvas.getContext("2d", { willReadFrequently: true });
var paint = (colours) => {
  pen.clearRect(0, 0, 1, 1);
  for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
  return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
var light = (rgb) => rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
var colours = (element) => {
  const grounds = [];
  for (let each = element; each; each = each.parentElement) grounds.unshift(getComputedStyle(each).backgroundColor);
  return [light(paint([...grounds, getComputedStyle(element).color])), light(paint(grounds))];
}
"""
FAINT = """
[...document.querySelectorAll("body *")].filter((each) => each.checkVisibility() && !each.closest("svg") &&
  [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())).map((each) => {
  const [one, two] = colours(each);
  const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
  return contrast < 4.5 ? `${each.className} ${each.textContent.trim().slice(0, 30)}: ${contrast.toFixed(2)}` : null;
}).filter(Boolean)
"""
UNLABELLED = """
[...document.querySelectorAll("a, button, svg, textarea, nav, section")].filter((each) => each.checkVisibility() &&
  !(each.textContent.trim() || each.getAttribute("aria-label") || each.labels?.length)).map((each) => each.outerHTML)
"""


@browser
def test_the_page_follows_the_state_table_by_itself(site: Site, tab: chromium.Chromium) -> None:
    past = Past(site.state, pipeline("fresh"))
    past.plan(1, NOW - HOUR, airflow_owner("fresh", "a run"), {0: (0, 1)})
    past.write()
    tab.login(site.server.url, site.server.token("vera"))
    tab.open(f"{site.server.url}/onceonly/pipelines/fresh/1")
    tab.value("document.querySelector('details').open = true; window.kept = true")
    past.abort(1, NOW, EVIL)
    past.write()
    tab.wait("document.querySelector('h1 .state').textContent === 'aborted'")
    assert "<script>" in tab.text()  # as text
    assert tab.value("window.kept && document.querySelector('details').open && document.title !== 'broken'")
    assert tab.errors == []


@browser
def test_airflow_shows_the_page_under_browse_in_its_own_theme(site: Site, tab: chromium.Chromium) -> None:
    tab.login(site.server.url, site.server.token("vera"))
    tab.scheme("light")
    tab.open(f"{site.server.url}/onceonly/")
    tab.value("localStorage.setItem('theme', 'dark')")
    tab.open(f"{site.server.url}/plugin/checkpoints")
    tab.wait(f"{FRAME}?.querySelector('h1')?.textContent === 'Checkpoints'")
    assert tab.value(f"{FRAME}.body.innerText.includes('flights')")
    assert tab.value(f"{FRAME}.documentElement.dataset.theme") == "dark"
    tab.value("localStorage.setItem('theme', 'light')")
    tab.open(f"{site.server.url}/plugin/checkpoints")
    tab.wait(f"{FRAME}?.documentElement?.dataset.theme === 'light'")


@browser
def test_a_run_has_a_tab_with_its_checkpoint_and_the_checkpoint_leads_to_the_run(
    site: Site, tab: chromium.Chromium
) -> None:
    run = quote(run_of(7), safe="")
    site.server.trigger("flights", run_of(7))
    tab.login(site.server.url, site.server.token("vera"))
    tab.open(f"{site.server.url}/dags/flights/runs/{run}")
    tab.wait("[...document.querySelectorAll('a')].some((each) => each.textContent === 'Checkpoints')")
    tab.value("[...document.querySelectorAll('a')].find((each) => each.textContent === 'Checkpoints').click()")
    tab.wait(f"{FRAME}?.readyState === 'complete' && {FRAME}.querySelector('h1')?.textContent.includes('7')")
    assert tab.value(f"{FRAME}.location.pathname") == "/onceonly/pipelines/flights/7"
    tab.value(f"{FRAME}.querySelector('[data-airflow]').click()")
    tab.wait(f"decodeURIComponent(location.pathname) === '/dags/flights/runs/{run_of(7)}'")


FRAME = "document.querySelector('iframe')?.contentDocument"

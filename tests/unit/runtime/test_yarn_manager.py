"""What is asked of YARN, and what its answers mean. On a real one: integration/airflow/test_yarn.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from codes import raises

from onceonly.errors import InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.runtime import driver, yarn
from onceonly.runtime.cluster import GONE, ApplicationStatus, RunningApplication
from onceonly.runtime.spark_connection import SparkConnection, parse_connection
from onceonly.runtime.spark_submit import DriverJob
from onceonly.settings import Settings

ONE = "application_1_0001"
EXTRA = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": "rm:8088"}


@contextmanager
def manager(answers: dict[str, tuple[int, Any]], asked: list[str] | None = None) -> Iterator[str]:
    """Answers by the beginning of method and path below /ws/v1/cluster/."""

    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            line = f"{self.command} {self.path.removeprefix('/ws/v1/cluster/')} {body}"
            if asked is not None:
                asked.append(line)
            code, said = next(answer for start, answer in answers.items() if line.startswith(start))
            text = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            if code == 307:
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = do

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def app(state: str, **more: Any) -> tuple[int, Any]:
    return 200, {"app": {"id": ONE, "state": state, **more}}


@pytest.mark.parametrize(
    ("state", "at_work"),
    [("ACCEPTED", True), ("RUNNING", True), ("OF_A_NEWER_YARN", True), ("FINISHED", False), ("KILLED", False)],
)
def test_an_application_is_at_work_until_it_has_ended(state: str, at_work: bool) -> None:
    with manager({"GET": app(state)}) as url:
        assert driver.open_cluster(f"yarn+{url}").look(ONE) == ApplicationStatus(state, at_work)


def test_an_application_that_it_does_not_know_is_gone() -> None:
    unknown = {"RemoteException": {"exception": "NotFoundException", "message": f"app with id: {ONE} not found"}}
    with manager({"": (404, unknown)}) as url:
        made = driver.open_cluster(f"yarn+{url}")
        assert made.look(ONE) == GONE
        assert made.tail(ONE) == []
        made.end(ONE)


@pytest.mark.parametrize(
    "answer",
    [
        (404, "<html>404 Not Found</html>"),
        (404, {"error": "no route"}),
        (200, "Can not find any active RM."),
    ],
    ids=["web server", "gateway", "standby alone"],
)
def test_another_web_server_does_not_say_that_an_application_is_gone(answer: tuple[int, Any]) -> None:
    """Nor that it was ended: its driver would go on beside that of the next try."""
    with manager({"": answer}) as url:
        made = driver.open_cluster(f"yarn+{url}")
        for ask in (made.look, made.tail, made.end):
            with pytest.raises(NotCommitted):
                ask(ONE)


@pytest.mark.parametrize("bad", [(502, "<html>"), (503, {"error": "x"}), (200, "Can not find any active RM.")])
def test_a_proxy_whose_manager_is_down_is_passed_over(bad: tuple[int, Any]) -> None:
    with manager({"": bad}) as down, manager({"GET": app("RUNNING")}) as active:
        assert driver.open_cluster(f"yarn+{down},{active}").look(ONE).is_at_work


def test_a_user_without_a_name_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_USER_NAME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(yarn.os, "getuid", lambda: 3_999_999_999)
    with raises(NotCommitted, "cluster-login-failed", match="HADOOP_USER_NAME"):
        driver.open_cluster("yarn+http://rm").look(ONE)


def test_the_last_lines_of_a_log_are_those_that_say_why() -> None:
    said = 'ERROR ApplicationMaster: Cannot run program "/no/such/python"'
    frames = ["\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1110)"] * 20
    end = ["\t... 8 more", "End of LogType:stderr.", "*" * 71, ""]
    answers: dict[str, tuple[int, Any]] = {"GET /ws/v1/node": (200, "\n".join([said, *frames, *end]))}
    with manager(answers) as url:
        logs = f"{url}/node/containerlogs/container_1_0001_01_000001/etl"
        answers["GET apps"] = app("FAILED", amContainerLogs=logs, amHostHttpAddress=url.removeprefix("http://"))
        assert driver.open_cluster(f"yarn+{url}").tail(ONE) == [said]


def test_an_answer_that_is_none_says_nothing_about_the_application() -> None:
    with manager({"GET": (500, "<html>"), "PUT": (403, {"RemoteException": {"message": "User x cannot"}})}) as url:
        made = driver.open_cluster(f"yarn+{url}")
        with raises(NotCommitted, "cluster-refused", match="status"):
            made.look(ONE)
        with raises(NotCommitted, "cluster-refused", match="tag"):
            made.find("a-tag")
        with raises(NotCommitted, "cluster-refused", match="User x cannot"):
            made.end(ONE)


def test_the_one_that_runs_is_waited_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "etl")
    apps = [
        {"id": "application_1_0003", "state": "ACCEPTED", "startedTime": 1, "name": "onceonly stage-Flights-1-c"},
        {"id": "application_1_0002", "state": "RUNNING", "startedTime": 9, "name": "onceonly stage-Flights-1-b"},
        {"id": ONE, "state": "RUNNING", "startedTime": 5, "name": "onceonly stage-Flights-1-a"},
    ]
    asked: list[str] = []
    with manager({"GET apps": (200, {"apps": {"app": apps}})}, asked) as url:
        found = driver.open_cluster(f"yarn+{url}").find("a-tag")
    assert found[:2] == [
        RunningApplication(ONE, "stage-Flights-1-a"),
        RunningApplication("application_1_0002", "stage-Flights-1-b"),
    ]
    assert "user.name=etl&applicationTags=a-tag&states=ACCEPTED%2CNEW%2CNEW_SAVING%2CRUNNING%2CSUBMITTED" in asked[0]
    for nothing in (None, {}):
        with manager({"GET apps": (200, {"apps": nothing})}) as url:
            assert driver.open_cluster(f"yarn+{url}").find("a-tag") == []


def test_the_active_one_of_two_is_asked_and_nothing_is_sent_elsewhere() -> None:
    with manager({"": (307, "This is standby RM.")}) as standby, manager({"GET": app("RUNNING")}) as active:
        assert driver.open_cluster(f"yarn+{standby},{active}").look(ONE).is_at_work
        assert driver.open_cluster(f"yarn+http://127.0.0.1:1,{active}").look(ONE).is_at_work
        with raises(OutcomeUnknown, "no-answer"):
            driver.open_cluster(f"yarn+{standby}").look(ONE)


def test_a_manager_that_asks_for_kerberos_is_named() -> None:
    with (
        manager({"": (401, "Authentication required")}) as url,
        raises(NotCommitted, "cluster-login-failed", match="requests-kerberos"),
    ):
        driver.open_cluster(f"yarn+{url}").look(ONE)


# ---- the submission


class Launched:
    def __init__(self, code: int) -> None:
        self.code = code

    def run(self, *_: Any) -> tuple[int, list[str]]:
        return self.code, ["the last line"]


def job(conf: dict[str, str] | None = None) -> DriverJob:
    spark = SparkConnection("yarn", cluster="yarn+http://rm:8088", conf=conf or {})
    settings = Settings.from_env({"ONCEONLY_PROJECT": "/project"})
    return DriverJob("stage", "stage-flights-3-0123456789ab", "onceonly-tag", ["flights"], spark, settings)


def test_an_application_is_known_by_its_own_tag() -> None:
    mine = {"GET apps?": (200, {"apps": {"app": [{"id": ONE, "state": "FAILED"}]}})}
    asked: list[str] = []
    with manager(mine, asked) as url:
        assert driver.open_cluster(f"yarn+{url}").submit(job(), Launched(0)) == ONE
    assert "applicationTags=0123456789ab" in asked[0]


def test_what_spark_submit_does_not_vouch_for_is_ended() -> None:
    """It was killed, or lost its ResourceManager: whether it has submitted is asked, not guessed."""
    asked: list[str] = []
    known: dict[str, tuple[int, Any]] = {
        "GET apps?": (200, {"apps": {"app": [{"id": ONE, "state": "ACCEPTED"}]}}),
        "PUT": (202, {"state": "KILLING"}),
    }
    with manager(known, asked) as url, raises(NotCommitted, "submission-failed", match="the last line"):
        driver.open_cluster(f"yarn+{url}").submit(job(), Launched(-9))
    assert any(line.startswith(f"PUT apps/{ONE}/state") and '"KILLED"' in line for line in asked)
    for code in (0, 1):
        with raises(OutcomeUnknown, "submission-unknown"):
            driver.open_cluster("yarn+http://127.0.0.1:1").submit(job(), Launched(code))


def test_one_master_and_the_tags_of_the_connection_too() -> None:
    conf = yarn._conf(job({"spark.yarn.tags": "team-a", "spark.yarn.queue": "nightly"}))
    assert conf["spark.yarn.tags"] == "team-a,onceonly-tag,0123456789ab"
    assert (conf["spark.yarn.maxAppAttempts"], conf["spark.yarn.queue"]) == ("1", "nightly")
    assert conf["spark.yarn.appMasterEnv.ONCEONLY_PROJECT"] == "/project"
    assert yarn._conf(job({"spark.yarn.maxAppAttempts": "2"}))["spark.yarn.maxAppAttempts"] == "2"


# ---- the connection


def test_the_fields_of_the_connection() -> None:
    login = {"principal": "etl@REALM", "keytab": "/etc/etl.keytab", "queue": "nightly"}
    found = parse_connection("spark", "yarn", None, None, {**EXTRA, **login})
    assert found == SparkConnection(
        "yarn",
        cluster="yarn+http://rm:8088",
        conf={
            "spark.yarn.queue": "nightly",
            "spark.kerberos.principal": "etl@REALM",
            "spark.kerberos.keytab": "/etc/etl.keytab",
        },
    )
    two = {**EXTRA, "yarn_resourcemanager_webapp_address": "https://a:8090/, https://b:8090"}
    made = driver.open_cluster(str(parse_connection("spark", "yarn", None, None, two).cluster))
    assert made == yarn.Yarn(("https://a:8090", "https://b:8090"))
    assert parse_connection("spark", "yarn", None, None, {"queue": "nightly"}).cluster is None


def test_a_cluster_that_cannot_be_asked_is_refused() -> None:
    with raises(
        InvalidPipeline, "spark-connection-invalid", match=r"(?s)yarn_resourcemanager_webapp_address.*http://host:8088"
    ):
        parse_connection("spark", "yarn", None, None, {"deploy-mode": "cluster"})


@pytest.mark.parametrize("mode", ["client", "cluster"])
@pytest.mark.parametrize(
    "key",
    ["spark.yarn.appMasterEnv.AWS_SECRET_ACCESS_KEY", "spark.executorEnv.AIRFLOW_CONN_KAFKA"],
)
def test_secrets_that_a_node_manager_serves_are_refused(mode: str, key: str) -> None:
    with raises(InvalidPipeline, "secret-visible", match=r"launch_container\.sh") as caught:
        parse_connection("spark", "yarn", None, None, {**EXTRA, "deploy-mode": mode, "conf": {key: "hush"}})
    assert "hush" not in str(caught.value)
    allowed = {"spark.hadoop.fs.s3a.secret.key": "hush"}
    assert (
        parse_connection("spark", "yarn", None, None, {**EXTRA, "deploy-mode": mode, "conf": allowed}).conf == allowed
    )

"""Drivers on Kubernetes: what the API is asked, how this process logs in, and spark-submit's command line.

No Kubernetes runs here: `api_server` answers as the API's reference has it.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from unit.runtime.api_server import TOKEN, ApiServer, api_server

from onceonly.errors import InvalidPipeline, NotCommitted, OnceonlyError
from onceonly.runtime import child_process, driver, job_report, kubernetes, spark_submit
from onceonly.runtime.cluster import GONE, ApplicationStatus, RunningApplication
from onceonly.runtime.spark_connection import SparkConnection, parse_connection
from onceonly.runtime.spark_submit import DriverJob
from onceonly.settings import Settings

TAG = "onceonly-0123456789abcdef0123456789abcdef"
NAME = "stage-flights-3-0123456789ab"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ApiServer]:
    log_in(monkeypatch, tmp_path, {"token": TOKEN})
    with api_server() as made:
        yield made


def log_in(monkeypatch: pytest.MonkeyPatch, folder: Path, user: dict[str, Any], **cluster: Any) -> None:
    """Write a KUBECONFIG as kubectl does."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "other"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://not-asked", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    (folder / "kubeconfig").write_text(json.dumps(config))  # JSON is YAML
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))


def cluster(api: ApiServer) -> Any:
    return driver.open_cluster(f"k8s+{api.address}/spark")


def job(tmp_path: Path, conf: dict[str, str] | None = None, server: str = "https://api:6443") -> DriverJob:
    settings = Settings.from_env({"ONCEONLY_PROJECT": "/project", "ONCEONLY_JARS": str(tmp_path / "jars")})
    spark = SparkConnection(f"k8s://{server}", cluster=f"k8s+{server}/spark", conf=conf or {})
    arguments = ["flights", "3", "a run", "/report", "7"]
    return DriverJob("stage", NAME, TAG, arguments, spark, settings, {"AIRFLOW_CONN_KAFKA": "a-secret"})


# ---- find, look, end


def test_a_driver_that_runs_is_found_by_its_tag(api: ApiServer) -> None:
    api.pod("waits", "Pending", {"onceonly-tag": TAG}, "stage-flights-3-aaaaaaaaaaaa")
    api.pod("runs", "Running", {"onceonly-tag": TAG}, NAME)
    api.pod("done", "Failed", {"onceonly-tag": TAG}, "stage-flights-3-bbbbbbbbbbbb")
    api.pod("other", "Running", {"onceonly-tag": "onceonly-another"}, "stage-flights-4-cccccccccccc")
    assert cluster(api).find(TAG) == [RunningApplication("runs", NAME)]
    assert cluster(api).find("onceonly-nobody") == []


@pytest.mark.parametrize(
    ("phase", "at_work"),
    [("Pending", True), ("Running", True), ("Unknown", True), ("New", True), ("Succeeded", False), ("Failed", False)],
)
def test_a_pod_is_at_work_until_it_has_ended(api: ApiServer, phase: str, at_work: bool) -> None:
    api.pod("one", phase, {}, NAME)
    assert cluster(api).look("one") == ApplicationStatus(phase, at_work)


def test_why_a_pod_waits_or_has_ended_is_told(api: ApiServer) -> None:
    waiting = [{"name": "d", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]
    killed = [{"name": "d", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]
    api.pod("waits", "Pending", {}, NAME, containerStatuses=waiting)
    api.pod("killed", "Failed", {}, NAME, containerStatuses=killed)
    assert cluster(api).look("waits") == ApplicationStatus("Pending (ImagePullBackOff)", True)
    assert cluster(api).look("killed") == ApplicationStatus("Failed (OOMKilled)", False)


def test_a_pod_that_was_just_made_is_at_work(api: ApiServer) -> None:
    api.pod("one", "Running", {}, NAME)
    del api.pods["one"]["status"]
    assert cluster(api).look("one").is_at_work


def test_a_pod_that_was_deleted_is_looked_at_and_not_found(api: ApiServer) -> None:
    """On a node that is lost it stays, for nobody can say whether it runs; a next try starts another."""
    api.pod("one", "Running", {"onceonly-tag": TAG}, NAME)
    api.pods["one"]["metadata"]["deletionTimestamp"] = "2026-11-23T07:00:00Z"
    assert cluster(api).look("one") == ApplicationStatus("Running (Terminating)", True)
    assert cluster(api).find(TAG) == []


def test_a_pod_that_somebody_else_has_made_does_no_harm(api: ApiServer) -> None:
    api.pod("one", "Running", {"onceonly-tag": TAG}, NAME)
    del api.pods["one"]["metadata"]["annotations"]
    assert not job_report.JOB_NAME.fullmatch(cluster(api).find(TAG)[0].name)


def test_a_pod_is_ended_and_ended_again(api: ApiServer) -> None:
    api.pod("one", "Running", {}, NAME)
    cluster(api).end("one")
    cluster(api).end("one")
    assert cluster(api).look("one") == GONE
    assert api.asked.count("DELETE /api/v1/namespaces/spark/pods/one") == 2


def test_the_last_lines_of_the_driver_among_other_containers(api: ApiServer) -> None:
    api.pod("one", "Failed", {}, NAME)
    api.logs["one"] = "\n".join(str(number) for number in range(300))
    assert cluster(api).tail("one") == [str(number) for number in range(100, 300)]
    assert cluster(api).tail("gone") == []
    assert cluster(api).describe_log("one") == "kubectl logs -n spark one"


def test_what_the_role_does_not_allow_is_named(api: ApiServer) -> None:
    api.pod("one", "Running", {}, NAME)
    api.refused.add("DELETE")
    with raises(NotCommitted, "cluster-refused", match=r"(?s)403.*cannot DELETE.*get, list and delete pods"):
        cluster(api).end("one")


def test_a_path_that_is_none_of_the_api_is_no_missing_pod(api: ApiServer) -> None:
    """Else a wrong address would say that each driver has ended."""
    with raises(NotCommitted, "cluster-refused", match="404"):
        driver.open_cluster(f"k8s+{api.address}/proxy/spark").look("one")


@pytest.mark.parametrize("said", ["<html>Log in</html>", {"status": "ok"}, [], {"kind": "Status"}])
def test_another_web_server_does_not_say_how_a_pod_is(api: ApiServer, said: Any) -> None:
    """A page to log in at is an answer of 200, too: it would say that the driver is gone, or that there is none."""
    api.instead = (200, said)
    for ask in (cluster(api).look, cluster(api).find, cluster(api).tail):
        with pytest.raises(NotCommitted):
            ask("one")
    if said != {"kind": "Status"}:  # that may be the answer to a DELETE
        with pytest.raises(NotCommitted):
            cluster(api).end("one")


# ---- the login


def test_the_service_account_of_the_pod(api: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setattr(kubernetes, "SERVICE_ACCOUNT", tmp_path)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "ca.crt").write_text("")
    api.pod("one", "Running", {}, NAME)
    assert cluster(api).look("one").state == "Running"
    (tmp_path / "token").write_text("another")  # it is replaced while a driver runs: read for each question
    with raises(NotCommitted, "cluster-refused", match="401"):
        cluster(api).look("one")


@pytest.mark.parametrize("how", ["tokenFile", "exec"])
def test_other_ways_to_a_token(api: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str) -> None:
    (tmp_path / "token").write_text(TOKEN)
    told = json.dumps({"kind": "ExecCredential", "status": {"token": TOKEN}})
    script = f"import os; assert os.environ['REGION'] == 'eu'; print({told!r})"
    ran = {"command": sys.executable, "args": ["-c", script], "env": [{"name": "REGION", "value": "eu"}]}
    log_in(monkeypatch, tmp_path, {"tokenFile": str(tmp_path / "token")} if how == "tokenFile" else {"exec": ran})
    api.pod("one", "Running", {}, NAME)
    assert cluster(api).look("one").state == "Running"


def test_a_command_that_makes_no_token_shows_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = "import sys; print('a-token'); sys.exit('expired')"
    log_in(monkeypatch, tmp_path, {"exec": {"command": sys.executable, "args": ["-c", script]}})
    with raises(NotCommitted, "cluster-login-failed") as caught, kubernetes.log_in():
        pass
    assert "expired" in str(caught.value)
    assert "a-token" not in str(caught.value)


def test_a_token_of_a_command_is_kept_until_it_ends(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A trigger asks every two seconds, and such a command may take one."""
    api.pod("one", "Running", {}, NAME)

    def asked(token: str, ends: str, times: int = 3) -> int:
        told = json.dumps({"status": {"token": token, "expirationTimestamp": ends}})
        ran = tmp_path / f"ran-{ends}"
        script = f"open({str(ran)!r}, 'a').write('x'); print({told!r})"
        log_in(monkeypatch, tmp_path, {"exec": {"command": sys.executable, "args": ["-c", script]}})
        for _ in range(times):
            with suppress(NotCommitted):
                cluster(api).look("one")
        return len(ran.read_text())

    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    soon = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    assert asked(TOKEN, later) == 1
    assert asked(TOKEN, soon) == 3
    assert asked("revoked", later.replace("+00:00", "Z")) == 3, "the API does not take it"


@pytest.mark.parametrize(
    "wrong", [{"tokenFile": "/none"}, {"client-key-data": "?", "token": "hush"}, {"client-certificate": "c"}]
)
def test_a_login_that_cannot_be_read_says_nothing_about_the_driver(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: dict[str, str]
) -> None:
    """It may just be replaced. Any other error would end the trigger, and the task with it."""
    log_in(monkeypatch, tmp_path, {**wrong, "client-key": "k"})
    with pytest.raises(OnceonlyError) as caught:
        cluster(api).look("one")
    assert "hush" not in str(caught.value)


def test_a_kubeconfig_that_is_half_written_shows_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "half").write_text("users: [{name: u, user: {token: hush")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "half"))
    with raises(NotCommitted, "cluster-login-failed") as caught, kubernetes.log_in():
        pass
    assert "hush" not in str(caught.value)


def test_relative_paths_begin_at_the_folder_of_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(TOKEN)
    log_in(monkeypatch, tmp_path, {"tokenFile": "t"}, **{"certificate-authority": "ca.crt"})
    with kubernetes.log_in() as options:
        assert options["verify"] == str(tmp_path / "ca.crt")
        assert options["headers"] == {"Authorization": f"Bearer {TOKEN}"}


def test_keys_that_kubeconfig_holds_are_files_for_one_question(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held = {name: base64.b64encode(name.encode()).decode() for name in ("cert", "key", "authority")}
    user = {"client-certificate-data": held["cert"], "client-key-data": held["key"]}
    log_in(monkeypatch, tmp_path, user, **{"certificate-authority-data": held["authority"]})
    with kubernetes.log_in() as options:
        paths = [options["verify"], *options["cert"]]
        assert [Path(path).read_text() for path in paths] == ["authority", "cert", "key"]
        assert {stat.S_IMODE(os.stat(path).st_mode) for path in paths} == {0o600}
    assert not any(os.path.exists(path) for path in paths)


def test_without_a_login_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with raises(InvalidPipeline, "cluster-login-failed", match="KUBECONFIG"), kubernetes.log_in():
        pass


# ---- the submission


class Launched:
    """In the place of spark-submit: makes the pod, as far as it goes."""

    def __init__(self, api: ApiServer, code: int = 0, makes: bool = True) -> None:
        self.api, self.code, self.makes = api, code, makes
        self.conf: dict[str, str] = {}

    def run(
        self, job: DriverJob, conf: Any, program: str, more: Any = (), inherited: Any = ()
    ) -> tuple[int, list[str]]:
        self.conf = dict(conf)
        assert job.connections and not more and not inherited, "connections do not travel"
        if self.makes:
            name = conf["spark.kubernetes.driver.pod.name"]
            self.api.pod(name, "Pending", {"onceonly-tag": job.tag}, job.name)
        return self.code, ["the last line"]


def test_the_pod_is_known_before_it_is_made(api: ApiServer, tmp_path: Path) -> None:
    launched = Launched(api)
    assert cluster(api).submit(job(tmp_path), launched) == "onceonly-stage-0123456789ab"
    assert launched.conf[f"spark.kubernetes.driver.label.{kubernetes.TAG}"] == TAG
    assert launched.conf["spark.kubernetes.submission.waitAppCompletion"] == "false"


def test_a_pod_that_spark_submit_has_not_completed_is_removed(api: ApiServer, tmp_path: Path) -> None:
    """Killed in between, it leaves a pod that waits for its ConfigMap for ever."""
    with raises(NotCommitted, "submission-failed", match=r"(?s)-9.*the last line"):
        cluster(api).submit(job(tmp_path), Launched(api, code=-9))
    assert api.pods == {}
    api.pod("half", "Pending", {"onceonly-tag": TAG}, "stage-flights-3-aaaaaaaaaaaa")
    assert cluster(api).submit(job(tmp_path), Launched(api))
    assert "half" not in api.pods


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As spark-submit gets it: everything named, and no secret."""
    (tmp_path / "jars" / "spark").mkdir(parents=True)
    (tmp_path / "jars" / "spark" / "delta.jar").touch()
    (tmp_path / "spark-submit").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (tmp_path / "spark-submit").chmod(0o700)
    monkeypatch.setattr(spark_submit, "find_spark_submit", lambda: str(tmp_path / "spark-submit"))
    monkeypatch.setattr(child_process, "MAX_ERROR_LINES", 1000)
    template = {"spark.kubernetes.driver.podTemplateFile": "/specs/driver.yaml"}
    named = {"spark.kubernetes.driver.secretKeyRef.AIRFLOW_CONN_KAFKA": "kafka:connection"}
    asked = job(tmp_path, {**template, **named, "spark.kubernetes.container.image": "ours:1"})
    made: Any = driver.open_cluster("k8s+https://api:6443/spark")
    code, lines = spark_submit.SparkSubmit().run(asked, made._conf(asked), kubernetes._spark_path("/a/stage.py", asked))
    pairs = dict(line.split("=", 1) for line in lines if line.startswith("spark."))
    assert code == 0
    assert lines[:2] == ["--master", "k8s://https://api:6443"]
    assert lines[-6:] == ["local:///a/stage.py", "flights", "3", "a run", "/report", "7"]
    assert pairs["spark.submit.deployMode"] == "cluster"
    assert pairs["spark.kubernetes.namespace"] == "spark"
    assert pairs["spark.kubernetes.driver.pod.name"] == "onceonly-stage-0123456789ab"
    assert pairs["spark.kubernetes.driver.annotation.onceonly-job"] == NAME
    assert pairs["spark.kubernetes.driverEnv.ONCEONLY_PROJECT"] == "/project"
    assert pairs["spark.jars"] == f"local://{tmp_path}/jars/spark/delta.jar"
    assert template.items() | named.items() <= pairs.items()
    assert "a-secret" not in str(lines)
    uploaded = job(tmp_path, {"spark.kubernetes.file.upload.path": "s3a://bucket/spark"})
    assert made._conf(uploaded)["spark.jars"] == f"{tmp_path}/jars/spark/delta.jar"


# ---- the connection


def test_the_fields_of_the_connection() -> None:
    extra = {"deploy-mode": "cluster", "namespace": "spark", "conf": {"spark.kubernetes.context": "prod"}}
    found = parse_connection("spark", "k8s://https://api:6443", None, None, extra)
    assert found.cluster == "k8s+https://api:6443/spark?context=prod"
    made = driver.open_cluster(found.cluster)
    assert made == kubernetes.Kubernetes("https://api:6443", "spark", "prod")
    assert (
        parse_connection("spark", "k8s://api", 6443, None, {**extra, "conf": {}}).cluster
        == "k8s+https://api:6443/spark"
    )


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_secrets_that_a_pod_would_show_are_refused(mode: str) -> None:
    def connect(conf: dict[str, str]) -> SparkConnection:
        return parse_connection("spark", "k8s://https://api", None, None, {"deploy-mode": mode, "conf": conf})

    connect({"spark.kubernetes.driver.secretKeyRef.AWS_SECRET_ACCESS_KEY": "aws:secret"})
    with raises(InvalidPipeline, "secret-visible", match="secretKeyRef") as caught:
        connect({"spark.executorEnv.AWS_SECRET_ACCESS_KEY": "hush"})
    assert "hush" not in str(caught.value)
    if mode == "cluster":
        with raises(InvalidPipeline, "secret-visible", match="secretKeyRef"):
            connect({"spark.hadoop.fs.s3a.secret.key": "hush"})

"""What Spark's own client makes of a submission to Kubernetes, on a server that answers as the API does."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from unit.runtime.api_server import TOKEN, api_server

from onceonly.runtime import driver, spark_submit
from onceonly.runtime.cluster import RunningApplication
from onceonly.runtime.spark_connection import parse_connection
from onceonly.runtime.spark_submit import DriverJob
from onceonly.settings import Settings

pytestmark = [pytest.mark.integration, pytest.mark.heavy]
LONGEST = f"{'a_' * 31}z"  # of a pipeline; Kubernetes takes no '_' in a name, and 63 characters in a label
TAG, NAME = "onceonly-0123456789abcdef0123456789abcdef", f"stage-{LONGEST}-3-0123456789ab"
KEYTAB = base64.b64encode(b"\x05\x02 of somebody").decode()
TEMPLATE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"labels": {"team": "data"}},
    "spec": {"containers": [{"name": "driver", "env": [{"name": "FROM_TEMPLATE", "value": "yes"}]}]},
}


def log_in(folder: Path, server: str) -> str:
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    return str(folder / "kubeconfig")


def job(folder: Path, server: str) -> DriverJob:
    (folder / "driver.yaml").write_text(json.dumps(TEMPLATE))
    conf = {
        "spark.kubernetes.container.image": "ours:1",
        "spark.kubernetes.driver.podTemplateFile": str(folder / "driver.yaml"),
        "spark.kubernetes.authenticate.driver.serviceAccountName": "spark",
        "spark.kubernetes.driver.secretKeyRef.AIRFLOW_CONN_KAFKA": "kafka:connection",
    }
    login = {"principal": "etl@REALM", "keytab": KEYTAB}
    extra = {"deploy-mode": "cluster", "namespace": "spark", "conf": conf, **login}
    spark = parse_connection("spark", f"k8s://{server}", None, None, extra)
    arguments = ["flights", "3", "a run", "/report", "7"]
    settings = Settings.from_env({"ONCEONLY_PROJECT": "/project"})
    return DriverJob("stage", NAME, TAG, arguments, spark, settings, {"AIRFLOW_CONN_KAFKA": "5ecret"})


def test_a_pod_by_spec_file_with_its_account_tag_and_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with api_server() as api:
        monkeypatch.setenv("KUBECONFIG", log_in(tmp_path, api.address))
        asked = job(tmp_path, api.address)
        cluster: Any = driver.open_cluster(str(asked.spark.cluster))
        assert cluster.submit(asked, spark_submit.SparkSubmit()) == "onceonly-stage-0123456789ab"
        pod = api.pods["onceonly-stage-0123456789ab"]
        pod["status"]["phase"] = "Running"
        assert cluster.find(TAG) == [RunningApplication("onceonly-stage-0123456789ab", NAME)]
        assert cluster.tail("onceonly-stage-0123456789ab") == []
        cluster.end("onceonly-stage-0123456789ab")
        assert cluster.find(TAG) == []
    container = pod["spec"]["containers"][0]
    env = {variable["name"]: variable.get("value") or variable["valueFrom"] for variable in container["env"]}
    assert (pod["metadata"]["labels"]["team"], container["name"]) == ("data", "driver")
    assert pod["spec"]["serviceAccountName"] == "spark"
    assert container["args"][-6:-1] == [f"local://{spark_submit.program('stage')}", *asked.arguments[:4]]
    assert env["AIRFLOW_CONN_KAFKA"] == {"secretKeyRef": {"name": "kafka", "key": "connection"}}
    assert (env["FROM_TEMPLATE"], env["ONCEONLY_PROJECT"], env["PYSPARK_PYTHON"]) == ("yes", "/project", "python3")
    assert {made["kind"] for made in api.made} >= {"Pod", "ConfigMap", "Service"}
    assert "5ecret" not in json.dumps(api.made)
    for made in api.made:
        longest = 63 if made["kind"] == "Service" else 253
        assert re.fullmatch(rf"[a-z0-9][-a-z0-9]{{0,{longest - 1}}}", made["metadata"]["name"]), made["metadata"]
        assert all(len(value) < 64 for value in (made["metadata"].get("labels") or {}).values()), made["metadata"]
    holding = [made["kind"] for made in api.made if KEYTAB in json.dumps(made)]
    assert holding == ["Secret"], "the keytab is in no ConfigMap, and no argument"

"""A stage whose driver is a pod of a real Kubernetes API: rights, TLS, Secrets, logs; found again, ended, killed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from integration.airflow.test_airflow import Airflow
from integration.projects.drivers import (
    World,
    ended,
    fired,
    found_by_a_second_try,
    make_world,
    nothing_goes_on,
    staged_in_an_outage,
    trigger,
)
from integration.services import kubelet as nodes
from integration.services import kubernetes as services
from integration.services.kubelet import Kubelet
from integration.services.kubernetes import Kubernetes
from integration.services.standalone import CONF
from patience import PATIENCE

from onceonly.checkpoint.model import State
from onceonly.dev.demo.standalone import wait_until
from onceonly.errors import NotCommitted, OutcomeUnknown
from onceonly.kafka import airflow_connections

pytestmark = [
    pytest.mark.integration,
    pytest.mark.heavy,
    pytest.mark.skipif(not all(services.BINARIES.values()), reason=services.MISSING),
]
SECRET = "5ecret-of-kafka"
PODS, LOGS = {"apiGroups": [""], "resources": ["pods"]}, {"apiGroups": [""], "resources": ["pods/log"]}
MADE = {
    "apiGroups": ["", "networking.k8s.io"],
    "resources": ["configmaps", "services", "networkpolicies"],
    "verbs": ["create", "patch"],
}
# As docs/platforms/kubernetes.md has them.
SUBMITS = [{**PODS, "verbs": ["get", "list", "create", "delete"]}, {**LOGS, "verbs": ["get"]}, MADE]
DRIVES = [
    {
        "apiGroups": [""],
        "resources": ["pods", "services", "configmaps", "persistentvolumeclaims"],
        "verbs": ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"],
    }
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    if not nodes.can_run():
        pytest.skip("mount namespaces cannot be made here, in which pods run")
    with services.kubernetes(tmp_path_factory.mktemp("kubernetes")).running() as found:
        yield found


@pytest.fixture(scope="module")
def node(api: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    with nodes.kubelet(api, tmp_path_factory.mktemp("kubelet")) as made:
        yield made


@pytest.fixture
def namespace(api: Kubernetes, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("_", "-").replace("[", "-").replace(" ", "-").strip("]")[-50:].strip("-")
    api.namespace(name, {"airflow": SUBMITS, "spark": DRIVES})
    return name


@pytest.fixture
def world(
    tmp_path: Path,
    broker: str,
    api: Kubernetes,
    node: Kubelet,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> World:
    kafka = {"kafka_there": {"bootstrap.servers": broker, "client.id": SECRET}}
    [variable] = airflow_connections.write_variable("kafka_there", kafka["kafka_there"])
    value = airflow_connections.write_variable("kafka_there", kafka["kafka_there"])[variable]
    api.secret(namespace, "kafka", {"connection": value})
    monkeypatch.setenv("KUBECONFIG", str(api.login(tmp_path, namespace, "airflow")))
    return make_world(tmp_path, broker, connection(api, namespace, variable), kafka, monkeypatch, request)


def connection(api: Kubernetes, namespace: str, variable: str = "", **conf: str) -> str:
    """For AIRFLOW_CONN_SPARK, as the docs have it."""
    mine = {
        "spark.kubernetes.container.image": "this-machine:1",
        "spark.kubernetes.authenticate.driver.serviceAccountName": "spark",
        "spark.kubernetes.authenticate.submission.caCertFile": str(api.server.authority),
        "spark.kubernetes.driver.master": api.address,
        "spark.executor.instances": "1",
    }
    secrets = {f"spark.kubernetes.driver.secretKeyRef.{variable}": "kafka:connection"} if variable else {}
    extra = {"deploy-mode": "cluster", "namespace": namespace, "conf": {**CONF, **mine, **secrets, **conf}}
    return json.dumps({"conn_type": "spark", "host": f"k8s://{api.address}", "extra": extra})


def running(api: Kubernetes, namespace: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods(api, namespace) if pod["status"]["phase"] == "Running"]


def pods(api: Kubernetes, namespace: str, role: str = "executor") -> list[Any]:
    path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=spark-role={role}"
    return list(api.ask("GET", path)["items"])


def test_a_killed_pod_is_followed_by_one_that_a_second_try_finds(
    world: World, api: Kubernetes, node: Kubelet, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.plan("slow")
    lost = world.submit()
    world.until_at_work()
    node.container(lost.driver).kill()
    state = fired(trigger(lost))["state"]
    assert state == "Failed (Error)"
    wait_until(lambda: not running(api, namespace), "its executors are gone with it", PATIENCE)
    with raises(
        NotCommitted, "driver-without-report", match=rf"(?s){lost.driver} is Failed.*SparkContext.*kubectl logs"
    ):
        world.require_staged(lost, state)
    (world.project.folder / "at-work").unlink()

    world.publish(found_by_a_second_try(world, capsys), "Succeeded (Completed)")
    assert (world.now.attempt, world.reports()) == (2, [])
    kept = api.ask("GET", f"/api/v1/namespaces/{namespace}/configmaps")["items"] + pods(api, namespace, "driver")
    assert SECRET not in json.dumps(kept), "the connection is in the Secret alone"


def test_a_run_in_airflow_whose_driver_is_a_pod(world: World, api: Kubernetes, namespace: str, tmp_path: Path) -> None:
    """Deferred and resumed."""
    spark = os.environ["AIRFLOW_CONN_SPARK"]
    with Airflow(tmp_path / "airflow", "").initialised():
        os.environ["AIRFLOW_CONN_SPARK"] = spark
        ran = Airflow(tmp_path / "airflow", "").run(world.project, "chained")
    assert (ran["run"], ran["tasks"]["stage"], ran["tasks"]["commit"]) == ("success", "success", "success"), ran["log"]
    assert "a triggerer now waits for it" in ran["log"]
    assert f"its log: kubectl logs -n {namespace} onceonly-stage-" in ran["log"]
    assert world.project.published() == Counter(range(8))
    assert [pod["status"]["phase"] for pod in pods(api, namespace, "driver")] == ["Succeeded"]


@pytest.mark.parametrize("how", ["cleared", "left", "too long", "by others"])
def test_no_pod_goes_on_of_a_driver_that_is_ended(world: World, api: Kubernetes, namespace: str, how: str) -> None:
    """Also of one that a later try has found; its executors go with it."""
    world.plan("slow")
    first = world.submit()
    world.until_at_work()
    submitted = world.submit()
    assert submitted == first
    pod = f"/api/v1/namespaces/{namespace}/pods/{submitted.driver}"
    state = ended(world, submitted, how, lambda: api.ask("DELETE", pod))
    assert state == ("TIMED OUT" if how == "too long" else "GONE")
    wait_until(lambda: not pods(api, namespace) and not pods(api, namespace, "driver"), "its pods are gone", PATIENCE)
    nothing_goes_on(world, submitted, state)


def test_an_executor_that_is_lost_in_mid_stage(world: World, api: Kubernetes, namespace: str) -> None:
    world.plan("slow")
    submitted = world.submit()
    world.until_at_work()
    [lost] = pods(api, namespace)
    path = f"/api/v1/namespaces/{namespace}/pods/{lost['metadata']['name']}?gracePeriodSeconds=0"
    api.ask("DELETE", path)
    world.publish(submitted, "Succeeded (Completed)")


def test_rights_that_are_missing_are_named(
    world: World, api: Kubernetes, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{namespace[:40]}-other"
    api.namespace(other, {"nobody": []})
    monkeypatch.setenv("KUBECONFIG", str(api.login(tmp_path, other, "nobody")))
    world.plan()
    with raises(NotCommitted, "cluster-refused", match=r"(?s)403.*cannot list resource.*get, list and delete"):
        world.submit()
    assert (world.now.state, world.now.attempt) == (State.PLANNED, 0)


def test_an_image_that_never_comes_to_python_says_why(
    world: World, api: Kubernetes, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the last lines that the kubelet serves."""
    there = connection(api, namespace, **{"spark.pyspark.python": "/no/such/python"})
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", there)
    world.plan()
    submitted = world.submit()
    state = fired(trigger(submitted))["state"]
    with raises(NotCommitted, "driver-without-report", match=r"(?s)Failed \(Error\).*/no/such/python"):
        world.require_staged(submitted, state)


def test_a_server_that_is_gone_ends_neither_the_pod_nor_the_wait(
    world: World, api: Kubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        submitted = staged_in_an_outage(world, api.server, capsys)
        with pytest.raises((NotCommitted, OutcomeUnknown)):
            submitted.look()
    finally:
        api.down()
        api.up()

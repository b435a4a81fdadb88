"""A stage whose driver runs on a real standalone cluster: a triggerer waits, and the state table decides."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from codes import raises
from integration.airflow.test_airflow import Airflow
from integration.gate.test_gate import SUITE
from integration.projects.drivers import (
    WORK,
    World,
    ended,
    fired,
    make_world,
    nothing_goes_on,
    staged_in_an_outage,
    submit,
    trigger,
)
from integration.services import standalone
from integration.services.standalone import Cluster
from patience import PATIENCE

from onceonly.airflow import connections
from onceonly.checkpoint.model import State
from onceonly.dev.demo.standalone import wait_until
from onceonly.dev.services.machine import free_port
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.kafka import airflow_connections
from onceonly.settings import Settings

pytestmark = [pytest.mark.integration]
CONNECTIONS = ["kafka_there", "kafka_here"]  # the worker, and so a driver, knows the first one only
ENDINGS = ["left", "too long", "killed"]  # beside the one that every run of the suite takes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Cluster]:
    known = airflow_connections.write_variable("kafka_there", {"bootstrap.servers": broker})
    elsewhere = {"SPARK_CONNECT_MODE_ENABLED": "1"}  # as PySpark leaves it behind; the master counts
    with standalone.cluster(tmp_path_factory.mktemp("cluster"), known | elsewhere).running() as found:
        yield found


@pytest.fixture
def world(
    tmp_path: Path, broker: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> World:
    kafka = {connection: {"bootstrap.servers": broker} for connection in CONNECTIONS}
    return make_world(tmp_path, broker, cluster.connection(), kafka, monkeypatch, request)


@pytest.mark.heavy
def test_a_run_whose_drivers_are_on_the_cluster(world: World, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "numbers.expectations.json").write_text(json.dumps(SUITE))
    world.project.set_gate(suites="numbers.expectations.json", in_process_rows=7)
    with Airflow(tmp_path / "airflow", "").initialised():
        os.environ["AIRFLOW_CONN_SPARK"] = cluster.connection()
        ran = Airflow(tmp_path / "airflow", "").run(world.project, "chained")
    assert (ran["run"], ran["tasks"]["stage"], ran["tasks"]["commit"]) == ("success", "success", "success"), ran["log"]
    assert ran["log"].count("a triggerer now waits for it") == 2
    assert "sink numbers: 8 rows" in ran["log"]
    assert world.now.verdict is not None
    assert world.now.verdict["sinks"]["numbers"]["path"] == "spark"
    assert "sink 'numbers': 8 rows, examined on Spark" in ran["log"]
    assert world.project.published() == Counter(range(8))
    assert world.reports() == []
    assert (
        WORK.prepare_stage(connections.read_spark_connection("spark"), Settings.from_env(), connections.read_extra)
        is None
    )


@pytest.mark.heavy
def test_of_two_drivers_for_one_request_the_second_takes_nothing_over(world: World) -> None:
    world.plan("slow")
    first = world.submit()
    second = world.submit(anew=True)
    assert world.submit() in (first, second)
    world.until_at_work()
    over = wait_until(
        lambda: [each for each in (first, second) if each.open_report().read().code], "one gave way", PATIENCE
    )
    with raises(NotCommitted, "ownership-lost", match="it has changed since this process was started"):
        world.require_staged(over[0], "FAILED")
    world.go_on()
    other = second if over == [first] else first
    assert fired(trigger(other))
    world.require_staged(other, "FINISHED")
    assert (world.now.attempt, world.now.rows) == (1, 8)


def test_an_error_of_the_job_is_told_by_the_task(world: World) -> None:
    world.plan("broken")
    submitted = world.submit()
    fired(trigger(submitted))
    with raises(NotCommitted, "staging-failed", match="the transform fails on purpose"):
        world.require_staged(submitted, "FAILED")
    assert world.now.state is State.PLANNED
    assert world.project.staged_folders() == []
    assert world.reports() == []


def test_a_connection_is_looked_up_where_the_driver_runs(world: World) -> None:
    world.plan(connection="kafka_here")
    submitted = world.submit()
    fired(trigger(submitted))
    with raises(InvalidPipeline, "connection-missing", match="AIRFLOW_CONN_KAFKA_HERE"):
        world.require_staged(submitted, "FAILED")


@pytest.mark.parametrize("how", ["cleared", *(pytest.param(how, marks=pytest.mark.heavy) for how in ENDINGS)])
def test_nothing_goes_on_of_a_driver_that_is_ended(world: World, how: str) -> None:
    world.plan("slow")
    submitted = world.submit()
    world.until_at_work()
    state = ended(world, submitted, how, lambda: jvm(world).send_signal(signal.SIGKILL))
    assert state == {"cleared": "KILLED", "left": "KILLED", "too long": "TIMED OUT", "killed": "FAILED"}[how]
    nothing_goes_on(world, submitted, state)
    if how == "killed":
        world.publish(world.submit(), "FINISHED")  # as the task's next try
        assert len(world.project.staged_folders()) <= 1


def jvm(world: World) -> psutil.Process:
    """In which the driver runs."""
    return next(process for process in world.processes() if "DriverWrapper" in " ".join(process.cmdline()))


@pytest.mark.heavy
def test_a_master_that_is_gone_ends_neither_the_job_nor_the_wait(
    world: World, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        staged_in_an_outage(world, cluster.master, capsys)
    finally:
        cluster.down()
        cluster.up()


def test_a_master_that_takes_no_drivers_is_named(world: World) -> None:
    world.plan()
    nobody = replace(connections.read_spark_connection("spark"), cluster=f"http://127.0.0.1:{free_port()}")
    with raises(NotCommitted, "cluster-unreachable", match="rest-port"):
        submit(nobody)
    assert world.now.attempt == 0


@pytest.mark.parametrize("host", ["local[*]", "yarn", "spark://a:7077,b:7077"])
def test_a_deploy_mode_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, host: str) -> None:
    text = cluster.connection().replace(cluster.address, host)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", text)
    with raises(InvalidPipeline, "spark-connection-invalid"):
        connections.read_spark_connection("spark")

"""A stage whose driver runs on a real YARN: found again, ended, killed; and no secret of it is shown."""

from __future__ import annotations

import os
import signal
import stat
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from codes import raises
from integration.airflow.test_airflow import Airflow
from integration.projects.drivers import (
    NAME,
    WORK,
    World,
    ended,
    fired,
    found_by_a_second_try,
    make_world,
    nothing_goes_on,
    staged_in_an_outage,
    trigger,
)
from integration.services import yarn as services
from integration.services.yarn import Yarn
from patience import PATIENCE

from onceonly.airflow import connections
from onceonly.checkpoint.model import State
from onceonly.dev.demo.standalone import wait_until
from onceonly.errors import NotCommitted, OutcomeUnknown
from onceonly.runtime import client_job
from onceonly.runtime.driver import Driver
from onceonly.runtime.yarn import CONTAINER
from onceonly.settings import Settings

pytestmark = [pytest.mark.integration]
SECRET, KEY = "5ecret-of-kafka", "5ecret-of-s3"
HADOOP = {"spark.hadoop.fs.s3a.secret.key": KEY}


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with services.yarn(tmp_path_factory.mktemp("yarn")).running() as found:
        yield found


@pytest.fixture
def world(
    tmp_path: Path, broker: str, yarn: Yarn, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> World:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf))
    kafka = {"kafka_there": {"bootstrap.servers": broker, "client.id": SECRET}}
    return make_world(tmp_path, broker, yarn.connection(conf=HADOOP), kafka, monkeypatch, request)


def application(yarn: Yarn, driver: Driver) -> dict[str, str]:
    found = yarn.manager.ask(f"cluster/apps/{driver.driver}")["app"]
    return dict(found)


def master(world: World) -> psutil.Process:
    """The JVM in which the driver runs."""
    return next(
        process
        for process in world.processes()
        if "ApplicationMaster" in " ".join(process.cmdline()) and _is_java(process)
    )


def _is_java(process: psutil.Process) -> bool:
    return process.name() == "java"


def served(yarn: Yarn) -> dict[str, str]:
    """All that the NodeManager serves of its containers, by URL."""
    found = {}
    logs = yarn.node.folder / "logs"
    for file in logs.rglob("*"):
        if file.is_file() and CONTAINER.fullmatch(file.parent.name):
            running = yarn.node.daemon.running()
            assert running
            url = f"{yarn.node.address(running.port)}/ws/v1/node/containers/{file.parent.name}/logs/{file.name}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                found[url] = answer.read().decode(errors="replace")
    return found


def shown() -> list[str]:
    """Arguments of processes that hold a secret."""
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [command for command in commands if SECRET in command or KEY in command]


def test_a_killed_driver_is_followed_by_one_that_a_second_try_finds(
    world: World, yarn: Yarn, capsys: pytest.CaptureFixture[str]
) -> None:
    world.plan("slow")
    lost = world.submit()
    wait_until(lambda: world.now.attempt == 1, "the driver has claimed the checkpoint", PATIENCE)
    assert application(yarn, lost)["queue"] == "root.default"
    master(world).send_signal(signal.SIGKILL)
    state = fired(trigger(lost))["state"]
    assert state == "FAILED"
    wait_until(lambda: not world.processes(), "nothing of the driver is left", PATIENCE)
    with raises(NotCommitted, "driver-without-report", match=rf"(?s){lost.driver} is FAILED.*yarn logs -applicationId"):
        world.require_staged(lost, state)

    second = found_by_a_second_try(world, capsys)
    assert shown() == []
    world.publish(second, "FINISHED")
    assert (world.now.attempt, world.reports()) == (2, [])
    files = served(yarn)
    assert any("launch_container.sh" in url for url in files), "the NodeManager serves the environment of containers"
    assert [url for url, text in files.items() if SECRET in text or KEY in text] == []
    left = list((yarn.manager.home / "staging").glob("*/.sparkStaging/application_*"))
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in left} == {0o700}, "the killed driver's is still there"


@pytest.mark.heavy
def test_a_run_in_airflow_whose_drivers_are_on_yarn(world: World, yarn: Yarn, tmp_path: Path) -> None:
    """Deferred and resumed; in the queue that the connection names."""
    with Airflow(tmp_path / "airflow", "").initialised():
        os.environ["AIRFLOW_CONN_SPARK"] = yarn.connection(queue="nightly")
        ran = Airflow(tmp_path / "airflow", "").run(world.project, "chained")
    assert (ran["run"], ran["tasks"]["stage"], ran["tasks"]["commit"]) == ("success", "success", "success"), ran["log"]
    assert "a triggerer now waits for it" in ran["log"]
    assert f"its log: {yarn.manager.web}/cluster/app/application_" in ran["log"]
    assert "sink numbers: 8 rows" in ran["log"]
    assert world.project.published() == Counter(range(8))
    [app] = [each for each in yarn.manager.ask("cluster/apps")["apps"]["app"] if each["queue"] == "root.nightly"]
    assert app["finalStatus"] == "SUCCEEDED"


@pytest.mark.heavy
def test_client_mode(world: World, yarn: Yarn, monkeypatch: pytest.MonkeyPatch) -> None:
    world.plan()
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", yarn.connection(conf=HADOOP, **{"deploy-mode": "client"}))
    told: list[str] = []
    job = client_job.make_stage_job(
        connections.read_spark_connection("spark"), told.append, lambda *_: None, connections.read_extra
    )
    job.run(NAME, 1, WORK.owner)
    assert any("sink numbers: 8 rows" in line for line in told), told
    world.through.commit(NAME, 1)
    assert world.project.published() == Counter(range(8))
    assert [url for url, text in served(yarn).items() if SECRET in text or KEY in text] == []


@pytest.mark.heavy
def test_a_second_master_of_one_application_takes_nothing_over(
    world: World, yarn: Yarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where YARN may start another one: the first had claimed the attempt, so the checkpoint has changed."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", yarn.connection(conf={"spark.yarn.maxAppAttempts": "2"}))
    world.plan("slow")
    submitted = world.submit()
    world.until_at_work()
    master(world).send_signal(signal.SIGKILL)
    assert fired(trigger(submitted))["state"] in ("FAILED", "at its end")
    attempts = yarn.manager.ask(f"cluster/apps/{submitted.driver}/appattempts")["appAttempts"]["appAttempt"]
    assert len(attempts) == 2
    with raises(NotCommitted, "ownership-lost", match="it has changed since this process was started"):
        world.require_staged(submitted, "FAILED")
    assert (world.now.state, world.now.attempt) == (State.PLANNED, 1)


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["cleared", "left", "too long", "by others"])
def test_no_application_goes_on_of_a_driver_that_is_ended(world: World, yarn: Yarn, how: str) -> None:
    """Also of one that a later try has found."""
    world.plan("slow")
    first = world.submit()
    world.until_at_work()
    submitted = world.submit()
    assert submitted == first
    state = ended(world, submitted, how, lambda: submitted.cluster.end(submitted.driver))
    assert state == ("TIMED OUT" if how == "too long" else "KILLED")
    nothing_goes_on(world, submitted, state)


@pytest.mark.heavy
def test_a_submission_that_is_killed_leaves_no_application(world: World, yarn: Yarn) -> None:
    world.plan("slow")
    made = WORK.prepare_stage(connections.read_spark_connection("spark"), Settings.from_env(), connections.read_extra)
    assert made is not None
    killed = threading.Thread(
        target=lambda: (wait_until(lambda: made.launcher.child, "it has begun", PATIENCE), made.end())
    )
    killed.start()
    with raises(NotCommitted, "submission-failed", match="-9"):
        made.run(print)
    killed.join()
    assert made._job is not None
    assert all(not made._cluster.look(each).is_at_work for each in made._cluster.list_submitted(made._job))
    assert world.now.attempt == 0


@pytest.mark.heavy
def test_a_manager_that_is_gone_ends_neither_the_job_nor_the_wait(
    world: World, yarn: Yarn, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        submitted = staged_in_an_outage(world, yarn.manager, capsys)
        with pytest.raises((NotCommitted, OutcomeUnknown)):
            submitted.look()
    finally:
        yarn.down()
        yarn.up()


@pytest.mark.heavy
def test_one_that_never_came_to_python_says_why(world: World, yarn: Yarn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last lines are those that the NodeManager serves."""
    there = {"spark.yarn.appMasterEnv.PYSPARK_PYTHON": "/no/such/python"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", yarn.connection(conf=there))
    world.plan()
    submitted = world.submit()
    state = fired(trigger(submitted))["state"]
    with raises(NotCommitted, "driver-without-report", match="/no/such/python"):
        world.require_staged(submitted, state)

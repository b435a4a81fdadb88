"""A stage whose driver runs on a real YARN: found again, ended, killed; and no secret of it is shown."""

from __future__ import annotations

import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from integration import yarn as services
from integration.drivers import NAME, World, fired, make_world, trigger
from integration.yarn import Yarn
from patience import PATIENCE

from onceonly.clusters.driver import Driver
from onceonly.clusters.yarn import CONTAINER
from onceonly.dev.demo.wait import until
from onceonly.errors import NotCommitted

pytestmark = [pytest.mark.integration]
SECRET, KEY = "5ecret-of-kafka", "5ecret-of-s3"
HADOOP = {"spark.hadoop.fs.s3a.secret.key": KEY}


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    found = services.yarn(tmp_path_factory.mktemp("yarn"))
    try:
        found.up()
        yield found
    finally:
        found.down()


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
        each for each in world.processes() if "ApplicationMaster" in " ".join(each.cmdline()) and _is_java(each)
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
    commands = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    return [command for command in commands if SECRET in command or KEY in command]


def test_a_killed_driver_is_followed_by_one_that_a_second_try_finds(
    world: World, yarn: Yarn, capsys: pytest.CaptureFixture[str]
) -> None:
    world.plan("slow")
    lost = world.submit()
    world.until_at_work()
    assert application(yarn, lost)["queue"] == "root.default"
    master(world).send_signal(signal.SIGKILL)
    state = fired(trigger(lost))["state"]
    assert state == "FAILED"
    until(lambda: not world.processes(), "nothing of the driver is left", PATIENCE)
    with pytest.raises(NotCommitted, match=rf"(?s)left no report.*{lost.driver} is FAILED.*yarn logs -applicationId"):
        world.require_staged(lost, state)
    (world.project.folder / "at-work").unlink()

    second = world.submit()
    world.until_at_work()
    assert world.submit() == second
    assert f"{second.driver} of an earlier try is still at work" in capsys.readouterr().out
    assert shown() == []
    world.go_on()
    assert fired(trigger(second))["state"] in ("FINISHED", "at its end")
    world.require_staged(second, "FINISHED")
    world.through.commit(NAME, 1)
    assert world.project.published() == Counter(range(8))
    assert (world.now.attempt, world.reports()) == (2, [])
    files = served(yarn)
    assert any("launch_container.sh" in url for url in files), "the NodeManager serves the environment of containers"
    assert [url for url, text in files.items() if SECRET in text or KEY in text] == []

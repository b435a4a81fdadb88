"""Processes and servers killed at every point of a checkpoint: each row is in the table once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
from integration.programs import children
from integration.readers.kafka_reader import until
from integration.services import postgres
from integration.services.postgres import Postgres
from mortal_postgres import CONNECTION, MAX_RECORDS, TOPIC
from patience import PATIENCE
from plain_client import execute
from targets import connection_variable

from onceonly.testing.fakes import FakeSource

pytestmark = [pytest.mark.integration, pytest.mark.timeout(4 * PATIENCE)]

TESTS = Path(postgres.__file__).parents[2]  # of the repository, whose fixtures the program shares
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
SAMPLE = 3  # points of each fault in `make test`
STORM_KILLS = 30
SHORT_LIMITS = "-c lock_timeout=20s -c idle_in_transaction_session_timeout=2s"  # a stopped process holds locks


@dataclass
class World:
    """A pipeline into a table, on a server that the test may kill."""

    server: Postgres
    home: Path
    table: str
    produced: int = 0

    def produce(self) -> None:
        """Append as many records as a checkpoint takes."""
        numbers = range(self.produced, self.produced + MAX_RECORDS)
        FakeSource(TOPIC, self.home).append(0, *((NOON, number) for number in numbers))
        self.produced += MAX_RECORDS

    def start(self, point: int, fault: str) -> subprocess.Popen[str]:
        program = str(Path(__file__).with_name("mortal_postgres.py"))
        arguments = [str(self.home), self.table, str(point), fault, str(self.server.pid)]
        paths = [str(Path(__file__).parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        return children.start(program, *arguments, env=env)

    def finish(self) -> list[str]:
        """Run to the end, and return the points that were reached."""
        child = self.start(0, "dies")
        printed = children.output(child)
        assert child.returncode == 0, printed
        return [line for line in printed.splitlines() if line[:1].isdigit()]

    def check(self) -> None:
        """Compare the table with what was produced, and look for what is left."""
        rows = execute(self.server.port, f'SELECT n FROM "{self.table}"')
        counts = Counter(number for (number,) in rows)
        assert counts == Counter(range(self.produced)), "rows are lost or doubled"
        left = execute(self.server.port, "SELECT relname FROM pg_class WHERE starts_with(relname, 's_')")
        assert left == []
        ledger = f'"onceonly_{self.table}".ledger'
        assert execute(self.server.port, f"SELECT count(*) FROM {ledger}") == [(1,)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    if postgres.programs() is None:
        pytest.skip("there is no PostgreSQL server here: apt install postgresql")
    with TemporaryDirectory(prefix="onceonly-postgres-") as folder:
        server = Postgres(folder)
        server.start()
        monkeypatch.setenv(*connection_variable(server.port, options=SHORT_LIMITS))
        table = f"numbers_{uuid.uuid4().hex[:8]}"
        execute(server.port, f'CREATE TABLE "{table}" (n int)')
        home = tmp_path / "home"
        home.mkdir()
        try:
            yield World(server, home, table)
        finally:
            children.end_children()
            server.stop()


def count_points(world: World) -> int:
    """Return how many points a checkpoint has after the first one, which makes more."""
    for _ in range(2):
        world.produce()
        points = world.finish()
    world.check()
    return len(points)


def hit(world: World, point: int, fault: str) -> None:
    """Run with a fault at that point, then let another process go on."""
    world.produce()
    child = world.start(point, fault)
    if fault == "stops":
        until(lambda: has_stopped(child), PATIENCE, "the stop")
        world.finish()
        os.kill(child.pid, signal.SIGCONT)
        children.output(child)  # it goes on as if nothing had happened
    else:
        printed = children.output(child)
        assert child.returncode != 0 or fault == "server", printed
    if fault == "server":
        world.server.start()
    world.finish()
    world.check()


def has_stopped(child: subprocess.Popen[str]) -> bool:
    assert child.poll() is None, "it has ended before that point"
    return psutil.Process(child.pid).status() == psutil.STATUS_STOPPED


@pytest.mark.parametrize("fault", ["dies", "stops", "server"])
def test_rows_are_there_once_after_some_points(world: World, fault: str) -> None:
    points = count_points(world)
    for point in random.Random(fault).sample(range(2, points), SAMPLE):
        hit(world, point, fault)


@pytest.mark.heavy
@pytest.mark.parametrize("fault", ["dies", "stops", "server"])
def test_rows_are_there_once_after_every_point(world: World, fault: str) -> None:
    for point in range(1, count_points(world) + 1):
        hit(world, point, fault)


@pytest.mark.heavy
def test_storm(world: World) -> None:
    """Thirty times something is killed or stopped, and nobody tidies up in between."""
    chance = random.Random(7)
    points = count_points(world)
    stopped: list[subprocess.Popen[str]] = []
    for _ in range(STORM_KILLS):
        world.produce()
        fault = chance.choice(["dies", "dies", "stops", "server"])
        child = world.start(chance.randint(1, points), fault)
        if fault == "stops":
            until(lambda child=child: child.poll() is not None or has_stopped(child), PATIENCE, "the stop")
            stopped.append(child)
        else:
            children.output(child)
        if not world.server.is_running:
            world.server.start()
        if stopped and chance.random() < 0.5:
            sleeper = stopped.pop(0)
            if sleeper.poll() is None:
                os.kill(sleeper.pid, signal.SIGCONT)
                children.output(sleeper)
    for sleeper in stopped:
        if sleeper.poll() is None:
            os.kill(sleeper.pid, signal.SIGCONT)
            children.output(sleeper)
    world.finish()
    world.check()


def test_connection_is_the_one_of_the_program() -> None:
    assert connection_variable(1)[0].endswith(CONNECTION.upper())

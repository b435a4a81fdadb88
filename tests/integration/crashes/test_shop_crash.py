"""The example's shop in a storm: registered Avro with garbage into a table, a merged table and dead letters, and a
table behind the first one.

Processes are killed at each durable step in turn, or stopped: such a zombie goes on when others have replaced it. At
the end independent readers find every record exactly once, where it belongs.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from integration.programs.children import output, start, without_spark
from integration.projects.shop import Shop
from integration.readers.kafka_reader import until
from patience import PATIENCE
from schema_registry import FakeRegistry, serving

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(2700)]
SCRIPT = Path(__file__).parents[1] / "victims" / "mortal_shop.py"
KILLED = -signal.SIGKILL
AN_HOUR = 3600
FAULTS = int(os.environ.get("ONCEONLY_STORM_KILLS", "1000"))  # at most
RECORDS = 60  # arrive before each fault
REPLACED = "shop after stage of KafkaWriter 1"  # a process that dies here leaves what the next one has to abort
ABORTS = ("abort", "discard", "withdraw", "delete", "replaced")


@dataclass
class Storm:
    shop: Shop
    spark: str
    produced: int = 0
    met: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def more(self, records: int = RECORDS) -> None:
        self.shop.produce(range(self.produced, self.produced + records))
        self.produced += records

    def run(self, fault: str, point: str) -> subprocess.Popen[str]:
        shop = self.shop
        arguments = [str(shop.folder), self.spark, shop.suffix, str(2 * RECORDS), fault, point]
        return start(str(SCRIPT), *arguments, env={**without_spark(os.environ), **shop.env})

    def kill(self, point: str) -> None:
        """A step that a run does not meet is met by one that has to end what another one has begun."""
        died, printed = self._die(point)
        if died.returncode == 0 and point != REPLACED:
            self.kill(REPLACED)
            died, printed = self._die(point)
        self.note(died, printed, f"dies {point}", KILLED)

    def _die(self, point: str) -> tuple[subprocess.Popen[str], str]:
        self.more()
        died = self.run("dies", point)
        return died, output(died)

    def stop(self, point: str, then: str = "-") -> None:
        """A zombie: another process takes over what it was about, ends it or dies `then`, and the zombie goes on."""
        self.more()
        zombie = self.run("stops", point)
        until(lambda: zombie.poll() is not None or _stopped(zombie), PATIENCE, "a stop")
        self.undisturbed() if then == "-" else self.kill(then)
        with suppress(ProcessLookupError):
            os.killpg(zombie.pid, signal.SIGCONT)
        self.note(zombie, output(zombie), f"stops {point}", 1)  # 1: it was told that it is too late

    def note(self, ended: subprocess.Popen[str], printed: str, fault: str, code: int) -> None:
        assert ended.returncode in (0, code), f"{fault}: {printed}"
        (self.met if fault in printed.splitlines() else self.missed).append(fault)
        print(fault, ended.returncode, flush=True)

    def undisturbed(self, fault: str = "dies") -> str:
        last = self.run(fault, "-")
        printed = output(last)
        assert last.returncode == 0, printed
        return printed

    def points(self) -> list[str]:
        """Every step that a run meets, and one that has to end what another one has begun."""
        self.more()
        begun = self.undisturbed("lists")
        self.kill(REPLACED)
        lines = [*begun.splitlines(), *self.undisturbed("lists").splitlines()]
        return list(dict.fromkeys(line.removeprefix("point ") for line in lines if line.startswith("point ")))

    def check(self) -> None:
        self.undisturbed()
        print(f"{len(self.met)} faults:", self.shop.check_truth(range(self.produced)))
        self.shop.nothing_is_open()
        assert self.missed == []


@pytest.fixture
def storm(tmp_path: Path, broker: str, spark_server: str) -> Iterator[Storm]:
    with serving(FakeRegistry()) as registry:
        yield Storm(Shop.make(tmp_path, broker, registry), spark_server)


@pytest.mark.heavy
def test_a_shop_with_kills_and_a_zombie_is_the_truth(storm: Storm) -> None:
    storm.stop("shop before staged row 1", then="shop after committing row 1")
    storm.kill("shop after files of copies 1")
    storm.kill("revenue after committing row 1")
    storm.check()


@pytest.mark.heavy
@pytest.mark.timeout(3 * AN_HOUR)
def test_a_shop_killed_at_every_step_is_the_truth(storm: Storm) -> None:
    for number, point in enumerate(spread(storm.points())):
        if any(word in point for word in ABORTS):
            storm.kill(REPLACED)
        storm.stop(point) if number % 4 == 3 else storm.kill(point)
    storm.check()


def spread(points: list[str]) -> list[str]:
    """FAULTS of them, from the first to the last."""
    return points[:: -(-len(points) // FAULTS)]


def _stopped(process: subprocess.Popen[str]) -> bool:
    return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED

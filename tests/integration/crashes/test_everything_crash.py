"""Every kind of sink in one checkpoint, killed and stopped at random: each equals the truth, as an independent reader
finds it.

A stopped process is a zombie: others abort what it did, plan it again and publish it, or die over that. Then it goes
on to its end.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from integration.faults.sampling import sampled
from integration.programs.children import output, start, without_spark
from integration.projects.kafka_writers import by_each_writer
from integration.readers.flights_truth import by_hour, by_sums, csv, in_files, in_state
from integration.readers.kafka_reader import new_topic, until
from patience import PATIENCE

from onceonly.checkpoint.offsets import Interval
from onceonly.dev.demo import load, proof
from onceonly.kafka.transactions import Transactions
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

ROOT = Path(__file__).parents[3]
FAULTS = int(os.environ.get("ONCEONLY_STORM_KILLS", sampled("12", "2")))  # kills and stops
pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(max(900, 60 * FAULTS)), by_each_writer]
SCRIPT = Path(__file__).parents[1] / "victims" / "mortal_everything.py"
DAYS = Interval(datetime(2013, 1, 1, 5, tzinfo=UTC), datetime(2013, 1, 6, 5, tzinfo=UTC))


@dataclass
class Storm:
    """Runs of the pipeline, one after the other, each of which meets a fault."""

    folder: Path
    env: dict[str, str]
    arguments: tuple[str, str]  # topics: the source's, the sink's
    spark: str
    days: Interval = DAYS
    chance: random.Random = field(default_factory=lambda: random.Random(2013))
    faults: list[str] = field(default_factory=list)

    def run(self, fault: str, number: int) -> subprocess.Popen[str]:
        arguments = [str(self.folder), self.spark, fault, str(number), *self.arguments]
        return start(str(SCRIPT), *arguments, env={**without_spark(os.environ), **self.env})

    def kill(self, most: int = 90) -> None:
        died = self.run("dies", self.chance.randint(1, most))
        printed = output(died)
        assert died.returncode in (0, -9), f"fault {len(self.faults)}: {printed}"
        self._note(printed)
        if died.returncode == 0:
            self.more()

    def stop(self) -> None:
        """A zombie; another run takes its work over, often to die right after its plan; then the zombie goes on."""
        zombie = self.run("stops", self.chance.randint(1, 90))
        until(lambda: zombie.poll() is not None or _stopped(zombie), PATIENCE, "a stop")
        if zombie.returncode is None:
            self.kill(most=self.chance.choice((4, 40, 90)))
            os.killpg(zombie.pid, signal.SIGCONT)
        else:
            self.more()
        printed = output(zombie)
        assert zombie.returncode in (0, 1), f"fault {len(self.faults)}: {printed}"  # 1: it was told that it is too late
        self._note(printed)

    def end(self) -> None:
        """Everything that is left, undisturbed."""
        last = self.run("dies", 0)
        printed = output(last)
        assert last.returncode == 0, printed

    def more(self) -> None:
        """A run has outlived all there was to do: another day's flights arrive."""
        another = Interval(self.days.end, self.days.end + timedelta(days=1))
        assert load.load(Settings.from_env(self.env), self.arguments[0], another).skipped == 0
        self.days = Interval(self.days.start, another.end)

    def _note(self, printed: str) -> None:
        met = [line for line in printed.splitlines() if line.startswith(("dies ", "stops "))]
        print(*met or ["nothing left to do"], sep="\n", flush=True)
        self.faults += met


def _stopped(process: subprocess.Popen[str]) -> bool:
    return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


def test_every_sink_equals_the_truth(tmp_path: Path, broker: str, spark_server: str) -> None:
    topic, out = f"flights-{uuid.uuid4().hex[:8]}", new_topic(broker)
    env = {
        "ONCEONLY_HOME": str(tmp_path),
        "ONCEONLY_PROJECT": str(ROOT),
        "ONCEONLY_KAFKA_BOOTSTRAP": broker,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)]),
    }
    settings = Settings.from_env(env)
    StateTable.make(settings.state)
    assert load.load(settings, topic, DAYS).skipped == 0
    storm = Storm(tmp_path, env, (topic, out), spark_server)
    while len(storm.faults) < FAULTS:
        storm.kill() if len(storm.faults) % 2 else storm.stop()
    storm.end()

    table = proof.prove(tmp_path / "lake" / "flights", storm.days)
    events = proof.prove_late(broker, out, ROOT / "schemas" / "late-flight.v1.avsc", storm.days)
    truth, closed, held = by_hour(csv(storm.days)), in_files(tmp_path), in_state(settings)
    say(storm.faults, [table, events, by_sums(truth, [closed, held])])
    assert table.holds
    assert events.holds
    assert not closed.keys() & held.keys()
    assert closed | held == truth
    assert closed and held
    with Transactions({"bootstrap_servers": broker}) as known:
        assert known.list_open(f".*-{StateTable(settings.state).id}-everything-.*") == []


def say(faults: list[str], proofs: list[proof.Proof]) -> None:
    """For a long storm (pytest -s): what hit it, and what came of it in the table, the topic, files with state."""
    kills = sum(fault.startswith("dies") for fault in faults)
    rows = ", ".join(str(each.actual) for each in proofs)
    lost, doubled = (sum(getattr(each, name) for each in proofs) for name in ("missing", "extra"))
    print(f"faults: {len(faults)} ({kills} kills, {len(faults) - kills} stops), rows: {rows} {lost=} {doubled=}")

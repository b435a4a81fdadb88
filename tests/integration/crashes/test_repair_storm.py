"""A storm of kills over runs, repairs of every kind, full reprocesses, losses and recoveries, in random order.

Processes are killed and frozen at any of their steps; others finish what they left, or do something else to the same
interval, and the frozen ones go on. OPTIMIZE rewrites the table between them, and beside them. After each piece of work
every reader finds in every sink exactly the rows that were asked for, and what a repair keeps is as it was, byte by
byte.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import CommitFailedError
from integration.faults.sampling import sampled, seconds
from integration.programs.children import output
from integration.programs.repairing import child, is_stopped
from integration.projects.repairs import PER_INTERVAL, VERSION, VOLUMES, Shop, Truth, records
from integration.projects.targets import DELTA, FILES, NAME, TOPIC, Volumes
from integration.readers.kafka_reader import until
from patience import PATIENCE

pytestmark = [pytest.mark.integration, pytest.mark.crash]
SEED = int(os.environ.get("ONCEONLY_STORM_SEED") or random.SystemRandom().randint(1, 1 << 30))
KILLS = int(os.environ.get("ONCEONLY_STORM_KILLS", "30"))
KINDS = ("run", "keep", "again", "only", "lose", "restore", "recover")
MAX_TRIES = 12  # of one piece of work in a row
BESIDE = 3.0  # seconds within which the table is rewritten after a process has begun


@dataclass(frozen=True)
class Work:
    """What is asked of a process.

    Args:
        number: of the interval; None: it is about none.
        sinks: those that it writes.
        version: of the transform.
    """

    kind: str
    body: dict[str, Any]
    number: int | None = None
    sinks: tuple[str, ...] = ()
    version: int = 0
    has_more: bool = True


@dataclass
class Storm:
    shop: Shop
    chance: random.Random
    points: int
    truth: Truth = field(default_factory=Truth)
    intervals: int = 0
    works: int = 0
    kills: int = 0
    met: Counter[str] = field(default_factory=Counter)
    copies: dict[str, dict[int, list[int]]] = field(default_factory=dict)  # by sink: what its copy shows
    last: dict[str, dict[int, int]] = field(default_factory=dict)  # by sink: the last version of each interval

    def __post_init__(self) -> None:
        self.volumes = Volumes(self.shop)

    def blow(self, kills: int) -> None:
        self.do(self.choose("run"))
        kinds: list[str] = []
        while self.kills < kills or self.works <= len(KINDS):
            kinds = kinds or self.chance.sample(KINDS, len(KINDS))  # each comes, in any order
            self.copy_some()
            if self.chance.random() < 0.4:
                self.optimize()
            self.do(self.choose(kinds.pop()))
            self.truth.check(self.shop_of(True), self.shop_of(True).sinks)
            assert self.shop.coordinator.state_table.view(NAME).open == []

    # ---- what is asked for

    def choose(self, kind: str, number: int | None = None) -> Work:
        self.works += 1
        self.met[kind] += 1
        if kind == "run":
            return self._next_run()
        if kind == "recover":
            return Work(kind, {})
        if kind == "lose":
            return self._lose(self.chance.choice((DELTA, FILES)))
        if kind == "restore":
            return self._restore(self.chance.choice((DELTA, FILES)))
        return self._repair(kind, self.chance.randrange(self.intervals) if number is None else number)

    def _next_run(self) -> Work:
        number, has_more = self.intervals, self.chance.random() < 0.5
        self.intervals += 1
        self.shop.produce(range(number * PER_INTERVAL, (number + 1) * PER_INTERVAL))
        return Work("run", {"interval": number}, number, self.shop_of(has_more).sinks, self.works, has_more)

    def _repair(self, kind: str, number: int) -> Work:
        some = self.chance.sample(VOLUMES, self.chance.randint(1, len(VOLUMES) - 1))
        if kind == "only":
            wish = {"only": some}
            sinks = tuple(sink for sink in some if not self.truth.has(sink, number))
        else:
            kept = some if kind == "keep" or self.chance.random() < 0.5 else []
            wish = {"keep": [*kept, TOPIC]} if kind == "keep" else {"keep": kept, "again": [TOPIC]}
            sinks = tuple(sink for sink in self.shop_of(True).sinks if sink not in wish["keep"])
        body = {"interval": number, "request": f"ann: work {self.works}", "wish": wish}
        return Work(kind, body, number, sinks, self.works)

    def _lose(self, sink: str) -> Work:
        """Its volume is restored from a copy that lacks something, if there is one."""
        return Work("lose", {"lost": sink}) if self.goes_back(sink) else Work("recover", {})  # nothing is written

    def _restore(self, sink: str) -> Work:
        """It may go back; what it lacks is written again, with what it has lost before."""
        self.goes_back(sink)
        body = {"lacks": sink, "request": f"work {self.works}"}
        return Work("restore", body, None, (sink,), self.works)

    def goes_back(self, sink: str) -> bool:
        """Whether its volume is restored from a copy that lacks something."""
        if self.copies.get(sink) in (None, self.truth.of(sink)):
            return False
        self.volumes.restore(sink, "copy")
        self.truth.versions[sink] = self.copies.pop(sink)
        self.note(f"{sink} goes back")
        return True

    def lacks(self, sink: str) -> list[int]:
        """The intervals of which it does not show what was written last."""
        last = self.last.get(sink, {})
        return [number for number in last if self.truth.of(sink).get(number) != [last[number]]]

    def copy_some(self) -> None:
        for sink in (DELTA, FILES):
            if self.chance.random() < 0.4:
                self.volumes.copy(sink)
                self.copies[sink] = self.truth.of(sink)

    def optimize(self) -> None:
        """Another writer may be faster: then it does nothing."""
        with suppress(CommitFailedError):
            if self.shop.optimize():
                self.note("optimize")

    # ---- processes

    def do(self, work: Work) -> None:
        """Let processes do it, each of which may be killed, until it is done; one may be frozen, and goes on later."""
        shop = self.shop_of(True)
        kept_sinks = [sink for sink in shop.sinks if sink not in work.sinks]
        kept = {sink: shop.digests(sink) for sink in kept_sinks}
        frozen = self.freeze(work) if work.kind != "lose" and self.chance.random() < 0.3 else None
        rival = self.rival_of(work) if frozen and self.chance.random() < 0.6 else None
        if rival:
            self.pursue(rival)
        if frozen and DELTA in work.sinks:
            self.optimize()
        if frozen:
            os.killpg(frozen.pid, signal.SIGCONT)
            self.outcome(frozen)
        self.pursue(work)
        if self.chance.random() < 0.3:
            self.pursue(work)  # a task that is cleared asks again
        self.settle(work, rival)
        if not rival:
            assert {sink: shop.digests(sink) for sink in kept} == kept

    def rival_of(self, work: Work) -> Work | None:
        """Another repair of the same interval, by somebody who takes the first one for dead."""
        if work.number is None or work.kind == "run":
            return None
        self.note("rival")
        return self.choose(self.chance.choice(("keep", "again", "only")), work.number)

    def freeze(self, work: Work) -> Any:
        """A process that stops at one of its steps; None: it ended before."""
        process = self._start(work, self.chance.randint(1, self.points), "stops")
        until(lambda: process.poll() is not None or is_stopped(process), PATIENCE, "a stop")
        if process.returncode is None:
            self.note("stops")
            return process
        self.outcome(process)
        return None

    def pursue(self, work: Work) -> None:
        for _ in range(MAX_TRIES):
            point = self.chance.randint(1, self.points) if self.chance.random() < 0.75 else 0
            process = self._start(work, point, "dies")
            if DELTA in work.sinks and self.chance.random() < 0.3:
                time.sleep(self.chance.random() * BESIDE)
                self.optimize()
            if self.outcome(process):
                return
        assert self.outcome(self._start(work, 0, "dies")), f"{work} is never done"

    def _start(self, work: Work, point: int, fault: str) -> Any:
        shop = replace(self.shop_of(work.has_more), version=work.version)
        return child(shop, f"{point},0", work.body, fault=fault)

    def outcome(self, process: Any) -> bool:
        """Whether it is done."""
        printed = output(process)
        for line in printed.splitlines():
            if line.startswith(("dies ", "stops ", "staged again ")):
                self.note(line)
        if process.returncode == -signal.SIGKILL:
            self.kills += 1
            return False
        refused = [json.loads(line[8:]) for line in printed.splitlines() if line.startswith("refused ")]
        if refused:
            self.note(f"refused {refused[0]['code']}")
            return refused[0]["code"] == "nothing-lost"  # it was accepted by a process that was killed then
        assert process.returncode == 0, printed
        return True

    # ---- what has come of it

    def settle(self, work: Work, rival: Work | None) -> None:
        """Note what is there now. Where two wrote the same rows, either may have been the last."""
        if work.kind == "restore":
            (sink,) = work.sinks
            for number in self.lacks(sink):
                self.note(f"restored of {sink}")
                self.write(sink, number, work.version)
        if work.number is None:
            return
        for one in (rival, work):
            if one and TOPIC in one.sinks:
                self.truth.write((TOPIC,), work.number, one.version, again=(TOPIC,))
        for sink in VOLUMES:
            versions = {one.version for one in (rival, work) if one and sink in one.sinks}
            if versions:
                self.write(sink, work.number, self._shown(sink, work.number, versions))

    def write(self, sink: str, number: int, version: int) -> None:
        self.truth.write((sink,), number, version)
        self.last.setdefault(sink, {})[number] = version

    def _shown(self, sink: str, number: int, versions: set[int]) -> int:
        """Which of these versions it shows of that interval."""
        if len(versions) == 1:
            return next(iter(versions))
        numbers = set(records(range(number * PER_INTERVAL, (number + 1) * PER_INTERVAL))["number"])
        shown = {n // VERSION for n in self.shop.values(sink) if n % VERSION in numbers}
        assert len(shown) == 1 and shown <= versions, f"{sink}: versions {shown} of interval {number}, not {versions}"
        return shown.pop()

    def shop_of(self, has_more: bool) -> Shop:
        return replace(self.shop, has_more=has_more)

    def note(self, line: str) -> None:
        print(f"{self.kills:3} {line}", flush=True)
        self.met[line.split(" of ")[0]] += 1

    def report(self) -> str:
        rows = {sink: len(self.shop.values(sink)) for sink in self.shop_of(True).sinks}
        counts = f"{self.kills} kills, {self.works} works, {self.intervals * PER_INTERVAL} records"
        return f"{counts}, rows {rows}: 0 lost, 0 doubled"


def ride_out(shop: Shop, seed: int = SEED, kills: int = KILLS, points: int = 60) -> None:
    print(f"seed {seed}")
    storm = Storm(shop, random.Random(seed), points)
    storm.blow(kills)
    print(*storm.met.items(), storm.report(), sep="\n")


@pytest.mark.timeout(seconds(600))
def test_every_sink_is_the_truth_in_a_storm(tmp_path: Path) -> None:
    ride_out(Shop(str(tmp_path)).make(), sampled(SEED, 10), sampled(KILLS, 2))


@pytest.mark.heavy
@pytest.mark.timeout(120 * KILLS)
def test_every_sink_is_the_truth_in_a_storm_with_a_topic(tmp_path: Path, broker: str) -> None:
    ride_out(Shop(str(tmp_path), bootstrap=broker, out=f"copy-{uuid.uuid4().hex[:8]}").make())


@pytest.mark.heavy
@pytest.mark.timeout(180 * KILLS)
def test_every_sink_is_the_truth_in_a_storm_on_spark(tmp_path: Path, broker: str, spark_server: str) -> None:
    name = uuid.uuid4().hex[:8]
    ride_out(Shop(str(tmp_path), spark_server, broker, f"numbers-{name}", f"copy-{name}").make())

"""Targets that are restored, unmounted, replaced and brought back, between the steps of processes that are killed.

Whenever something is refused, the way out that the error prints is followed, also by commands that are killed. In the
end every sink has every row once, but for those of checkpoints that were given up there by a person's word.
"""

from __future__ import annotations

import json
import os
import random
import re
import uuid
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from integration.faults.sampling import sampled, seconds
from integration.programs.children import output, start, without_spark
from integration.projects.targets import DELTA, FILES, NAME, TOPIC, Lake, Volumes
from integration.readers.histories import check_values
from integration.readers.kafka_reader import until
from patience import PATIENCE

from onceonly.checkpoint.model import Event
from onceonly.testing.history import Fate

pytestmark = [pytest.mark.integration, pytest.mark.crash]
ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests" / "integration" / "victims" / "mortal_targets.py"
SEED = int(os.environ.get("ONCEONLY_STORM_SEED") or random.SystemRandom().randint(1, 1 << 30))
KILLS = int(os.environ.get("ONCEONLY_STORM_KILLS", "30"))
COMMAND = re.compile(r"onceonly ((?:accept-loss|resolve|abort|recover)(?: [\w-]+)+)")
SHORT = 10  # points of a command
DONE = ("nothing-lost", "sink-not-waiting")  # a command that is given again had its effect before it was killed
MAX_REFUSALS = 12  # in a row, of one run: then no way out has worked


@dataclass
class Storm:
    """Processes one after the other, faults that hit them, and what is done to the targets meanwhile."""

    lake: Lake
    chance: random.Random
    points: int  # of a run, at which it may be hit
    produced: int = 0
    kills: int = 0
    met: Counter[str] = field(default_factory=Counter)
    exchanged: dict[str, set[int]] = field(default_factory=dict)  # by sink: what it had before
    lost: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # by sink: given up by a person

    def __post_init__(self) -> None:
        self.volumes = Volumes(self.lake)

    def blow(self, kills: int) -> None:
        while self.kills < kills:
            self.more()
            if self.chance.random() < 0.4:
                self.keep_copy()
            if self.chance.random() < 0.4:
                self.disturb()
            self.settle(self.attempt("run"))
        while refusal := self.attempt("run", undisturbed=True):
            self.settle(refusal)

    def more(self) -> None:
        records = self.chance.randint(6, 20)
        self.lake.produce(range(self.produced, self.produced + records))
        self.produced += records

    def settle(self, refusal: dict[str, Any] | None) -> None:
        """Follow the ways out, until a run is not refused."""
        for _ in range(MAX_REFUSALS):
            if refusal is None:
                return
            self.follow(refusal)
            refusal = self.attempt("run")
        raise AssertionError(f"no way out: {refusal}")

    # ---- processes

    def attempt(self, words: str, undisturbed: bool = False) -> dict[str, Any] | None:
        """Let a process do it; what it was refused with, if it was."""
        fault = "stops" if self.chance.random() < 0.25 else "dies"
        number = 0 if undisturbed else self._point(words)
        later = number + self.chance.randint(1, self.points) if fault == "stops" and number else 0
        arguments = [json.dumps(asdict(self.lake)), fault, f"{number},{later}", *words.split()]
        reason = ["an older copy is all there is"] if words.endswith("--reason") else []
        env = {**without_spark(os.environ), **self.lake.env, "PYTHONPATH": self._path()}
        process = start(str(SCRIPT), *arguments, *reason, env=env)
        if fault == "stops":
            until(lambda: process.poll() is not None or _is_stopped(process.pid), PATIENCE, "a stop")
            if process.returncode is None:
                self.disturb()
                psutil.Process(process.pid).resume()
        printed = output(process)
        return self._outcome(words, process.returncode, printed)

    def _point(self, words: str) -> int:
        """Commands, and runs that are refused, have few points."""
        if words != "run" and self.chance.random() < 0.5:
            return 0
        is_short = words != "run" or self.chance.random() < 0.3
        return self.chance.randint(1, SHORT if is_short else self.points)

    def _outcome(self, words: str, code: int, printed: str) -> dict[str, Any] | None:
        lines = printed.splitlines()
        for line in [line for line in lines if line.startswith(("dies ", "stops ", "staged again "))]:
            self.note(f"{words}: {line}")
        if code == -9:
            self.kills += 1
            return self.attempt(words) if words != "run" else None
        refused = [{"code": ""} | json.loads(line[8:]) for line in lines if line.startswith("refused ")]
        if refused:
            self.note(f"{words}: refused {refused[0]['code']}")
            return dict(refused[0])
        assert code == 0, printed
        if words == "run":
            self.check()
            self.exchanged.clear()
        return None

    def _path(self) -> str:
        return os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src"), self.lake.home])

    def note(self, line: str) -> None:
        print(f"{self.kills:3} {line}", flush=True)
        self.met[line.partition(": ")[2].split(" of ")[0] if ": " in line else line] += 1

    # ---- targets

    def keep_copy(self) -> None:
        sink = self.chance.choice((DELTA, FILES))
        if sink not in self.exchanged:
            self.volumes.copy(sink)

    def disturb(self) -> None:
        """Exchange a target, unless it is exchanged already."""
        sink = self.chance.choice(self.lake.sinks)
        if sink in self.exchanged:
            return
        copies = [what for what in ("copy", "given-up") if sink != TOPIC and self.volumes.has(sink, what)]
        kinds = ["recreated"] if sink == TOPIC else ["unmounted", "recreated", *copies, *copies]
        kind = self.chance.choice(kinds)
        self.exchanged[sink] = set(self.lake.values(sink))
        self.note(f"{sink}: {kind}")
        if kind in copies:
            self.volumes.restore(sink, kind)
        elif sink != TOPIC:
            self.volumes.unmount(sink)
        if kind == "recreated":
            self.lake.recreate(sink)

    # ---- ways out

    def follow(self, refusal: dict[str, Any], depth: int = 0) -> None:
        """Do what an error says: bring the target back where that is offered, or say the command that it prints."""
        commands = COMMAND.findall(refusal["todo"])
        said = [command for command in commands if not command.startswith("recover")]
        assert commands or re.search("again|Retry", refusal["todo"]), refusal
        assert depth < MAX_REFUSALS, refusal
        if refusal["code"] == "target-missing":
            return self.bring_all_back()  # nothing was published there yet, so there is no loss to accept
        for command in said or commands:
            sink = command.split()[2] if command.startswith("accept-loss") else ""
            can_be_back = "Bring the target back" in refusal["todo"] and self.volumes.has(sink, "newest")
            if can_be_back and sink in self.exchanged and self.chance.random() < 0.5:
                self.bring_back(sink)
            else:
                self.say(command, depth)

    def bring_all_back(self) -> None:
        for sink in [sink for sink in self.exchanged if self.volumes.has(sink, "newest")]:
            self.bring_back(sink)

    def bring_back(self, sink: str) -> None:
        self.note(f"{sink}: brought back")
        self.volumes.bring_back(sink)
        del self.exchanged[sink]

    def say(self, command: str, depth: int) -> None:
        refusal = self.attempt(command)
        while refusal and refusal["code"] not in DONE:
            self.follow(refusal, depth + 1)
            refusal = self.attempt(command) if command.startswith("accept-loss") else None
        if command.startswith("accept-loss"):
            self.accepted(command.split()[2])

    def accepted(self, sink: str) -> None:
        before, now = self.exchanged.pop(sink, set()), set(self.lake.values(sink))
        self.lost[sink] = (self.lost[sink] | before) - now
        if sink != TOPIC:
            self.volumes.give_up(sink)

    # ---- the truth

    def check(self) -> None:
        """A run has ended: nothing is left to do."""
        view = self.lake.coordinator.state_table.view(NAME)
        assert view.open == []
        checkpoints = [view.require(epoch) for epoch in range(1, (view.latest.epoch if view.latest else 0) + 1)]
        for sink in self.lake.sinks:
            found = self.lake.values(sink)
            lost = set(range(self.produced)) - set(found)
            missing = {
                n for checkpoint in checkpoints if sink in checkpoint.missing for n in Lake.numbers_of(checkpoint)
            }
            given_up = {
                n for checkpoint in checkpoints if sink in checkpoint.given_up for n in Lake.numbers_of(checkpoint)
            }
            fates = dict.fromkeys(given_up, Fate.INFO) | dict.fromkeys(missing, Fate.FAIL)
            check_values(sink, range(self.produced), found, fates)
            assert lost <= self.lost[sink] | given_up, f"{sink}: {lost=} {self.lost[sink]=} {given_up=}"

    def report(self) -> str:
        rows = {sink: len(self.lake.values(sink)) for sink in self.lake.sinks}
        given_up = {sink: self.produced - found for sink, found in rows.items()}
        return f"{self.kills} kills, {self.produced} records, rows {rows}, given up {given_up}: 0 lost, 0 doubled"


def _is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


@pytest.mark.timeout(seconds(300))
def test_rows_arrive_once_although_targets_go_back(tmp_path: Path) -> None:
    ride_out(Lake(str(tmp_path)).make(), sampled(SEED, 10), sampled(KILLS, 3))


@pytest.mark.heavy
@pytest.mark.timeout(120 * KILLS)
def test_rows_arrive_once_in_table_files_and_topic(tmp_path: Path, broker: str) -> None:
    ride_out(Lake(str(tmp_path), bootstrap=broker, out=f"copy-{uuid.uuid4().hex[:8]}").make())


@pytest.mark.heavy
@pytest.mark.timeout(120 * KILLS)
def test_rows_arrive_once_on_spark(tmp_path: Path, broker: str, spark_server: str) -> None:
    name = uuid.uuid4().hex[:8]
    ride_out(Lake(str(tmp_path), spark_server, broker, f"numbers-{name}", f"copy-{name}").make())


def ride_out(lake: Lake, seed: int = SEED, kills: int = KILLS, points: int = 80) -> None:
    storm = Storm(lake, random.Random(seed), points)
    print(f"seed {seed}")
    storm.blow(kills)
    print(*storm.met.items(), storm.report(), sep="\n")
    assert any("refused" in met for met in storm.met)
    assert Event.MISSING in {row.event for row in lake.coordinator.state_table.history(NAME)}

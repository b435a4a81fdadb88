"""What a fault does: each returns in a few words what happened, and everything is as before when it ends."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from onceonly.dev.chaos.airflow_runs import AirflowRuns
from onceonly.dev.chaos.observers import Observer
from onceonly.dev.chaos.project import PIPELINE, ChaosProject
from onceonly.dev.chaos.runs import Run, Runs
from onceonly.dev.chaos.schedule import Fault, FaultKind
from onceonly.dev.services.far_broker import END_TXN, INIT_PRODUCER_ID, FarBroker, Proxy
from onceonly.dev.services.spark import SparkConnect
from onceonly.errors import NotCommitted
from onceonly.statetable.table import StateTable

PRODUCE = 0
DISK = "512m"
MAX_SHIFT_SECONDS = 24 * 3600.0
BLOCK = bytes(1 << 20)
MIN_RIVAL_SECONDS = 5.0  # in which a second scheduler starts at least two runs
MAX_IDLE_SECONDS = 30.0  # until a run begins
MAX_CUT_SECONDS = 40.0  # until somebody asks the broker for something of which the answer is to be lost
MAX_PUBLISHING_SECONDS = 120.0  # for a checkpoint to be published


def mount_disk(folder: Path) -> str:
    """Mount a small disk in memory there. Returns "" or why there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        return "only root may mount a small disk"
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "onceonly-chaos", str(folder)]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return f"no small disk can be mounted: {error}"
    return f"no small disk can be mounted: {result.stderr.strip()}" if result.returncode else ""


def unmount_disk(folder: Path) -> None:
    """Unmount it, if it is mounted."""
    if os.path.ismount(folder):
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


@dataclass
class Injector:
    """Does to the parts of a chaos run what a schedule says.

    Args:
        skipped: kinds that this machine does not allow, and why.
        violations: what no fault may lead to.
    """

    project: ChaosProject
    state: StateTable
    runs: Runs
    broker: FarBroker
    proxy: Proxy
    spark: SparkConnect
    observer: Observer
    skipped: Mapping[FaultKind, str]
    airflow: AirflowRuns | None = None
    violations: list[str] = field(default_factory=list)

    def inject(self, fault: Fault) -> str:
        """Let it happen, and return what happened."""
        if fault.kind in self.skipped:
            return f"skipped: {self.skipped[fault.kind]}"
        actions: dict[FaultKind, Callable[[Fault], str]] = {
            FaultKind.KILL: self._kill,
            FaultKind.PAUSE: self._pause,
            FaultKind.RIVALS: self._start_rivals,
            FaultKind.BROKER_KILL: self._kill_broker,
            FaultKind.BROKER_PAUSE: self._pause_broker,
            FaultKind.LOST_ANSWERS: self._lose_answers,
            FaultKind.FULL_DISK: self._fill_disk,
            FaultKind.CLOCK: self._shift_clock,
            FaultKind.TARGET_BACK: self._take_back,
            FaultKind.SPARK_KILL: self._kill_spark,
            FaultKind.AIRFLOW_KILL: self._kill_airflow,
        }
        return actions[fault.kind](fault)

    # ---- processes

    def _kill(self, fault: Fault) -> str:
        """Kill whatever run works, at a moment that the number says."""
        time.sleep(fault.seconds * fault.number)
        return "a run was killed" if self._signal_run(signal.SIGKILL) else "no run was at work"

    def _pause(self, fault: Fault) -> str:
        time.sleep(fault.seconds * fault.number)
        run = self._signal_run(signal.SIGSTOP)
        if run is None:
            return "no run was at work"
        # they take the run for dead, although it will go on
        heirs = [self.runs.start_command("recover", PIPELINE, "--force"), self.runs.start_run()]
        outcomes = self._finish(heirs)
        run.signal(signal.SIGCONT)
        return f"a run was stopped; meanwhile {outcomes}; then it went on"

    def _signal_run(self, number: signal.Signals) -> Run | None:
        """Send it to the run that works now, or to the next one; None: none has begun in time."""
        end = time.monotonic() + MAX_IDLE_SECONDS
        while time.monotonic() < end:
            run = self.runs.current
            if run is not None and run.signal(number):
                return run
            time.sleep(0.02)
        return None

    def _start_rivals(self, fault: Fault) -> str:
        """Start what a second scheduler would, while the first one goes on."""
        end, outcomes = time.monotonic() + max(fault.seconds, MIN_RIVAL_SECONDS), []
        while time.monotonic() < end:
            rivals = [self.runs.start_run(), self.runs.start_run()]
            time.sleep(fault.seconds * fault.number / 2)
            rivals.append(self.runs.start_command("recover", PIPELINE, "--force"))
            outcomes.append(self._finish(rivals))
        return f"beside the first: {'; '.join(outcomes)}"

    def _finish(self, runs: list[Run]) -> str:
        words = []
        for run in runs:
            answer = self.runs.finish(run)
            words.append(f"{run.words[0]} → {answer.get('result') or answer.get('code') or 'done'}")
        return ", ".join(words)

    # ---- services

    def _kill_broker(self, fault: Fault) -> str:
        self.broker.kill()
        time.sleep(fault.seconds)
        self.broker.start()
        return f"the broker was killed, and away for {fault.seconds:.1f} s"

    def _pause_broker(self, fault: Fault) -> str:
        running = self.broker.daemon.running()
        if running is None or running.pid is None:
            return "the broker was not there"
        os.kill(running.pid, signal.SIGSTOP)
        try:
            time.sleep(fault.seconds)
        finally:
            os.kill(running.pid, signal.SIGCONT)
        return f"the broker did not answer for {fault.seconds:.1f} s"

    def _kill_spark(self, fault: Fault) -> str:
        self.spark.daemon.kill()
        time.sleep(fault.seconds)
        with self.runs.hold():  # those that begin now would only wait for it
            self.spark.launch()
            self.spark.wait()
        return "the Spark server was killed, and started again"

    def _kill_airflow(self, fault: Fault) -> str:
        assert self.airflow is not None
        self.airflow.kill()
        time.sleep(fault.seconds)
        try:
            self.airflow.start_server()
        except NotCommitted as error:
            self.violations.append(f"Airflow does not start again: {error}")
            return "Airflow was killed, and does not start again"
        return f"Airflow was killed with its tasks, and away for {fault.seconds:.1f} s"

    def _lose_answers(self, fault: Fault) -> str:
        apis = {PRODUCE, END_TXN} if fault.number < 0.5 else {INIT_PRODUCER_ID, END_TXN}
        end = time.monotonic() + MAX_CUT_SECONDS
        with self.proxy.cut(apis, "answer", times=2) as cut:
            while not cut.cuts and time.monotonic() < end:  # until somebody asks
                time.sleep(0.1)
            time.sleep(fault.seconds)
        return f"{len(cut.cuts)} answers of the broker were lost"

    # ---- the machine

    def _fill_disk(self, fault: Fault) -> str:
        filler = self.project.disk / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                while True:
                    file.write(BLOCK)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        size = filler.stat().st_size
        time.sleep(fault.seconds)
        filler.unlink()
        return f"the disk was full for {fault.seconds:.1f} s ({size >> 20} MiB)"

    def _shift_clock(self, fault: Fault) -> str:
        self.runs.shift_seconds = shift = round((2 * fault.number - 1) * MAX_SHIFT_SECONDS)
        time.sleep(fault.seconds)
        self.runs.shift_seconds = 0.0
        return f"the clock of runs that began was wrong by {shift} s"

    # ---- targets

    def _take_back(self, _fault: Fault) -> str:
        """Put an older copy in place of the table: a run has to refuse it. Afterwards the newest is back."""
        older, newest = self.project.disk / "older-table", self.project.disk / "newest-table"
        with self._hold_all():
            shutil.rmtree(older, ignore_errors=True)
            if not self.project.table.exists():
                return "there was no table yet"
            shutil.copytree(self.project.table, older)
            decision = self._last_published()
        if not self._await_publication(decision):
            return "nothing was published meanwhile"
        with self._hold_all(), self._exchange(older, newest):
            answer = self.runs.finish(self.runs.start_run())
        code = answer.get("code") or answer.get("result")
        if code == "committed":
            self.violations.append("a run published into an older copy of the table, and did not refuse it")
        return f"an older copy of the table was in its place: the run said '{code}'"

    @contextmanager
    def _hold_all(self) -> Iterator[None]:
        """Let nobody write while the block runs: what is written to a table that is being replaced is lost with it."""
        with ExitStack() as stack:
            stack.enter_context(self.runs.hold())
            if self.airflow is not None:
                stack.enter_context(self.airflow.hold())
            yield

    @contextmanager
    def _exchange(self, older: Path, newest: Path) -> Iterator[None]:
        with self.observer.lock:
            os.rename(self.project.table, newest)
            os.rename(older, self.project.table)
            try:
                yield
            finally:
                shutil.rmtree(self.project.table)
                os.rename(newest, self.project.table)

    def _last_published(self) -> int:
        return max((checkpoint.epoch for checkpoint in self.state.view(PIPELINE).iterate_committed(1)), default=0)

    def _await_publication(self, since: int) -> bool:
        end = time.monotonic() + MAX_PUBLISHING_SECONDS
        while time.monotonic() < end:
            if self._last_published() > since:
                return True
            time.sleep(0.5)
        return False

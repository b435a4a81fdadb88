"""The processes of a chaos run: `onceonly run` again and again, which anything may happen to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, RLock, Thread
from typing import Any

from onceonly.dev.chaos.project import PIPELINE

MAX_RUN_SECONDS = 300.0  # after which a run hangs
NEEDS_RECOVERY = (3, 4)  # exit codes: decided and not carried out, or refused


@dataclass
class Run:
    """One process in a group of its own, and what came of it."""

    process: subprocess.Popen[str]
    words: tuple[str, ...]

    def signal(self, number: signal.Signals) -> bool:
        """Send it to all its processes; False: it has ended."""
        if self.process.poll() is not None:
            return False
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
            return True
        return False

    def wait(self, seconds: float = MAX_RUN_SECONDS) -> dict[str, Any]:
        """Return the object that it printed at its end, or {"code": why there is none}."""
        try:
            printed, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.communicate()
            return {"code": "hangs"}
        if self.process.returncode == -signal.SIGKILL:
            return {"code": "killed"}
        with suppress(ValueError):
            answer = json.loads(printed)
            if isinstance(answer, dict):
                return answer
        return {"code": "no answer", "printed": printed[-2000:]}


@dataclass
class Runs(Thread):
    """A thread that keeps one run going, and starts others on request."""

    project: Path
    file: Path
    environment: Mapping[str, str]
    log: Path
    shift_seconds: float = 0.0  # of the clock of the runs that begin
    outcomes: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    current: Run | None = None
    _gate: RLock = field(default_factory=RLock)  # held while a run works
    _lock: Lock = field(default_factory=Lock)
    _ended: Event = field(default_factory=Event)
    _runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(name="chaos-runs", daemon=True)

    __hash__ = Thread.__hash__

    def run(self) -> None:
        while not self._ended.is_set():
            with self._gate:
                self.current = self.start_run()
                answer = self.finish(self.current)
                if self.current.process.returncode in NEEDS_RECOVERY:
                    self.finish(self.start_command("recover", PIPELINE))
            self._ended.wait(0.2 if answer.get("result") == "committed" else 0.5)

    def stop(self) -> None:
        """Let the run that works end, and start no other."""
        self._ended.set()
        self.join()

    def end(self) -> None:
        """Kill whatever is still there."""
        self._ended.set()
        with self._lock:
            for run in self._runs:
                run.signal(signal.SIGKILL)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Start none while the block runs; it begins when the one that works has ended."""
        with self._gate:
            yield

    def start_run(self) -> Run:
        """Start a run of one checkpoint."""
        return self.start_command("run", str(self.file))

    def start_command(self, *words: str) -> Run:
        """Start `onceonly` with these words and --json."""
        module = [sys.executable, "-m", "onceonly.dev.chaos.worker", str(self.shift_seconds)]
        with self.log.open("a") as errors:
            process = subprocess.Popen(
                [*module, *words, "--json"],
                cwd=self.project,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        run = Run(process, words)
        with self._lock:
            self._runs = [other for other in self._runs if other.process.poll() is None]
            self._runs.append(run)
        return run

    def finish(self, run: Run) -> dict[str, Any]:
        """Wait for it, and note how it ended."""
        answer = run.wait()
        word = answer.get("result") or answer.get("code") or "done"
        if word == "done" and answer.get("errors"):
            word = answer["errors"][0]["code"]
        with self._lock:
            self.outcomes[f"{run.words[0]}: {word}"] += 1
        if word in ("no answer", "hangs", "unexpected"):
            self.unexpected.append(f"{' '.join(run.words)}: {answer.get('printed') or answer.get('why') or word}")
        return answer

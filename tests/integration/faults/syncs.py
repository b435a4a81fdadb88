"""What a program has synced to disk, and when: its system calls, as strace shows them.

trace = syncs.trace([sys.executable, "program.py"], folder)
trace.synced("staged")  # the paths that were synced before the program called mark("staged")
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

MARKS = "/onceonly-mark"  # nothing is there
SYNCS = ("fsync", "fdatasync")
NAMES = ("link", "linkat", "rename", "renameat", "renameat2")
CALL = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?:\(| resumed>)(.*)")
PROBE = "/.probe-"  # a name that was only tried, and removed
MISSING = "strace is not installed: apt-get install strace"


def mark(name: str) -> None:
    """Called by the program: everything before has happened."""
    with suppress(OSError):
        os.readlink(f"{MARKS}/{name}")


@dataclass(frozen=True)
class Event:
    """A sync of a file or folder, a name that was given to a file, or a mark."""

    kind: str  # "sync", "name" or "mark"
    path: str


@dataclass(frozen=True)
class Trace:
    """The events of a program, in order; `output`: what it has printed."""

    events: Sequence[Event]
    output: str

    def synced(self, by: str) -> set[str]:
        """The paths that were synced before that mark."""
        return {event.path for event in self._before(by) if event.kind == "sync"}

    def names_synced(self, folder: str, by: str) -> bool:
        """Whether the folder was synced before that mark, and after the last name that was given in it."""
        events = self._before(by)
        named = [at for at, event in enumerate(events) if event.kind == "name" and parent(event.path) == folder]
        synced = [at for at, event in enumerate(events) if event == Event("sync", folder)]
        return bool(synced) and max(synced) > max(named, default=-1)

    def first_named(self, path: str) -> int:
        """The place of the event that gave that name."""
        return self.events.index(Event("name", path))

    def before(self, at: int) -> Trace:
        return Trace([*self.events[:at], Event("mark", "then")], self.output)

    def _before(self, by: str) -> Sequence[Event]:
        return self.events[: self.events.index(Event("mark", by))]


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def trace(command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> Trace:
    """Run the program, with all its processes, and wait for its end. Skips the test where strace cannot be used."""
    if shutil.which("strace") is None:
        pytest.skip(MISSING)
    output = folder / "strace"
    calls = ",".join((*SYNCS, *NAMES, "readlink", "readlinkat"))
    strace = ["strace", "-f", "--seccomp-bpf", "-y", "-s", "4096", "-e", f"trace=?{calls.replace(',', ',?')}"]
    environment = {**os.environ, **(env or {})}
    done = subprocess.run([*strace, "-o", str(output), *command], capture_output=True, text=True, env=environment)
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("this machine forbids strace")
    assert done.returncode == 0, done.stderr[-4000:]
    return Trace(_events(output.read_text()), done.stdout)


def _events(text: str) -> list[Event]:
    """A call that was interrupted by another thread is told in two lines; it has happened when it returns."""
    begun: dict[str, str] = {}
    events = []
    for line in text.splitlines():
        match = CALL.match(line)
        if not match:
            continue
        process, call, rest = match.groups()
        if rest.endswith("<unfinished ...>"):
            begun[process] = rest
            continue
        arguments = begun.pop(process, "") + rest if "resumed>" in line else rest
        if event := _event(call, arguments):
            events.append(event)
    return events


def _event(call: str, arguments: str) -> Event | None:
    if call.startswith("readlink"):
        name = re.search(rf'"{MARKS}/([^"]+)"', arguments)
        return Event("mark", name[1]) if name else None
    if not re.search(r"\) += 0", arguments):
        return None
    if call in SYNCS:
        path = re.search(r"\d+<([^>]+)>", arguments)
        return Event("sync", path[1]) if path else None
    names = re.findall(r'"([^"]+)"', arguments)
    return Event("name", names[-1]) if names and PROBE not in names[-1] else None

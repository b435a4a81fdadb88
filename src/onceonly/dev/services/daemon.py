"""A process that outlives its starter and is still never lost, nor mistaken for another.

Each start draws a token, writes it down, and only then starts the process with the token in its environment. Whatever
carries the token belongs to this start: the process and its descendants, also where the pid was never recorded, the
process has died before its children, or its pid has been given to someone else.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from onceonly.errors import NotCommitted

TOKEN = "ONCEONLY_SERVICE_TOKEN"
PATIENCE = 20.0  # seconds a service gets to end by itself


class ServiceFailed(NotCommitted):
    """An embedded service cannot be started or stopped."""


@dataclass(frozen=True)
class Started:
    """What is known of the last start; `pid` is None if the starter died in between."""

    token: str
    port: int
    pid: int | None = None


class Daemon:
    """One background process with its folder, log and record of the last start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self._record = folder / "started.json"

    def last(self) -> Started | None:
        """The last start, alive or not; None after an orderly stop."""
        try:
            return Started(**json.loads(self._record.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def running(self) -> Started | None:
        """The last start, if its process is alive."""
        last = self.last()
        return last if last and last.pid and _is_leader(last.pid, last.token) else None

    def start(self, command: Sequence[str], port: int, environment: Mapping[str, str]) -> None:
        """Start in a session of its own; output goes to the log."""
        token = uuid.uuid4().hex
        self._write(Started(token, port))
        self._write(Started(token, port, self._spawn(command, {**os.environ, **environment, TOKEN: token})))

    def stop(self) -> None:
        """End all that carries the token: ask, wait, kill. Returns when nothing is left."""
        last = self.last()
        if last is None:
            return
        doomed: set[psutil.Process] = set()
        for signal in (psutil.Process.terminate, psutil.Process.kill):
            doomed |= _belonging(last.token)
            _end(doomed, signal)
        _reap(last.pid)
        until = time.monotonic() + PATIENCE
        while left := set(_carriers(last.token)):  # what was amid an exec had no environment to be found by
            if time.monotonic() > until:
                pids = sorted(process.pid for process in left)
                raise ServiceFailed(f"{self.folder.name} does not end.", f"Processes {pids} survive SIGKILL.")
            _end(left, psutil.Process.kill)
        self._record.unlink()

    def tail(self, lines: int = 20) -> str:
        """The end of the log."""
        with suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _write(self, started: Started) -> None:
        new = self._record.with_suffix(".new")
        new.write_text(json.dumps(asdict(started)))
        new.replace(self._record)

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        output = (os.POSIX_SPAWN_OPEN, 1, str(self.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        files = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), output, (os.POSIX_SPAWN_DUP2, 1, 2)]
        return os.posix_spawn(command[0], list(command), environment, file_actions=files, setsid=True)


def _end(doomed: set[psutil.Process], signal: Callable[[psutil.Process], None]) -> None:
    for process in doomed:
        with suppress(psutil.NoSuchProcess):
            signal(process)
    psutil.wait_procs(list(doomed), timeout=PATIENCE)


def _is_leader(pid: int, token: str) -> bool:
    """Whether this pid is still the process that was started; amid an exec the environment is empty for a moment."""
    end = time.monotonic() + 1
    with suppress(psutil.Error):  # gone, a zombie, or another user's
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
            if environment := process.environ():
                return environment.get(TOKEN) == token
            time.sleep(0.005)
    return False


def _belonging(token: str) -> set[psutil.Process]:
    """All that carries the token, and what shares a session with it or descends from it: a process that sets its own
    title (Airflow's do) writes over its environment, token included."""
    carriers = set(_carriers(token))
    sessions = {sid for process in carriers if (sid := _session(process)) is not None}
    same_session = {process for process in psutil.process_iter() if _session(process) in sessions}
    descendants = set()
    for process in carriers:
        with suppress(psutil.Error):
            descendants |= set(process.children(recursive=True))
    return carriers | same_session | descendants


def _session(process: psutil.Process) -> int | None:
    """Its session, unless it is our own: a service starts in a new one."""
    try:
        session = os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return None
    return session if session != os.getsid(0) else None


def _carriers(token: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(TOKEN) == token:
                yield process


def _reap(pid: int | None) -> None:
    """Take leave of a child that was killed by someone else; it is a zombie until then."""
    if pid is not None:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

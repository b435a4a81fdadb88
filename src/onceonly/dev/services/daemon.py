"""A background process that outlives its starter, and can always be found and told from other processes.

Each start generates a token, records it, and only then starts the process with the token in its environment. Any
process with the token belongs to this start: the process and its descendants, even if its pid was never recorded, it
died before its children, or its pid was reused.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from onceonly.errors import NotCommitted

try:
    import psutil
except ModuleNotFoundError as missing:
    raise NotCommitted(
        "the embedded services cannot be used.",
        "psutil is not installed in this environment.",
        "Install it: pip install 'onceonly[services]'. Nothing was started.",
    ) from missing

TOKEN = "ONCEONLY_SERVICE_TOKEN"
TIMEOUT = 20.0  # seconds for a service to exit by itself


class ServiceFailed(NotCommitted):
    """An embedded service cannot be started or stopped."""


@dataclass(frozen=True)
class Started:
    """The record of the last start; `pid` is None if the starter died before it could record it."""

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
        """The last start, running or not; None after `stop`."""
        try:
            return Started(**json.loads(self._record.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def running(self) -> Started | None:
        """The last start, if its process is running."""
        last = self.last()
        return last if last and last.pid and _is_leader(last.pid, last.token) else None

    def start(self, command: Sequence[str], port: int, environment: Mapping[str, str]) -> None:
        """Start the command in a session of its own; its output goes to the log."""
        token = uuid.uuid4().hex
        self._write(Started(token, port))
        self._write(Started(token, port, self._spawn(command, {**os.environ, **environment, TOKEN: token})))

    def stop(self) -> None:
        """End all processes with the token: terminate, wait, kill. Returns when none is left."""
        last = self.last()
        if last is None:
            return
        doomed: set[psutil.Process] = set()
        for signal in (psutil.Process.terminate, psutil.Process.kill):
            doomed |= _belonging(last.token)
            _end(doomed, signal)
        _reap(last.pid)
        until = time.monotonic() + TIMEOUT
        while left := set(_carriers(last.token)):  # during an exec a process has no environment to be found by
            if time.monotonic() > until:
                pids = sorted(process.pid for process in left)
                raise ServiceFailed(
                    f"{self.folder.name} cannot be stopped.",
                    f"The processes {pids} did not end {TIMEOUT:.0f} s after SIGKILL.",
                    "See what blocks them, such as a hanging file system, and stop it again.",
                )
            _end(left, psutil.Process.kill)
        self._record.unlink()

    def tail(self, lines: int = 20) -> str:
        """The last lines of the log."""
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
    psutil.wait_procs(list(doomed), timeout=TIMEOUT)


def _is_leader(pid: int, token: str) -> bool:
    """Whether the pid is still the process that was started. During an exec its environment is empty for a moment."""
    end = time.monotonic() + 1
    with suppress(psutil.Error):  # it has ended, is a zombie, or is another user's
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
            if environment := process.environ():
                return environment.get(TOKEN) == token
            time.sleep(0.005)
    return False


def _belonging(token: str) -> set[psutil.Process]:
    """All processes with the token, and those that share a session with one or descend from one.

    A process that sets its title, as Airflow's do, overwrites its environment and with it the token.
    """
    carriers = set(_carriers(token))
    sessions = {sid for process in carriers if (sid := _session(process)) is not None}
    same_session = {process for process in psutil.process_iter() if _session(process) in sessions}
    descendants = set()
    for process in carriers:
        with suppress(psutil.Error):
            descendants |= set(process.children(recursive=True))
    return carriers | same_session | descendants


def _session(process: psutil.Process) -> int | None:
    """The session of a process, unless it is our own: a service starts in a new one."""
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
    """Collect the exit status of a child that another process killed; it is a zombie until then."""
    if pid is not None:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

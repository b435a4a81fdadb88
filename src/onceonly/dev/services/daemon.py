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
from onceonly.waits import wait_for

try:
    import psutil
except ModuleNotFoundError as missing:
    raise NotCommitted(
        "the embedded services cannot be used.",
        "psutil is not installed in this environment.",
        "Install it: pip install 'onceonly[services]'. Nothing was started.",
        code="package-missing",
    ) from missing

TOKEN = "ONCEONLY_SERVICE_TOKEN"
EXIT_SECONDS = 20.0  # for a service to exit by itself


class ServiceFailed(NotCommitted):
    """An embedded service cannot be started or stopped."""


@dataclass(frozen=True)
class Started:
    """The record of a start.

    Args:
        pid: None if the starter died before it could record it.
    """

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
        """Return the last start, running or not; None after `stop`."""
        try:
            return Started(**json.loads(self._record.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def running(self) -> Started | None:
        """Return the last start, if its process is running."""
        last = self.last()
        if last and last.pid and _is_leader(last.pid, last.token):
            return last
        return None

    def start(self, command: Sequence[str], port: int, environment: Mapping[str, str]) -> None:
        """Start the command in a session of its own; its output goes to the log."""
        token = uuid.uuid4().hex
        self._write_record(Started(token, port))  # first: should this process die in between, `stop` still finds all
        pid = self._spawn(command, {**os.environ, **environment, TOKEN: token})
        self._write_record(Started(token, port, pid))

    def stop(self) -> None:
        """End all processes with the token: terminate, wait, kill. Returns when none is left."""
        last = self.last()
        if last is not None:
            with wait_for(f"the processes of {self.folder.name} to end"):
                self._stop(last, (psutil.Process.terminate, psutil.Process.kill))

    def kill(self) -> None:
        """Kill all processes with the token without a warning, as a power cut does. Returns when none is left."""
        last = self.last()
        if last is not None:
            with wait_for(f"the processes of {self.folder.name} to end"):
                self._stop(last, (psutil.Process.kill,))

    def _stop(self, last: Started, signals: Sequence[Callable[[psutil.Process], None]]) -> None:
        processes: set[psutil.Process] = set()
        for signal in signals:
            processes |= _find_processes(last.token)
            _end(processes, signal)
        _reap(last.pid)
        limit = time.monotonic() + EXIT_SECONDS
        while survivors := set(_find_carriers(last.token)):  # in an exec a process has no environment to be found by
            if time.monotonic() > limit:
                pids = sorted(process.pid for process in survivors)
                raise ServiceFailed(
                    f"{self.folder.name} cannot be stopped.",
                    f"The processes {pids} did not end {EXIT_SECONDS:.0f} s after SIGKILL.",
                    "See what blocks them, such as a hanging file system, and stop it again.",
                    code="service-not-stopped",
                )
            _end(survivors, psutil.Process.kill)
        self._record.unlink()

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of the log."""
        with suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _write_record(self, started: Started) -> None:
        new = self._record.with_suffix(".new")
        new.write_text(json.dumps(asdict(started)))
        new.replace(self._record)

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Start the command, and return its pid."""
        output = (os.POSIX_SPAWN_OPEN, 1, str(self.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        files = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), output, (os.POSIX_SPAWN_DUP2, 1, 2)]
        return os.posix_spawn(command[0], list(command), environment, file_actions=files, setsid=True)


def _end(processes: set[psutil.Process], signal: Callable[[psutil.Process], None]) -> None:
    """Signal the processes, and wait for their end, but for no longer than EXIT_SECONDS."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            signal(process)
    psutil.wait_procs(list(processes), timeout=EXIT_SECONDS)


def _is_leader(pid: int, token: str) -> bool:
    """Return whether the pid is still the process that was started.

    During an exec its environment is empty for a moment.
    """
    end = time.monotonic() + 1
    with suppress(psutil.Error):  # it has ended, is a zombie, or is another user's
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
            environment = process.environ()
            if environment:
                return environment.get(TOKEN) == token
            time.sleep(0.005)
    return False


def _find_processes(token: str) -> set[psutil.Process]:
    """Find all processes with the token, and those that share a session with one or descend from one.

    A process that sets its title, as Airflow's do, overwrites its environment and with it the token.
    """
    carriers = set(_find_carriers(token))
    sessions = {_find_session(process) for process in carriers} - {None}
    same_session = {process for process in psutil.process_iter() if _find_session(process) in sessions}
    descendants = set()
    for process in carriers:
        with suppress(psutil.Error):
            descendants |= set(process.children(recursive=True))
    return carriers | same_session | descendants


def _find_session(process: psutil.Process) -> int | None:
    """Return the session of a process, unless it is our own: a service starts in a new one."""
    try:
        session = os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return None
    return session if session != os.getsid(0) else None


def _find_carriers(token: str) -> Iterator[psutil.Process]:
    """Yield all processes with the token in their environment."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(TOKEN) == token:
                yield process


def _reap(pid: int | None) -> None:
    """Collect the exit status of a child that another process killed; it is a zombie until then."""
    if pid is not None:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

"""Who owns a checkpoint, and whether that owner is still running.

On Linux a process is identified by its PID, the boot and the PID namespace in which the PID is valid (two containers
may share a host name), and its start in clock ticks since boot, which clock changes do not affect. A wrong result
costs work, never rows: attempts are fenced by the state table. Source: proc(5).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.owner_keys import airflow_owner as airflow_owner
from onceonly.checkpoint.owner_keys import installation_of as installation_of
from onceonly.checkpoint.owner_keys import parse_airflow_run as parse_airflow_run
from onceonly.errors import OnceonlyError

LEASE = timedelta(hours=1)  # how long an owner that cannot be checked counts as alive after its last transition
UNKNOWN_SCOPE = "unknown"  # on systems other than Linux, where processes cannot be identified
ENDED_PROCESS_STATES = ("Z", "X")  # a zombie has ended, although its parent has not collected its status


def process_owner() -> str:
    """Return the owner key of a run outside Airflow; unique even if process ids are reused."""
    return f"cli:{socket.gethostname()}:{_read_pid_scope()}:{os.getpid()}:{_read_start(os.getpid())}"


def is_alive(checkpoint: Checkpoint) -> bool:
    """Return whether the owner is running: exact for a process on this system, by a lease for any other owner."""
    kind, *process = checkpoint.owner.split(":")
    if kind == "cli" and len(process) == 4:
        _, pid_scope, pid, start = process
        if pid_scope == _read_pid_scope() and pid_scope != UNKNOWN_SCOPE:
            return _read_start(int(pid)) == start
    return datetime.now(UTC) - checkpoint.updated_at < LEASE


@contextmanager
def keep_lease(renew: Callable[[], bool], every: timedelta = LEASE / 4) -> Iterator[None]:
    """Renew a lease regularly while the block runs, until `renew` returns False."""
    done = threading.Event()

    def renew_regularly() -> None:
        while not done.wait(every.total_seconds()):
            with suppress(OnceonlyError):  # a lost lease costs work, not rows; the next renewal may succeed
                if not renew():
                    return

    thread = threading.Thread(target=renew_regularly, name="onceonly-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def is_never_alive(checkpoint: Checkpoint) -> bool:
    """Treat every owner as ended: an `Alive` for manual resolution."""
    return False


def _read_pid_scope() -> str:
    """Return the boot and the PID namespace in which a process id is valid."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return UNKNOWN_SCOPE


def _read_start(pid: int) -> str:
    """Return the start of the process in clock ticks since boot; 'ended' if it is no longer running."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "ended"
    if state in ENDED_PROCESS_STATES:
        return "ended"
    return fields[18]

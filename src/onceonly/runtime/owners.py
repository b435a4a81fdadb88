"""Who owns a checkpoint, and whether that owner is still at work.

On Linux a process is known by where its number counts (this boot of this kernel, this PID namespace: two containers may
share a host name) and by when it started, in clock ticks since the boot, which no change of the clock moves. An answer
that is wrong costs work, never rows: attempts are fenced by the state table. Source: proc(5).
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
from onceonly.errors import OnceonlyError

LEASE = timedelta(hours=1)  # how long an owner that cannot be asked counts as alive after its last transition
UNKNOWN = "unknown"  # where processes cannot be told apart: another system than Linux
ENDED = ("Z", "X")  # a zombie has ended, although nobody has taken note of it


def this_process() -> str:
    """The owner key of a run outside Airflow: unique, also when process ids are reused."""
    return f"cli:{socket.gethostname()}:{_here()}:{os.getpid()}:{_started(os.getpid())}"


def airflow_run(dag_id: str, run_id: str) -> str:
    """The owner key of a DAG run."""
    return f"airflow:{dag_id}:{run_id}"


def parse_airflow_run(owner: str) -> tuple[str, str] | None:
    """(DAG id, run id) of an owner that is a DAG run."""
    kind, _, rest = owner.partition(":")
    dag_id, _, run_id = rest.partition(":")
    return (dag_id, run_id) if kind == "airflow" else None


def alive(checkpoint: Checkpoint) -> bool:
    """Exact for a process that can be seen from here; anyone else has a lease."""
    kind, *process = checkpoint.owner.split(":")
    if kind == "cli" and len(process) == 4:
        _, place, pid, started = process
        if place == _here() and place != UNKNOWN:
            return _started(int(pid)) == started
    return datetime.now(UTC) - checkpoint.updated_at < LEASE


@contextmanager
def renewing(renew: Callable[[], bool], every: timedelta = LEASE / 4) -> Iterator[None]:
    """Renew a lease now and then while work goes on, until `renew` says that there is none any more."""
    done = threading.Event()

    def go_on() -> None:
        while not done.wait(every.total_seconds()):
            with suppress(OnceonlyError):  # a lease that ends costs work, not rows; the next time may do
                if not renew():
                    return

    thread = threading.Thread(target=go_on, name="onceonly-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def nobody(checkpoint: Checkpoint) -> bool:
    """An `Alive` that treats every owner as ended: a person's word."""
    return False


def _here() -> str:
    """Where process ids mean the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return UNKNOWN


def _started(pid: int) -> str:
    """Clock ticks from the boot to the start of the process; 'ended' for one that is not at work any more."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "ended"
    return "ended" if state in ENDED else fields[18]

"""Who owns a checkpoint, and whether that owner is still at work.

An answer that is wrong costs work, never rows: attempts are fenced by the state table.
"""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta

import psutil

from onceonly.checkpoint import Checkpoint

LEASE = timedelta(hours=1)  # how long an owner that cannot be asked counts as alive after its last transition


def this_process() -> str:
    """The owner key of a run outside Airflow: unique on this machine even when process ids are reused."""
    return f"cli:{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}"


def airflow_run(dag_id: str, run_id: str) -> str:
    """The owner key of a DAG run."""
    return f"airflow:{dag_id}:{run_id}"


def parse_airflow_run(owner: str) -> tuple[str, str] | None:
    """(DAG id, run id) of an owner that is a DAG run."""
    kind, _, rest = owner.partition(":")
    dag_id, _, run_id = rest.partition(":")
    return (dag_id, run_id) if kind == "airflow" else None


def alive(checkpoint: Checkpoint) -> bool:
    """Exact for a process of this machine; anyone else has a lease."""
    kind, _, rest = checkpoint.owner.partition(":")
    if kind == "cli":
        host, pid, started = rest.rsplit(":", 2)
        if host == socket.gethostname():
            return _started(int(pid)) == started
    return datetime.now(UTC) - checkpoint.updated_at < LEASE


def nobody(checkpoint: Checkpoint) -> bool:
    """An `Alive` that treats every owner as ended: a person's word."""
    return False


def _started(pid: int) -> str:
    try:
        return str(int(psutil.Process(pid).create_time() * 100))
    except psutil.NoSuchProcess:
        return "gone"

"""Starting a process that dies while it copies, and what has to be so when others have finished its work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterable

import psutil
from integration.programs.children import output
from integration.projects.copying import Copy
from integration.projects.project import HOUR, START, produce
from integration.readers.histories import check_log
from integration.readers.kafka_reader import committed, ends, until
from patience import PATIENCE

KILLED = -signal.SIGKILL


def start(copy: Copy, point: str, action: str = "run") -> subprocess.Popen[str]:
    plain = {name: value for name, value in vars(copy).items() if name != "project"}
    return copy.project.child("victims/mortal_kafka.py", action, point, json.dumps(plain))


def die(copy: Copy, point: str, action: str = "run") -> None:
    child = start(copy, point, action)
    printed = output(child)
    assert child.returncode == KILLED, f"'{point}' was not reached: {child.returncode} {printed} {copy.events()}"


def live(copy: Copy, action: str = "run", seconds: float = 2 * PATIENCE) -> str:
    child = start(copy, "-", action)
    printed = output(child, seconds)
    assert child.returncode == 0, printed
    return printed


def stopped(copy: Copy, point: str, action: str = "run") -> subprocess.Popen[str]:
    """A process that hangs at this point, as in a long pause of its machine."""
    child = start(copy, f"stop {point}", action)
    until(lambda: has_stopped(child), PATIENCE, f"the stop {point}")
    return child


def has_stopped(child: subprocess.Popen[str]) -> bool:
    assert child.poll() is None, child.communicate()[0]
    return psutil.Process(child.pid).status() == psutil.STATUS_STOPPED


def wake(child: subprocess.Popen[str]) -> str:
    """It goes on as if nothing had happened; what it printed until its end."""
    os.kill(child.pid, signal.SIGCONT)
    return output(child)


def kill_session(child: subprocess.Popen[str]) -> None:
    """The process and whatever it has started, also in other process groups."""
    for process in psutil.process_iter():
        if session(process) == child.pid:
            process.kill()
    child.communicate()
    until(lambda: not any(session(p) == child.pid and p.is_running() for p in psutil.process_iter()))


def session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


def fill(copy: Copy, numbers: range, an_hour: int) -> None:
    """So many numbers in each hour of the source."""
    produce(copy.project, numbers, {number: START + number // an_hour * HOUR for number in numbers})


def check_truth(copy: Copy, numbers: Iterable[int]) -> None:
    """Every number once, in its partition, in order."""
    copy.visible()
    check_log(copy.out, numbers, 4, committed(copy.brokers, copy.out))


def arrived(copy: Copy) -> dict[int, list[int]]:
    """What a plain read_committed consumer finds: partition -> numbers in their order."""
    copy.visible()
    found = defaultdict(list)
    for record in committed(copy.brokers, copy.out):
        found[record.partition].append(int(record.value or b""))
    return dict(found)


def nothing_is_left(copy: Copy) -> None:
    """No transaction is open, no reader is held up, nothing is spooled."""
    assert copy.open() == []
    assert ends(copy.brokers, copy.out, stable=True) == ends(copy.brokers, copy.out, stable=False)
    assert not list((copy.project.folder / "home" / "spool").glob("*"))

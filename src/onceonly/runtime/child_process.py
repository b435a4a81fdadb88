"""Child processes: run as a group that does not outlive this process, and given files that nobody else can read."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from tempfile import NamedTemporaryFile

from onceonly.settings import Settings
from onceonly.spark.conf import ELSEWHERE

TERM_GRACE_SECONDS = 3.0  # seconds from SIGTERM to SIGKILL; Airflow gives a task five
JAVA_FRAME = re.compile(r"\s+(at \S+\(|\.\.\. \d+ more)")  # of a stack trace of Java
MAX_ERROR_LINES = 12  # lines of the output that go into an error


@contextmanager
def start_group(
    command: Sequence[str], settings: Settings, more: Mapping[str, str], inherited: Sequence[int] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Run a command as a process group, which does not outlive this block, nor (on Linux) this process.

    Args:
        more: environment variables, beside those of this process.
        inherited: file descriptors.
    """
    # The connection says which Spark: what points a process to a Connect server would win over --master.
    own_env = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    job_env = {"PYSPARK_PYTHON": sys.executable, "ONCEONLY_PROJECT": str(settings.project)}
    job = subprocess.Popen(
        command,
        env={**own_env, **more, **job_env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",  # a library of the transform may write what it likes
        start_new_session=True,
        pass_fds=inherited,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    try:
        yield job
    finally:
        _end_group(job)
        if job.stdout:
            job.stdout.close()


def select_last_lines(lines: Sequence[str]) -> list[str]:
    """Return the last lines, without the frames of Java's stack traces: what went wrong stands before them."""
    return drop_java_frames(lines)[-MAX_ERROR_LINES:]


def drop_java_frames(lines: Sequence[str]) -> list[str]:
    """Return the lines that are no frames of Java's stack traces."""
    return [line for line in lines if not JAVA_FRAME.match(line)]


def _end_group(job: subprocess.Popen[str]) -> None:
    """Send SIGTERM first, so that Spark can deregister from its cluster; then SIGKILL to the rest of the group."""
    if job.poll() is None:
        signal_group(job, signal.SIGTERM)
        deadline = time.monotonic() + TERM_GRACE_SECONDS
        # WNOWAIT leaves the leader's status to be collected: until then the group's id cannot become another's.
        while time.monotonic() < deadline and not os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.05)
        signal_group(job, signal.SIGKILL)
        job.wait()


def signal_group(job: subprocess.Popen[str], number: signal.Signals) -> None:
    """Signal the whole group, as long as its leader was not waited for: its id cannot have become another's."""
    if job.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, number)


PR_SET_PDEATHSIG = 1
GATEWAY_PORT_VARIABLE = (
    "PYSPARK_GATEWAY_PORT"  # Spark sets it for the Python process that it starts; its JVM listens there
)


def die_with_parent(parent: int | None = None) -> None:
    """Have this process killed, on Linux, when its parent process ends, for whatever reason.

    Args:
        parent: the process id of the parent, if known: it may have ended already.
    """
    if sys.platform == "linux":
        expected = os.getppid() if parent is None else parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != expected:  # it ended before prctl was called
            os.kill(os.getpid(), signal.SIGKILL)


def die_with_jvm() -> None:
    """Do the same for a process that Spark's JVM has started, without knowing the process id of the JVM.

    If the JVM ended before, this process has another parent by now. But then its port is closed. If the port is still
    open, the JVM was alive when prctl was called.
    """
    die_with_parent()
    port = os.environ.get(GATEWAY_PORT_VARIABLE)
    if port and not _is_open(int(port)):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_open(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port)):
            return True
    except ConnectionRefusedError:
        return False


@dataclass(frozen=True)
class PropertiesFile:
    """Arguments of spark-submit, and the file descriptors that it has to inherit for them."""

    arguments: Sequence[str] = ()
    inherited: Sequence[int] = ()


@contextmanager
def hidden_properties(conf: Mapping[str, str]) -> Iterator[PropertiesFile]:
    """Write the settings to a properties file, which exists as long as this block."""
    if not conf:
        yield PropertiesFile()
        return
    text = "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in conf.items())
    with hidden_file(text.encode()) as (path, inherited):
        # Without the second one, a properties file takes the place of spark-defaults.conf.
        yield PropertiesFile(["--properties-file", path, "--load-spark-defaults"], inherited)


@contextmanager
def hidden_file(content: bytes) -> Iterator[tuple[str, list[int]]]:
    """Yield the path of a file of mode 600, and the file descriptors that a child has to inherit to read it.

    On Linux it is in memory alone, so that nothing of it stays if this process is killed.
    """
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("spark"), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}", [file.fileno()]
    else:
        with NamedTemporaryFile(prefix="onceonly-") as temporary_file:  # made with that mode
            temporary_file.write(content)
            temporary_file.flush()
            yield temporary_file.name, []


def _escape(text: str) -> str:
    """Return the text as java.util.Properties reads it: what could mean something there is written as UTF-16 units."""
    escaped = ""
    for character in text:
        is_plain = (character.isascii() and character.isalnum()) or character in "._-"
        escaped += character if is_plain else _utf16_units(character)
    return escaped


def _utf16_units(character: str) -> str:
    code = character.encode("utf-16-be")
    return "".join(f"\\u{code[at : at + 2].hex()}" for at in range(0, len(code), 2))

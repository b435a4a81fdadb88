"""Java, jars and ports on this machine."""

import socket
from pathlib import Path

from onceonly.dev.services.daemon import ServiceFailed
from onceonly.settings import Settings
from onceonly.spark import jvm

LOCALHOST = "127.0.0.1"


def java() -> str:
    """Return the java of JAVA_HOME, else the one on the path. Raises ServiceFailed: there is none."""
    command = jvm.java_command()
    if command is None:
        raise ServiceFailed(
            "Java is not installed.",
            "There is no java in JAVA_HOME, or, where that is not set, on PATH.",
            "Kafka and Spark need Java 17 or newer: install it, or set JAVA_HOME to it.",
            code="java-missing",
        )
    return command


def jars(kind: str) -> Path:
    """Return the folder of the jars for `spark` or `broker`, where all commands look for them.

    Raises:
        ServiceFailed: there are none.
    """
    folder = Settings.from_env().jars.resolve() / kind
    if not any(folder.glob("*.jar")):
        raise ServiceFailed(
            f"There are no jars in {folder}.",
            "The embedded services need them.",
            "Fetch them: onceonly jars fetch (in a checkout: make setup). Where they are looked for: onceonly jars.",
            code="jar-missing",
        )
    return folder


def is_free(port: int) -> bool:
    """Return whether no process listens on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True


def is_open(port: int) -> bool:
    """Return whether a process accepts connections on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOCALHOST, port)) == 0


def free_port(besides: int = 0) -> int:
    """Return a port other than `besides` that is free at the moment."""
    while True:
        with socket.socket() as probe:
            probe.bind((LOCALHOST, 0))
            port = int(probe.getsockname()[1])
        if port != besides:
            return port


def prefer_port(usual: int | None) -> int:
    """Return that port if there is one and no process listens on it, else any free port."""
    if usual and is_free(usual):
        return usual
    return free_port()

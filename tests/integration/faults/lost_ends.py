"""A broker that loses the end of a log, as in a power failure: Kafka does not sync what it has acknowledged."""

from __future__ import annotations

import os
import shutil
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from integration.readers.kafka_reader import until
from patience import PATIENCE

from onceonly.dev.services import machine
from onceonly.dev.services.kafka import KafkaBroker


@contextmanager
def killed(own: KafkaBroker) -> Iterator[None]:
    """The broker is killed, and started again afterwards."""
    started = own.daemon.running()
    assert started is not None and started.pid is not None
    os.kill(started.pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(started.pid, 0)
    until(lambda: machine.is_free(started.port), PATIENCE, "its end")
    yield
    own.launch()
    own.wait()


@contextmanager
def silent(own: KafkaBroker) -> Iterator[None]:
    """The broker keeps its connections and answers nothing."""
    started = own.daemon.running()
    assert started is not None and started.pid is not None
    os.kill(started.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(started.pid, signal.SIGCONT)


def lose_end(own: KafkaBroker, topic: str, offset: int) -> None:
    """Of the log of partition 0, only what lies below the offset was on the disk."""
    with killed(own):
        truncate(log_folder(own, topic), offset)


def log_folder(own: KafkaBroker, topic: str, partition: int = 0) -> Path:
    return own.folder / "data" / f"{topic}-{partition}"


def truncate(folder: Path, offset: int) -> None:
    log = folder / f"{0:020}.log"
    data, at = log.read_bytes(), 0
    while at < len(data):
        base, length = struct.unpack(">qi", data[at : at + 12])
        if base >= offset:
            break
        at += 12 + length
    os.truncate(log, at)


def restore(folder: Path, kept: Path) -> None:
    """The log as it was when it was copied."""
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)

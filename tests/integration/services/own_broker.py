"""A broker of a test's own, which may be killed, stopped or set otherwise: nobody else is connected to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from onceonly.dev.services.kafka import KafkaBroker

Broker = TypeVar("Broker", bound=KafkaBroker)


@contextmanager
def running(broker: Broker) -> Iterator[Broker]:
    """The broker is started, and answers; it is stopped with the block."""
    broker.launch()
    try:
        broker.wait()
        yield broker
    finally:
        broker.daemon.stop()

"""What a session of Spark keeps of a read that has ended, as on a server that stages checkpoint after checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from integration.readers.kafka_reader import until
from integration.services.own_broker import running
from integration.sources.test_kafka_source import Topic

from onceonly.checkpoint.offsets import TopicRange
from onceonly.dev.services import machine
from onceonly.dev.services.kafka import KafkaBroker
from onceonly.spark import topics

pytestmark = pytest.mark.integration
PARTITIONS = 4


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """A broker that nobody else is connected to: Spark keeps a producer of another test, too."""
    port = machine.free_port()
    with running(KafkaBroker(tmp_path, port)) as own:
        yield own.address(port)


def test_no_consumer_stays_behind_a_read(broker: str, spark: Any, spark_server: str) -> None:
    """Each would keep what it has fetched beyond the range, 8 MiB, and Spark keeps 64 of them, of any read."""
    topic = Topic(broker, PARTITIONS)
    numbers = range(PARTITIONS)
    for number in numbers:
        topic.produce(*map(str, range(100)), partition=number)
    range_ = TopicRange(topic.name, "", dict.fromkeys(numbers, (0, 50)))
    for _ in range(3):
        assert topics.read_ranges(spark, {"bootstrap.servers": broker}, (range_,)).count() == 50 * PARTITIONS
    server = find_listener(int(urlsplit(spark_server).port or 0))
    until(lambda: not list_connections(server, broker), what="the end of the consumers' connections")


def find_listener(port: int) -> psutil.Process:
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "java" and any(
            each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in process.net_connections("tcp")
        ):
            return process
    raise AssertionError(f"no Java listens on port {port}")


def list_connections(server: psutil.Process, broker: str) -> set[int]:
    """Return the server's ports of its connections to the broker."""
    port = int(broker.rpartition(":")[2])
    return {
        each.laddr.port
        for each in server.net_connections("tcp")
        if each.status == psutil.CONN_ESTABLISHED and each.raddr and each.raddr.port == port
    }

"""The brokers of docker-compose.cluster.yml by their settings, as processes: ports and folders are this machine's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from integration.services.brokers import Brokers, Node, free_ports
from patience import PATIENCE

pytestmark = [pytest.mark.integration, pytest.mark.heavy]
ROOT = Path(__file__).parents[3]
FILES = ("docker-compose.yml", "docker-compose.cluster.yml")
NAMES = {1: "kafka", 2: "kafka-2", 3: "kafka-3"}


class Container(Node):
    """One of them, with the settings of its container."""

    def __init__(self, home: Path, node: int, controllers: dict[int, int]) -> None:
        self._outside = free_ports(1)[0]
        super().__init__(home, node, free_ports(1)[0], controllers, str(told(node)["CLUSTER_ID"]))

    def properties(self, port: int) -> str:
        """The image makes the same of the variables."""
        given = {
            name.removeprefix("KAFKA_").lower().replace("_", "."): str(value)
            for name, value in told(self.node).items()
            if name.startswith("KAFKA_")
        }
        given["log.dirs"] = str(self.folder / "data")
        for name in ("listeners", "advertised.listeners", "controller.quorum.voters"):
            given[name] = self._here(given[name], port)
        return "".join(f"{name}={value}\n" for name, value in given.items())

    def _here(self, addresses: str, port: int) -> str:
        ports = {"9092": port, "9093": self._controllers[self.node]}

        def here(found: re.Match[str]) -> str:
            voter, listener, number = found["voter"], found["listener"], found["port"]
            if voter:
                return f"{voter}@127.0.0.1:{self._controllers[int(voter)]}"
            return f"{listener}://127.0.0.1:{ports.get(number, self._outside)}"

        return re.sub(r"((?P<voter>\d+)@|(?P<listener>[A-Z]+)://)[a-z0-9-]*:(?P<port>\d+)", here, addresses)


def told(node: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in FILES:
        services = yaml.safe_load((ROOT / file).read_text())["services"]
        found |= services.get(NAMES[node], {}).get("environment", {})
    return found


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Brokers]:
    controllers = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    made = Brokers({node: Container(tmp_path, node, controllers) for node in NAMES})
    try:
        made.start()
        yield made
    finally:
        made.down()


def test_any_one_of_three_may_stop(three: Brokers) -> None:
    """A topic that names no number of copies has three; transactions go on, whichever of them is killed."""
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    admin.create_topics([NewTopic("numbers", 4)])["numbers"].result(PATIENCE)
    (topic,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "numbers")]).values()
    assert topic.result(PATIENCE)["min.insync.replicas"].value == "2"
    commit(three, 0)
    assert three.is_whole(), "not every topic has three copies, Kafka's own included"
    for node in NAMES:
        three.kill(node)
        commit(three, node)
        assert read(three, node) == [str(number).encode() for number in range(node + 1)]
        three.start(node)


def commit(brokers: Brokers, number: int) -> None:
    """One transaction, whose records every copy in sync has."""
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "transactional.id": "writer", "acks": "all"})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce("numbers", str(number).encode())
    producer.commit_transaction(PATIENCE)


def read(brokers: Brokers, last: int) -> list[bytes]:
    """What is committed up to that number, sorted."""
    group = {"group.id": f"reader-{last}", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap, **group})
    try:
        consumer.subscribe(["numbers"])
        return sorted(record.value() for record in consumer.consume(last + 1, PATIENCE))
    finally:
        consumer.close()

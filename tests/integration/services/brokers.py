"""Three brokers that are also the controllers: any one of them may be killed, and the other two go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from integration.readers.kafka_reader import until
from patience import PATIENCE

from onceonly.dev.services import machine
from onceonly.dev.services.kafka import KafkaBroker, _new_cluster_id
from onceonly.kafka.transactions import Transactions

COPIES = 3
PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
transaction.state.log.num.partitions=6
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
"""


class Node(KafkaBroker):
    """One of them. It keeps its ports and its data when it is started again."""

    java_options = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

    def __init__(self, home: Path, node: int, port: int, controllers: Mapping[int, int], cluster: str) -> None:
        self.name, self.node = f"kafka-{node}", node
        super().__init__(home, port)
        self._controllers, self._cluster = controllers, cluster

    def properties(self, port: int) -> str:
        voters = ",".join(f"{node}@127.0.0.1:{at}" for node, at in self._controllers.items())
        place = {"port": port, "controller": self._controllers[self.node], "data": self.folder / "data"}
        return PROPERTIES.format(node=self.node, voters=voters, **place)

    def _format(self, cluster_id: str) -> None:
        super()._format(self._cluster)

    @property
    def near(self) -> str:
        return self.address(self._requested_port() or 0)

    def signal(self, number: signal.Signals) -> None:
        running = self.daemon.running()
        assert running is not None and running.pid is not None
        os.kill(running.pid, number)
        if number is signal.SIGKILL:
            with suppress(ChildProcessError):
                os.waitpid(running.pid, 0)


@dataclass(frozen=True)
class Brokers:
    """A cluster of three."""

    nodes: Mapping[int, Node]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.near for node in self.nodes.values())

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def start(self, *numbers: int) -> None:
        """Those, or all, that do not run; afterwards every partition has all of its copies again."""
        nodes = [self.nodes[number] for number in numbers or self.nodes]
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait()
        until(self.is_whole, PATIENCE, "all copies in sync")

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self.nodes[number].signal(signal.SIGKILL)

    def down(self) -> None:
        """By SIGKILL: the last ones would wait for others that could take over from them."""
        for node in self.nodes.values():
            if node.daemon.running():
                node.signal(signal.SIGKILL)
            node.daemon.stop()

    def is_whole(self) -> bool:
        found = self.admin.list_topics(timeout=PATIENCE)
        copies = [partition.isrs for topic in found.topics.values() for partition in topic.partitions.values()]
        return len(found.brokers) == COPIES and all(len(copy) == COPIES for copy in copies)

    # ---- topics

    def topic(self, name: str, partitions: int = 4, led_by: Sequence[int] = (1, 2, 3), **config: str) -> str:
        """Make a topic whose partitions are led by these brokers in turn."""
        settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
        leaders = [led_by[number % len(led_by)] for number in range(partitions)]
        copies = [[leader, *(node for node in self.nodes if node != leader)] for leader in leaders]
        admin = self.admin  # until it has answered
        topic = NewTopic(name, partitions, replica_assignment=copies, config=settings)
        for made in admin.create_topics([topic]).values():
            made.result(PATIENCE)
        until(lambda: len(self.leaders(name)) == partitions, PATIENCE, f"leaders of {name}")
        return name

    def leaders(self, topic: str) -> dict[int, int]:
        """Partition → broker, of those that have one."""
        found = self.admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        return {number: each.leader for number, each in found.items() if each.leader > 0}

    def move_leaders(self, topic: str) -> None:
        """Every partition gets the leader that comes next in its list of copies; returns when all know of it."""
        found = self.admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        wanted = {number: [*each.replicas[1:], each.replicas[0]] for number, each in found.items()}
        with Transactions({"bootstrap_servers": self.bootstrap}) as known:
            from kafka import TopicPartition as Key

            known._client.admin.alter_partition_reassignments({Key(topic, n): each for n, each in wanted.items()})
        moved = {number: replicas[0] for number, replicas in wanted.items()}
        until(lambda: self._order(topic) == wanted, PATIENCE, "the new order of copies")
        partitions = [TopicPartition(topic, number) for number in wanted]
        until(lambda: self._elect(partitions) or self.leaders(topic) == moved, PATIENCE, "the new leaders")

    def _order(self, topic: str) -> dict[int, list[int]]:
        found = self.admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        return {number: list(each.replicas) for number, each in found.items()}

    def _elect(self, partitions: Sequence[TopicPartition]) -> None:
        admin = self.admin
        admin.elect_leaders(ElectionType.PREFERRED, list(partitions)).result(PATIENCE)

    # ---- transactions

    def coordinator(self, id: str) -> int:
        """The broker that coordinates this transactional id."""
        with Transactions({"bootstrap_servers": self.bootstrap}) as known:
            return int(known._client.call(lambda: known._client.coordinators([id]))[id])

    def open(self, pattern: str = ".*") -> list[str]:
        with Transactions({"bootstrap_servers": self.bootstrap}) as known:
            return known.list_open(pattern)


def brokers(home: Path) -> Iterator[Brokers]:
    """Three that run, until the caller has done with them."""
    cluster, ports = _new_cluster_id(), free_ports(2 * COPIES)
    controllers = {node: ports.pop() for node in range(1, COPIES + 1)}
    made = Brokers({node: Node(home, node, ports.pop(), controllers, cluster) for node in controllers})
    try:
        made.start()
        yield made
    finally:
        made.down()


def free_ports(wanted: int) -> list[int]:
    """Different ones: each is found while those before are not in use yet."""
    found: set[int] = set()
    while len(found) < wanted:
        found.add(machine.free_port())
    return list(found)

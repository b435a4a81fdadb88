"""One Kafka broker that is its own KRaft controller."""

import base64
import subprocess
import uuid
from collections.abc import Sequence

from onceonly.dev.services import machine
from onceonly.dev.services.daemon import ServiceFailed
from onceonly.dev.services.service import Service
from onceonly.waits import wait_for

LOGGING = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss",
]
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}

# A single node keeps one copy, and needs few partitions for its own topics.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=8
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1

auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
"""


class KafkaBroker(Service):
    """A broker that starts in about three seconds with 512 MB, and keeps its data over restarts."""

    name = "kafka"
    port_variable = "ONCEONLY_KAFKA_PORT"
    default_port = 19092
    java_options: Sequence[str] = ("-Xmx512m",)
    format_options: Sequence[str] = ()  # of kafka.tools.StorageTool

    def command(self, port: int) -> Sequence[str]:
        """Write the configuration, and format the storage once; returns the broker's command."""
        properties = self.folder / "server.properties"
        data = self.folder / "data"
        properties.write_text(self.properties(port))
        if not (data / "meta.properties").exists():
            self._format(_new_cluster_id())
        return [*self._java_command(*self.java_options), "kafka.Kafka", str(properties)]

    def properties(self, port: int) -> str:
        """Return the broker's configuration; a subclass may add to it. `port` stays unencrypted, for `is_ready`."""
        return PROPERTIES.format(port=port, controller=machine.free_port(besides=port), data=self.folder / "data")

    def is_ready(self, port: int) -> bool:
        """Return whether *this* broker answers a metadata request; another cluster on the port does not count."""
        if not machine.is_open(port):
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            metadata = AdminClient({"bootstrap.servers": self.address(port), "log_level": 0}).list_topics(timeout=5)
        except KafkaException:
            return False
        return bool(metadata.brokers) and metadata.cluster_id == self._read_cluster_id()

    def address(self, port: int) -> str:
        """Return the bootstrap address."""
        return f"{machine.LOCALHOST}:{port}"

    def _java_command(self, *options: str) -> list[str]:
        return [machine.java(), *options, *LOGGING, "-cp", f"{machine.jars('broker')}/*"]

    def _format(self, cluster_id: str) -> None:
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self.folder / "server.properties")]
        with wait_for("Kafka's tool, which formats the storage of a new broker"):
            process = subprocess.run(
                [*self._java_command(), *tool, *self.format_options], capture_output=True, text=True
            )
        if process.returncode:
            raise ServiceFailed(
                "kafka did not start: its storage cannot be formatted.",
                (process.stdout + process.stderr).strip(),
                f"Fix the cause, or move {self.folder} elsewhere to start with an empty broker.",
                code="service-not-started",
            )

    def _read_cluster_id(self) -> str | None:
        lines = (self.folder / "data" / "meta.properties").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line).get("cluster.id")


def _new_cluster_id() -> str:
    """Make a cluster id as Kafka's own random-uuid: never with a leading dash, which its command line would reject."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)

"""What the brokers say of themselves and of topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from onceonly.errors import InvalidPipeline
from onceonly.kafka.admin import Wire, id_text
from onceonly.kafka.markers import Partition

STATE_LOG = "__transaction_state"


class Cluster:
    """Questions to one cluster; each is answered within 10 s, or NotCommitted is raised.

    Safe to use again after `close`; not to be shared with a forked child.

    Args:
        config: kafka-python's keyword arguments, at least `bootstrap_servers`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._wire = Wire(config)
        self._version: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves no socket and no thread."""
        self._wire.close()

    # --- topics

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The high watermark, where a read_uncommitted reader would go on."""
        from kafka.admin import OffsetSpec

        wanted = {key: OffsetSpec.LATEST for key in keys(partitions)}
        found = self._wire.ask(lambda: self._wire.admin._async_list_partition_offsets(wanted)) if wanted else {}
        return {(key.topic, key.partition): answer.offset for key, answer in found.items()}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Their ids in the text form of `TopicLog`; a missing topic is absent."""
        return {name: id_text(topic["topic_id"]) for name, topic in self._topics(topics).items()}

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """How many each has; a missing topic is absent."""
        return {name: len(topic["partitions"]) for name, topic in self._topics(topics).items()}

    def copies(self, topics: Iterable[str]) -> dict[str, int]:
        """The replicas of each, the least of its partitions; a missing topic is absent."""
        found = self._topics(topics)
        return {name: min(len(p["replica_nodes"]) for p in topic["partitions"]) for name, topic in found.items()}

    def topic_config(self, topic: str) -> dict[str, str]:
        """All its settings, defaults included: cleanup.policy, max.message.bytes, min.insync.replicas, …

        Raises:
            InvalidPipeline: no such topic, or it may not be described.
        """
        if config := self._config("TOPIC", topic, None):
            return config
        raise InvalidPipeline(
            f"topic '{topic}' cannot be described on {self._wire.address}.",
            "It does not exist, or DescribeConfigs is not granted to this client.",
            "Create the topic, correct its name, or grant it. Nothing was published.",
        )

    # --- the cluster

    def cluster_id(self) -> str:
        """As the brokers say it."""
        return str(self._wire.ask(lambda: self._wire.admin._get_cluster_metadata([]))["cluster_id"])

    def brokers(self) -> list[int]:
        """The ids of the live brokers."""
        return self._wire.ask(self._wire.brokers)

    def state_log_copies(self) -> int:
        """The replicas of the topic in which the coordinators keep transactions; 0 before the first one."""
        return self.copies([STATE_LOG]).get(STATE_LOG, 0)

    def transaction_max_timeout(self) -> float:
        """Seconds: the longest transaction.timeout.ms that every broker accepts.

        Raises:
            InvalidPipeline: this client may not describe the brokers' configuration.
        """
        key = "transaction.max.timeout.ms"
        found = [self._config("BROKER", str(broker), [key]).get(key) for broker in self.brokers()]
        known = [int(most) for most in found if most is not None]
        if len(known) < len(found) or not known:
            raise InvalidPipeline(
                f"the configuration of the brokers at {self._wire.address} cannot be described.",
                "DescribeConfigs on the Cluster is not granted to this client.",
                "Grant it, or do without what depends on it. Nothing was published.",
            )
        return min(known) / 1000

    def transaction_version(self) -> int:
        """The cluster's transaction.version: 2 (Kafka 4) bumps the epoch with every end; 0 where it is not known."""
        if self._version is None:
            features = self._wire.ask(self._wire.admin._async_describe_features)
            self._version = int(features.get("transaction.version", {}).get("finalized", (0, 0))[1])
        return self._version

    # --- how

    def _topics(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        wanted = set(names)
        return self._wire.ask(lambda: self._wire.topics(wanted)) if wanted else {}

    def _config(self, kind: str, name: str, keys: list[str] | None) -> dict[str, str]:
        from kafka.admin import ConfigResource

        resource = ConfigResource(kind, name, keys)
        found = self._wire.ask(lambda: self._wire.admin._async_describe_configs([resource], config_filter="all"))
        return {key: setting["value"] for key, setting in found[kind.lower()][name].items()}


def keys(partitions: Iterable[Partition]) -> list[Any]:
    """As kafka-python names partitions."""
    from kafka import TopicPartition

    return sorted({TopicPartition(*partition) for partition in partitions})

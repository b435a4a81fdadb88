"""Metadata and configuration of a cluster and its topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Self

from onceonly.errors import InvalidPipeline
from onceonly.kafka import log_ends
from onceonly.kafka.admin import BrokerClient, id_text
from onceonly.kafka.log_ends import Batch, Topic
from onceonly.kafka.markers import Partition

STATE_LOG = "__transaction_state"


class Cluster:
    """Requests to one cluster. Each gets its response within 10 s, or raises NotCommitted.

    It can be used again after `close`. It must not be shared with a forked child.

    Args:
        config: kafka-python's keyword arguments, at least `bootstrap_servers`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._client = BrokerClient(config)
        self._version: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket and end the thread."""
        self._client.close()

    # --- topics

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The high watermark of each partition, where a read_uncommitted reader would continue."""
        from kafka.admin import OffsetSpec

        wanted = {key: OffsetSpec.LATEST for key in keys(partitions)}
        found = self._client.call(lambda: self._client.admin._async_list_partition_offsets(wanted)) if wanted else {}
        return {(key.topic, key.partition): result.offset for key, result in found.items()}

    def end_batches(self, topic: Topic, ends: Mapping[int, int]) -> dict[int, Batch]:
        """The record batch that holds the last offset below each end, as far as the log still has it.

        Args:
            ends: by partition.
        Raises:
            InvalidPipeline: no permission to read the topic.
        """
        wanted = {partition: end for partition, end in ends.items() if end > 0}
        batches = log_ends.read_end_batches(self._client, topic, wanted)
        return {partition: batch for partition, batch in batches.items() if batch}

    def compare_ends(self, topic: Topic, ends: Mapping[int, int], marks: Mapping[int, Batch]) -> log_ends.Comparison:
        """See `log_ends.compare`."""
        return log_ends.compare(self._client, topic, ends, marks)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Topic ids in the text form of `TopicLog`; a missing topic is left out."""
        return {name: id_text(topic["topic_id"]) for name, topic in self._topics(topics).items()}

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """The number of partitions of each topic; a missing topic is left out."""
        return {name: len(topic["partitions"]) for name, topic in self._topics(topics).items()}

    def copies(self, topics: Iterable[str]) -> dict[str, int]:
        """The replication factor of each topic: that of its partition with the fewest replicas.

        A missing topic is left out.
        """
        found = self._topics(topics)
        return {name: min(len(p["replica_nodes"]) for p in topic["partitions"]) for name, topic in found.items()}

    def refusing(self, topics: Iterable[str]) -> list[str]:
        """The partitions that accept nothing now, and why: no leader, or fewer in-sync replicas than they need."""
        found = self._topics(topics)
        needed = {name: self._needed_in_sync(name) for name in found}
        return [
            f"'{name}' partition {partition['partition_index']} {why}"
            for name, topic in sorted(found.items())
            for partition in topic["partitions"]
            if (why := _why_refused(partition, needed[name]))
        ]

    def topic_config(self, topic: str) -> dict[str, str]:
        """All settings of a topic, defaults included: cleanup.policy, max.message.bytes, min.insync.replicas, …

        Raises:
            InvalidPipeline: no such topic, or no permission to describe it.
        """
        if config := self._config("TOPIC", topic, None):
            return config
        raise InvalidPipeline(
            f"topic '{topic}' cannot be described on {self._client.address}.",
            "It does not exist, or DescribeConfigs is not granted to this client.",
            "Create the topic, correct its name, or grant DescribeConfigs on it. Nothing was published.",
        )

    # --- the cluster

    def cluster_id(self) -> str:
        """As the brokers report it."""
        return str(self._client.call(lambda: self._client.admin._get_cluster_metadata([]))["cluster_id"])

    def brokers(self) -> list[int]:
        """The ids of the live brokers."""
        return self._client.call(self._client.brokers)

    def state_log_copies(self) -> int:
        """The replication factor of the topic that holds transaction state; 0 before the first transaction."""
        return self.copies([STATE_LOG]).get(STATE_LOG, 0)

    def transaction_max_timeout(self) -> float:
        """The longest transaction.timeout.ms that every broker accepts, in seconds.

        Raises:
            InvalidPipeline: no permission to describe the brokers' configuration.
        """
        return self._smallest("transaction.max.timeout.ms") / 1000

    def largest_request(self) -> int:
        """The socket.request.max.bytes of every broker. Raises as `transaction_max_timeout`."""
        return self._smallest("socket.request.max.bytes")

    def _smallest(self, key: str) -> int:
        """Of the brokers' values of a setting."""
        found = [self._config("BROKER", str(broker), [key]).get(key) for broker in self.brokers()]
        known = [int(most) for most in found if most is not None]
        if len(known) < len(found) or not known:
            raise InvalidPipeline(
                f"the configuration of the brokers at {self._client.address} cannot be described.",
                "DescribeConfigs on the Cluster is not granted to this client.",
                "Grant it, or do not use the option that depends on it. Nothing was published.",
            )
        return min(known)

    def transaction_version(self) -> int:
        """The cluster's transaction.version; 0 if it has none. 2 (Kafka 4) bumps the epoch with every EndTxn."""
        if self._version is None:
            features = self._client.call(self._client.admin._async_describe_features)
            self._version = int(features.get("transaction.version", {}).get("finalized", (0, 0))[1])
        return self._version

    # --- helpers

    def _topics(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        wanted = set(names)
        return self._client.call(lambda: self._client.topics(wanted)) if wanted else {}

    def _needed_in_sync(self, topic: str) -> int:
        """The topic's min.insync.replicas; 0 if unknown."""
        with suppress(InvalidPipeline):
            return int(self.topic_config(topic)["min.insync.replicas"])
        return 0

    def _config(self, kind: str, name: str, keys: list[str] | None) -> dict[str, str]:
        from kafka.admin import ConfigResource

        resource = ConfigResource(kind, name, keys)
        found = self._client.call(lambda: self._client.admin._async_describe_configs([resource], config_filter="all"))
        return {key: setting["value"] for key, setting in found[kind.lower()][name].items()}


def _why_refused(partition: Mapping[str, Any], needed: int) -> str:
    in_sync, copies = len(partition["isr_nodes"]), len(partition["replica_nodes"])
    if partition["leader_id"] < 0:
        return "has no leader"
    return (
        f"has {in_sync} of {copies} replicas in sync, and min.insync.replicas is {needed}" if in_sync < needed else ""
    )


def keys(partitions: Iterable[Partition]) -> list[Any]:
    """kafka-python's TopicPartitions, each once, in order."""
    from kafka import TopicPartition

    return sorted({TopicPartition(*partition) for partition in partitions})

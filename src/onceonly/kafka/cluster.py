"""Metadata and configuration of a cluster and its topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Self

from onceonly.errors import InvalidPipeline
from onceonly.kafka import log_ends, log_transactions
from onceonly.kafka.admin import BrokerClient, id_text
from onceonly.kafka.log_ends import Batch, Topic
from onceonly.kafka.log_transactions import LogContent
from onceonly.kafka.markers import Partition, PartitionLog

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

    def read_ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the high watermark of each partition, where a read_uncommitted reader would continue."""
        from kafka.admin import OffsetSpec

        specs = dict.fromkeys(to_topic_partitions(partitions), OffsetSpec.LATEST)
        if not specs:
            return {}
        results = self._client.call(lambda: self._client.admin._async_list_partition_offsets(specs))
        return {(key.topic, key.partition): result.offset for key, result in results.items()}

    def read_log_starts(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset of the first record that the log of each partition still has, or will have."""
        from kafka.admin import OffsetSpec

        specs = dict.fromkeys(to_topic_partitions(partitions), OffsetSpec.EARLIEST)
        if not specs:
            return {}
        results = self._client.call(lambda: self._client.admin._async_list_partition_offsets(specs))
        return {(key.topic, key.partition): result.offset for key, result in results.items()}

    def read_content(self, log: PartitionLog, start: int, end: int) -> LogContent:
        """Read the log of a partition between two offsets, see `log_transactions.read_content`."""
        return log_transactions.read_content(self._client, log, start, end)

    def read_end_batches(self, topic: Topic, ends: Mapping[int, int]) -> dict[int, Batch]:
        """Return the record batch that holds the last offset below each end, as far as the log still has it.

        Args:
            ends: by partition.
        Raises:
            InvalidPipeline: no permission to read the topic.
        """
        ends_above_zero = {partition: end for partition, end in ends.items() if end > 0}
        batches = log_ends.read_end_batches(self._client, topic, ends_above_zero)
        return {partition: batch for partition, batch in batches.items() if batch}

    def compare_ends(self, topic: Topic, ends: Mapping[int, int], marks: Mapping[int, Batch]) -> log_ends.LogComparison:
        """Compare logs with the batches that they once ended with, see `log_ends.compare`."""
        return log_ends.compare(self._client, topic, ends, marks)

    def read_topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return topic ids in the text form of `TopicLog`; a missing topic is left out."""
        return {name: id_text(topic["topic_id"]) for name, topic in self._topics(topics).items()}

    def count_partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each topic; a missing topic is left out."""
        return {name: len(topic["partitions"]) for name, topic in self._topics(topics).items()}

    def read_replication_factors(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the replication factor of each topic: that of its partition with the fewest replicas.

        A missing topic is left out.
        """
        replication_factors = {}
        for name, topic in self._topics(topics).items():
            replication_factors[name] = min(len(partition["replica_nodes"]) for partition in topic["partitions"])
        return replication_factors

    def list_refusing_partitions(self, topics: Iterable[str]) -> list[str]:
        """Return the partitions that accept nothing now, and why.

        Such a partition has no leader, or fewer in-sync replicas than it needs.
        """
        metadata = self._topics(topics)
        needed_in_sync = {name: self._needed_in_sync(name) for name in metadata}
        refusals = []
        for name, topic in sorted(metadata.items()):
            for partition in topic["partitions"]:
                why = _why_it_refuses(partition, needed_in_sync[name])
                if why:
                    refusals.append(f"'{name}' partition {partition['partition_index']} {why}")
        return refusals

    def read_topic_config(self, topic: str) -> dict[str, str]:
        """Return all settings of a topic, with defaults: cleanup.policy, max.message.bytes, min.insync.replicas, …

        Raises:
            InvalidPipeline: no such topic, or no permission to describe it.
        """
        if config := self._topic_settings(topic):
            return config
        raise InvalidPipeline(
            f"topic '{topic}' cannot be described on {self._client.address}.",
            "It does not exist, or DescribeConfigs is not granted to this client.",
            "Create the topic, correct its name, or grant DescribeConfigs on it. Nothing was published.",
            code="topic-not-describable",
        )

    # --- the cluster

    def read_cluster_id(self) -> str:
        """Return the cluster's id, as the brokers report it."""
        return str(self._client.call(lambda: self._client.admin._get_cluster_metadata([]))["cluster_id"])

    def list_brokers(self) -> list[int]:
        """Return the ids of the live brokers."""
        return self._client.call(self._client.brokers)

    def read_state_log_replication(self) -> int:
        """Return the replication factor of the topic that holds transaction state; 0 before the first transaction."""
        return self.read_replication_factors([STATE_LOG]).get(STATE_LOG, 0)

    def read_max_transaction_timeout(self) -> float:
        """Return the longest transaction.timeout.ms that every broker accepts, in seconds.

        Raises:
            InvalidPipeline: no permission to describe the brokers' configuration.
        """
        return self._smallest_value("transaction.max.timeout.ms") / 1000

    def read_max_request_bytes(self) -> int:
        """Return the socket.request.max.bytes that holds for every broker. Raises as `read_max_transaction_timeout`."""
        return self._smallest_value("socket.request.max.bytes")

    def _smallest_value(self, key: str) -> int:
        """Return the smallest of the brokers' values of a setting."""
        texts = self._client.call(lambda: self._read_from_brokers(key))
        values = [int(text) for text in texts if text is not None]
        if len(values) < len(texts) or not values:
            raise InvalidPipeline(
                f"the configuration of the brokers at {self._client.address} cannot be described.",
                "DescribeConfigs on the Cluster is not granted to this client.",
                "Grant it, or do not use the option that depends on it. Nothing was published.",
                code="kafka-access-denied",
            )
        return min(values)

    def read_transaction_version(self) -> int:
        """Return the cluster's transaction.version; 0 if it has none. 2 (Kafka 4) bumps the epoch with every EndTxn."""
        if self._version is None:
            features = self._client.call(self._client.admin._async_describe_features)
            self._version = int(features.get("transaction.version", {}).get("finalized", (0, 0))[1])
        return self._version

    # --- helpers

    def _topics(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        distinct_names = set(names)
        if not distinct_names:
            return {}
        return self._client.call(lambda: self._client.topics(distinct_names))

    def _needed_in_sync(self, topic: str) -> int:
        """Return the topic's min.insync.replicas; 0 if unknown."""
        with suppress(InvalidPipeline):
            return int(self.read_topic_config(topic)["min.insync.replicas"])
        return 0

    async def _read_from_brokers(self, key: str) -> list[str | None]:
        """Return each live broker's value of a setting; None: it may not be described.

        They are listed here, so that a retry does not ask one that has gone.
        """
        from kafka.admin import ConfigResource

        names = [str(broker) for broker in await self._client.brokers()]
        resources = [ConfigResource("BROKER", name, [key]) for name in names]
        configs = await self._client.admin._async_describe_configs(resources, config_filter="all")
        return [configs["broker"][name].get(key, {}).get("value") for name in names]

    def _topic_settings(self, name: str) -> dict[str, str]:
        """Return all settings of a topic; empty: they may not be described."""
        from kafka.admin import ConfigResource

        resource = ConfigResource("TOPIC", name)
        configs = self._client.call(lambda: self._client.admin._async_describe_configs([resource], config_filter="all"))
        return {key: setting["value"] for key, setting in configs["topic"][name].items()}


def _why_it_refuses(partition: Mapping[str, Any], needed: int) -> str:
    """Return why a partition accepts nothing now; empty if it does accept records."""
    in_sync, replicas = len(partition["isr_nodes"]), len(partition["replica_nodes"])
    if partition["leader_id"] < 0:
        return "has no leader"
    if in_sync < needed:
        return f"has {in_sync} of {replicas} replicas in sync, and min.insync.replicas is {needed}"
    return ""


def to_topic_partitions(partitions: Iterable[Partition]) -> list[Any]:
    """Return kafka-python's TopicPartitions, each once, in order."""
    from kafka import TopicPartition

    return sorted({TopicPartition(*partition) for partition in partitions})

"""kafka-python's admin client, with time limits and our errors around it.

The private parts of the client are used here, and in the modules that send requests through it: `transactions`,
`cluster` and `markers`. tests/integration/kafka/test_kafka_transactions.py pins their behaviour.
"""

from __future__ import annotations

import logging
import warnings
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, cached_property
from time import monotonic, sleep
from typing import Any, TypeVar
from uuid import UUID

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.kafka.connection import DENIED
from onceonly.loggers import quiet
from onceonly.waits import wait_for

ADMIN_TIMEOUT_SECONDS = 10.0  # seconds, for one request and all its retries
FAILOVER = 3  # times as long, if a broker died: the others name it until its session ends, by default after 9 seconds
PAUSE = 0.01, 1.0  # seconds between retries: the first, the longest
DEFAULTS: Mapping[str, Any] = {
    "client_id": "onceonly",
    "request_timeout_ms": int(ADMIN_TIMEOUT_SECONDS * 1000),
    "bootstrap_timeout_ms": int(ADMIN_TIMEOUT_SECONDS * 1000),
    "reconnect_backoff_max_ms": 1000,
}
OUT_OF_RANGE = 1  # the error code of a fetch at an offset that the log does not hold
T = TypeVar("T")


class ResponseLost(Exception):
    """The request was sent, and the connection broke before the response: it may have been carried out."""


class BrokerClient:
    """One long-lived connection to the brokers, opened on first use. It can be used again after `close`.

    Args:
        config: kafka-python's keyword arguments, at least `bootstrap_servers`.
    """

    timeout = ADMIN_TIMEOUT_SECONDS

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = {**DEFAULTS, **config}
        _import_quietly()

    @property
    def address(self) -> str:
        """Return the bootstrap servers, for messages."""
        servers = self._config["bootstrap_servers"]
        if isinstance(servers, str):
            return servers
        return ",".join(map(str, servers))

    def close(self) -> None:
        """Close the socket and end the thread."""
        if admin := self.__dict__.pop("admin", None):
            admin.close()

    def call(self, request: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Return the result of `request`, which is retried while the brokers change leaders or coordinators.

        Args:
            request: a coroutine function, run on the client's own thread.
            timeout: seconds, 10 by default; after them the request is dropped. If the broker that it goes to accepts no
                connection while another answers, it is dropped after `FAILOVER` times as many.
        Raises:
            NotCommitted: no response in time, or an error that a retry does not fix.
        """
        from kafka.errors import KafkaError

        start, limit = monotonic(), timeout or self.timeout
        deadline, last_deadline = start + limit, start + FAILOVER * limit
        pause, is_retry = PAUSE[0], False
        with wait_for(f"the Kafka broker at {self.address}"):
            while True:
                try:
                    return self._call_once(request, deadline, is_retry)
                except KafkaError as error:
                    if deadline < monotonic() + pause < last_deadline and self._is_failing_over(error):
                        deadline = last_deadline
                    if not _is_transient(error) or monotonic() + pause > deadline:
                        raise self._error_for_caller(error) from error
                sleep(pause)
                pause, is_retry = min(2 * pause, PAUSE[1]), True

    # --- coroutines, for `call`

    async def send(self, request: Any, node: int | None = None) -> Any:
        """Send a request to that broker, or to any, and return the response."""
        return await self.admin._manager.send(request, node_id=node)

    async def send_once(self, request: Any, node: int, before_sending: Callable[[], None]) -> Any:
        """Send a request that must not be sent twice; `before_sending` is called right before it is sent.

        Raises:
            KafkaError: it was not sent.
            ResponseLost: it may have arrived.
        """
        from kafka.errors import KafkaError, NodeNotReadyError

        connection = await self.admin._manager.get_connection(node)
        if not connection.connected or connection.paused:
            raise NodeNotReadyError(node)
        before_sending()
        try:
            return await connection.send_request(request)
        except KafkaError as error:
            raise ResponseLost(str(error)) from error

    async def brokers(self) -> list[int]:
        """Return the ids of the live brokers, now."""
        await self.admin._manager.cluster.refresh_metadata()
        return sorted(broker.node_id for broker in self.admin._manager.cluster.brokers())

    async def coordinators(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the broker that coordinates each transactional id.

        kafka-python's cache is not used: it does not expire.
        """
        from kafka.protocol.metadata import CoordinatorType

        ids, kind = list(ids), CoordinatorType.TRANSACTION
        for id in ids:
            self.admin._manager.cluster._coordinators.pop((kind, id), None)
        coordinators: dict[str, int] = await self.admin._find_coordinator_ids(ids, key_type=kind)
        return coordinators

    async def topics(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the metadata of the topics that exist, by name."""
        from kafka.errors import UnknownTopicOrPartitionError

        response = await self.admin._get_cluster_metadata(sorted(set(names)))
        topics: dict[str, dict[str, Any]] = {}
        for topic in response["topics"]:
            if topic["error_code"] != UnknownTopicOrPartitionError.errno:
                check(topic["error_code"])
                topics[topic["name"]] = topic
        return topics

    async def leader(self, partition: tuple[str, int], topic_id: str | None = None) -> int:
        """Return the broker that leads the partition.

        Raises:
            UnknownTopicOrPartitionError: no such partition, or the topic of that name has another id.
        """
        from kafka.errors import UnknownTopicOrPartitionError

        name, number = partition
        topic = (await self.topics([name])).get(name)
        if topic is None or topic_id not in (None, id_text(topic["topic_id"])):
            raise UnknownTopicOrPartitionError(name)
        metadata_by_number = {metadata["partition_index"]: metadata for metadata in topic["partitions"]}
        if number not in metadata_by_number:
            raise UnknownTopicOrPartitionError(str(partition))
        check(metadata_by_number[number]["error_code"])
        return int(metadata_by_number[number]["leader_id"])

    async def leaders(self, topic_ids: Mapping[str, str]) -> dict[tuple[str, int], int]:
        """Return the leader of each partition of these topics, if it has one.

        A topic that has another id now is left out.
        """
        leaders: dict[tuple[str, int], int] = {}
        for name, topic in (await self.topics(topic_ids)).items():
            if id_text(topic["topic_id"]) != topic_ids[name]:
                continue
            for partition in topic["partitions"]:
                if not partition["error_code"]:
                    leaders[name, partition["partition_index"]] = int(partition["leader_id"])
        return leaders

    # --- the client

    @cached_property
    def admin(self) -> Any:
        """The KafkaAdminClient. If it cannot connect, its thread is ended before the error is raised."""
        from kafka.admin import KafkaAdminClient
        from kafka.net.compat import KafkaNetClient

        net_clients: list[Any] = []

        def make_net_client(**config: Any) -> Any:
            net_clients.append(KafkaNetClient(**config))
            return net_clients[0]

        proxy = {}
        if not {"proxy_url", "socks5_proxy"} & set(self._config):
            proxy = {"proxy_url": _direct_socket_url()}
        try:
            return KafkaAdminClient(**self._config, **proxy, kafka_client=make_net_client)
        except BaseException:
            for net_client in net_clients:
                net_client.close()
            raise

    def _call_once(self, request: Callable[[], Awaitable[T]], deadline: float, is_retry: bool) -> T:
        manager = self.admin._manager

        async def attempt() -> T:
            if is_retry:
                await manager.cluster.refresh_metadata()
            return await request()

        async def attempt_in_time() -> Any:
            return await manager.wait_for(manager.call_soon(attempt), max(1.0, (deadline - monotonic()) * 1000))

        result: T = manager.run(attempt_in_time)
        return result

    def _is_failing_over(self, error: Exception) -> bool:
        """Return whether the error is that of a broker that accepts no connection, while the cluster answers."""
        from kafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError

        if isinstance(error, (KafkaConnectionError, NodeNotReadyError)):
            with suppress(KafkaError):
                return bool(self._call_once(self.brokers, monotonic() + 1.0, is_retry=False))
        return False

    def _error_for_caller(self, error: Exception) -> NotCommitted:
        """Return the error of this project that tells of an error of kafka-python."""
        from kafka.errors import BrokerResponseError, UnknownTopicOrPartitionError

        if isinstance(error, UnknownTopicOrPartitionError):
            return InvalidPipeline(
                f"a topic or partition does not exist on {self.address}.",
                f"{error}.",
                "Create the topic, or correct its name. Nothing was published.",
                code="topic-missing",
            )
        if getattr(error, "errno", None) in DENIED:
            return InvalidPipeline(
                f"the Kafka broker at {self.address} does not allow this.",
                f"{error}.",
                "Grant Describe and Write on the TransactionalId prefix, and Describe, Read and Write on the topic. "
                "Nothing was published.",
                code="kafka-access-denied",
            )
        if isinstance(error, BrokerResponseError) and not _is_transient(error):
            return NotCommitted(
                f"the Kafka broker at {self.address} refused a request.",
                f"{error}.",
                "Fix what the error names. Nothing was published.",
                code="kafka-request-refused",
            )
        return NotCommitted(
            f"the Kafka broker at {self.address} did not answer.",
            f"{error}.",
            "Check that it is running and reachable from here. This is safe to retry. Nothing was published.",
            code="kafka-unreachable",
        )


def check(code: int) -> None:
    """Raise the exception for an error code in a response."""
    from kafka.errors import for_code

    if code:
        raise for_code(code)()


def id_text(topic_id: str) -> str:
    """Return a topic id as librdkafka writes it: 22 characters of base64, with + and /.

    Kafka's own tools write - and _.
    """
    return b64encode(UUID(topic_id).bytes).decode().rstrip("=")


def id_uuid(text: str) -> UUID:
    """Return the topic id that `id_text` has written."""
    return UUID(bytes=b64decode(f"{text}=="))


@cache
def _direct_socket_url() -> str:
    """Return the URL of a socket class that closes its socket when a connect fails.

    kafka-python takes such a class only as a "proxy". This one connects directly.
    """
    from kafka.net.inet import KafkaNetSocket

    class Direct(KafkaNetSocket):  # type: ignore[misc]  # the client is not typed
        SCHEMES = ("onceonly-direct",)

        async def sock_connect(self, net: Any, sock: Any, *arguments: Any, **more: Any) -> Any:
            try:
                return await super().sock_connect(net, sock, *arguments, **more)
            except BaseException:
                sock.close()
                raise

    return f"{Direct.SCHEMES[0]}://"


def _import_quietly() -> None:
    """Import kafka-python without its deprecation warning, which is an error where warnings are errors.

    It also logs each attempt to reach a broker, and a traceback if that fails: a hundred lines in ten seconds. The
    error that is raised in the end tells the reason.
    """
    quiet("kafka", logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka.admin  # noqa: F401


def _is_transient(error: Exception) -> bool:
    """Return whether a retry may help."""
    from kafka.errors import KafkaError, UnknownBrokerIdError, UnknownTopicOrPartitionError

    if isinstance(error, UnknownTopicOrPartitionError):
        return False
    return isinstance(error, UnknownBrokerIdError) or (isinstance(error, KafkaError) and error.retriable)

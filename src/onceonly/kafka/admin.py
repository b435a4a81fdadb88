"""kafka-python's admin client, with time limits and our errors around it.

All of the client that is not public is used here and in the modules that ask through it: `transactions`, `cluster` and
`markers`. tests/integration/test_kafka_transactions.py pins it.
"""

from __future__ import annotations

import logging
import warnings
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache, cached_property
from time import monotonic, sleep
from typing import Any, TypeVar
from uuid import UUID

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.kafka.connection import DENIED

PATIENCE = 10.0  # seconds, for one question and all its repetitions
PAUSE = 0.01, 1.0  # seconds between repetitions: the first, the longest
DEFAULTS: Mapping[str, Any] = {
    "client_id": "onceonly",
    "request_timeout_ms": int(PATIENCE * 1000),
    "bootstrap_timeout_ms": int(PATIENCE * 1000),
    "reconnect_backoff_max_ms": 1000,
}
T = TypeVar("T")


class AnswerLost(Exception):
    """The request left, and the connection broke before an answer came: it may have been carried out."""


class Wire:
    """One long-lived connection to the brokers, made when first used; safe to use again after `close`.

    Args:
        config: kafka-python's keyword arguments, at least `bootstrap_servers`.
    """

    patience = PATIENCE

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = {**DEFAULTS, **config}
        _import_quietly()

    @property
    def address(self) -> str:
        """The bootstrap servers, for messages."""
        servers = self._config["bootstrap_servers"]
        return servers if isinstance(servers, str) else ",".join(map(str, servers))

    def close(self) -> None:
        """Leaves no socket and no thread."""
        if admin := self.__dict__.pop("admin", None):
            admin.close()

    def ask(self, question: Callable[[], Awaitable[T]], patience: float | None = None) -> T:
        """The answer; asked again while the brokers change over.

        Args:
            question: a coroutine function, run on the client's own thread.
            patience: seconds, 10 if not said; after them the question is dropped.
        Raises:
            NotCommitted: no answer in time, or an error that asking again does not mend.
        """
        from kafka.errors import KafkaError

        limit, pause, again = monotonic() + (patience or self.patience), PAUSE[0], False
        while True:
            try:
                return self._run(question, limit, again)
            except KafkaError as error:
                if not _passes(error) or monotonic() + pause > limit:
                    raise self._unanswered(error) from error
            sleep(pause)
            pause, again = min(2 * pause, PAUSE[1]), True

    # --- coroutines, for questions

    async def send(self, request: Any, node: int | None = None) -> Any:
        """The response of that broker, or of any."""
        return await self.admin._manager.send(request, node_id=node)

    async def deliver(self, request: Any, node: int, leaving: Callable[[], None]) -> Any:
        """As `send`, for what must not be sent twice: calls `leaving` when the request is about to leave.

        Raises:
            KafkaError: it did not leave.
            AnswerLost: it may have arrived.
        """
        from kafka.errors import KafkaError, NodeNotReadyError

        connection = await self.admin._manager.get_connection(node)
        if not connection.connected or connection.paused:
            raise NodeNotReadyError(node)
        leaving()
        try:
            return await connection.send_request(request)
        except KafkaError as error:
            raise AnswerLost(str(error)) from error

    async def brokers(self) -> list[int]:
        """The ids of the live brokers, now."""
        await self.admin._manager.cluster.refresh_metadata()
        return sorted(broker.node_id for broker in self.admin._manager.cluster.brokers())

    async def coordinators(self, ids: Iterable[str]) -> dict[str, int]:
        """The broker that coordinates each transactional id; never from kafka-python's cache, which does not expire."""
        from kafka.protocol.metadata import CoordinatorType

        ids, kind = list(ids), CoordinatorType.TRANSACTION
        for id in ids:
            self.admin._manager.cluster._coordinators.pop((kind, id), None)
        found: dict[str, int] = await self.admin._find_coordinator_ids(ids, key_type=kind)
        return found

    async def topics(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Metadata of the topics that exist."""
        from kafka.errors import UnknownTopicOrPartitionError

        wanted = sorted(set(names))
        answer = await self.admin._get_cluster_metadata(wanted)
        found = {topic["name"]: topic for topic in answer["topics"]}
        known = {
            name: topic for name, topic in found.items() if topic["error_code"] != UnknownTopicOrPartitionError.errno
        }
        for topic in known.values():
            check(topic["error_code"])
        return known

    async def leader(self, partition: tuple[str, int], topic_id: str | None = None) -> int:
        """The broker that leads it.

        Raises:
            UnknownTopicOrPartitionError: there is none, or the topic of that name has another id.
        """
        from kafka.errors import UnknownTopicOrPartitionError

        topic = (await self.topics([partition[0]])).get(partition[0])
        if topic is None or topic_id not in (None, id_text(topic["topic_id"])):
            raise UnknownTopicOrPartitionError(partition[0])
        leaders = {found["partition_index"]: found for found in topic["partitions"]}
        if partition[1] not in leaders:
            raise UnknownTopicOrPartitionError(str(partition))
        check(leaders[partition[1]]["error_code"])
        return int(leaders[partition[1]]["leader_id"])

    async def leaders(self, topic_ids: Mapping[str, str]) -> dict[tuple[str, int], int]:
        """The broker that leads each partition of these topics, where there is one; a topic of another id is absent."""
        found = await self.topics(topic_ids)
        return {
            (name, partition["partition_index"]): int(partition["leader_id"])
            for name, topic in found.items()
            if id_text(topic["topic_id"]) == topic_ids[name]
            for partition in topic["partitions"]
            if not partition["error_code"]
        }

    # --- the client

    @cached_property
    def admin(self) -> Any:
        """A KafkaAdminClient; where none can be made, its thread is ended before the error is raised."""
        from kafka.admin import KafkaAdminClient
        from kafka.net.compat import KafkaNetClient

        made: list[Any] = []

        def net_client(**config: Any) -> Any:
            made.append(KafkaNetClient(**config))
            return made[0]

        direct = {} if {"proxy_url", "socks5_proxy"} & set(self._config) else {"proxy_url": _direct()}
        try:
            return KafkaAdminClient(**self._config, **direct, kafka_client=net_client)
        except BaseException:
            for client in made:
                client.close()
            raise

    def _run(self, question: Callable[[], Awaitable[T]], limit: float, again: bool) -> T:
        manager = self.admin._manager

        async def ask() -> T:
            if again:
                await manager.cluster.refresh_metadata()
            return await question()

        async def within() -> Any:
            return await manager.wait_for(manager.call_soon(ask), max(1.0, (limit - monotonic()) * 1000))

        answer: T = manager.run(within)
        return answer

    def _unanswered(self, error: Exception) -> NotCommitted:
        from kafka.errors import BrokerResponseError, UnknownTopicOrPartitionError

        if isinstance(error, UnknownTopicOrPartitionError):
            return InvalidPipeline(
                f"a topic or partition does not exist on {self.address}.",
                f"{error}.",
                "Create the topic, or correct its name. Nothing was published.",
            )
        if getattr(error, "errno", None) in DENIED:
            return InvalidPipeline(
                f"the Kafka broker at {self.address} does not allow this.",
                f"{error}.",
                "Grant Describe and Write on the TransactionalId prefix and on the topic. Nothing was published.",
            )
        refused = isinstance(error, BrokerResponseError) and not _passes(error)
        return NotCommitted(
            f"the Kafka broker at {self.address} {'refused a request' if refused else 'did not answer'}.",
            f"{error}.",
            "Correct what it names. Nothing was published."
            if refused
            else "Is it running, and reachable from here? This is safe to retry. Nothing was published.",
        )


def check(code: int) -> None:
    """Raise what an error code in a response stands for."""
    from kafka.errors import for_code

    if code:
        raise for_code(code)()


def id_text(topic_id: str) -> str:
    """A topic id as librdkafka writes it: 22 characters of base64, with + and / (Kafka's own tools write - and _)."""
    return b64encode(UUID(topic_id).bytes).decode().rstrip("=")


@cache
def _direct() -> str:
    """A "proxy" that is none: kafka-python's way to a socket of one's own, here one that a failed connect closes."""
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
    """kafka-python 3.0 reads its protocol files by a deprecated function: an error where warnings are errors.

    It also tells each of its steps at level INFO, which Airflow would print by the hundred.
    """
    logging.getLogger("kafka").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka.admin  # noqa: F401


def _passes(error: Exception) -> bool:
    """Whether asking again may help."""
    from kafka.errors import KafkaError, UnknownBrokerIdError, UnknownTopicOrPartitionError

    if isinstance(error, UnknownTopicOrPartitionError):
        return False
    return isinstance(error, UnknownBrokerIdError) or (isinstance(error, KafkaError) and error.retriable)

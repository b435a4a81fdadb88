"""One topic through librdkafka: its partitions, its offsets, and the first visible record at or after a time."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from time import monotonic, sleep
from typing import Any, TypeVar

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.kafka.connection import DENIED, KafkaConnection
from onceonly.waits import wait_for

REQUEST_SECONDS = 10.0  # seconds, for one request; also without progress in a scan
# What brokers and clients answer that do not know of a new leader yet
MOVING = (
    *("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "OFFSET_NOT_AVAILABLE"),
    *("FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"),
)
EARLIEST, LATEST = -2, -1  # in place of a time
AUTHENTICATION_ERROR = (
    "SASL authentication error"  # librdkafka's text for an error of the broker, not of a token endpoint
)
CHECKS_PER_TIMEOUT = 10
T = TypeVar("T")
RecordSearch = Callable[[int, int], T | None]  # of a record's offset and time, in milliseconds since 1970


class SearchTooLong(Exception):
    """A search was given up: at this offset of this partition, it had found nothing."""

    def __init__(self, partition: int, offset: int) -> None:
        super().__init__(partition, offset)
        self.partition, self.offset = partition, offset


class TopicClient:
    """Requests to the brokers about one topic. Every request has a time limit.

    Errors name the topic, the address, the protocol and the mechanism.
    """

    def __init__(self, topic: str, kafka: KafkaConnection) -> None:
        self.topic, self._kafka = topic, kafka
        self._connection_errors: list[Any] = []

    @cached_property
    def admin(self) -> Any:
        """confluent-kafka's AdminClient."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            return AdminClient(self.make_config())
        except KafkaException as error:
            why = self._kafka.scrub(error.args[0].str())
            raise self._kafka.setting_error(f"librdkafka: {why}.", "Correct the setting.") from None

    def make_config(self) -> dict[str, Any]:
        """Settings for any client of librdkafka. Errors of its connections are kept, for our messages."""
        return {
            "client.id": "onceonly",
            **self._kafka.librdkafka(),
            "allow.auto.create.topics": False,
            "socket.connection.setup.timeout.ms": int(REQUEST_SECONDS * 1000 / 2),
            "reconnect.backoff.max.ms": 1000,
            "log_level": 0,  # errors come through error_cb; librdkafka would print them to stderr as well
            "error_cb": self._connection_errors.append,
        }

    def list_names(self) -> list[str]:
        """Return the names of all topics of the cluster that this client may describe."""
        return sorted(self._request(lambda: self.admin.list_topics(timeout=REQUEST_SECONDS)).topics)

    def describe(self) -> tuple[str, list[int]]:
        """Return the topic's id and partitions."""
        from confluent_kafka import TopicCollection

        topics = TopicCollection([self.topic])
        description = self._request(
            lambda: self.admin.describe_topics(topics, request_timeout=REQUEST_SECONDS)[self.topic].result()
        )
        return str(description.topic_id), sorted(partition.id for partition in description.partitions)

    def count_members(self, group: str) -> int:
        """Return how many consumers are members of a group now. One that assigns itself partitions is none."""
        return len(self._request(lambda: self._describe_group(group)).members)

    def _describe_group(self, group: str) -> Any:
        return self.admin.describe_consumer_groups([group], request_timeout=REQUEST_SECONDS)[group].result()

    def require_grants(self, operations: Collection[str], topics: Collection[str] = ()) -> None:
        """Refuse topics on which the brokers do not allow this client all of these operations.

        Args:
            operations: as Kafka calls them, such as "READ".
            topics: by default this one.
        Raises:
            InvalidPipeline: with the command that grants what is missing. A topic that is not there raises as well.
        """
        from confluent_kafka import TopicCollection

        names = sorted(topics or {self.topic})

        def describe() -> list[Any]:
            futures = self.admin.describe_topics(
                TopicCollection(names), request_timeout=REQUEST_SECONDS, include_authorized_operations=True
            )
            return [futures[name].result() for name in names]

        for description in self._request(describe):
            granted = {operation.name for operation in description.authorized_operations or ()}
            missing = sorted(set(operations) - granted)
            if granted and missing:  # a broker that does not tell says nothing at all
                raise self._missing_grant_error(description.name, missing)

    def _missing_grant_error(self, topic: str, operations: list[str]) -> InvalidPipeline:
        options = " ".join(f"--operation {operation.title()}" for operation in operations)
        return InvalidPipeline(
            f"topic '{topic}': the Kafka broker at {self._kafka.describe()} does not allow this.",
            f"Not granted to this client: {', '.join(operation.title() for operation in operations)}.",
            f"kafka-acls --bootstrap-server … --add --allow-principal User:… {options} --topic {topic}. "
            "Nothing was written.",
            code="kafka-access-denied",
        )

    def list_offsets(self, partitions: list[int], at: int, committed: bool = True) -> dict[int, Any]:
        """List offsets, by partition, for a read_committed reader.

        Args:
            at: milliseconds, EARLIEST, or LATEST (the last stable offset).
            committed: False: for a read_uncommitted reader, whose LATEST is the high watermark.
        """
        from confluent_kafka import IsolationLevel, TopicPartition, admin

        offsets: Any = admin.OffsetSpec  # type: ignore[attr-defined]
        spec = {EARLIEST: offsets.earliest, LATEST: offsets.latest}.get(at, lambda: offsets.for_timestamp(at))()
        specs = {TopicPartition(self.topic, partition): spec for partition in partitions}
        level = IsolationLevel.READ_COMMITTED
        if not committed:
            level = IsolationLevel.READ_UNCOMMITTED

        def list_offsets() -> dict[int, Any]:
            futures = self.admin.list_offsets(specs, isolation_level=level, request_timeout=REQUEST_SECONDS)
            return {key.partition: future.result() for key, future in futures.items()}

        return self._request(list_offsets)

    def find_records(
        self, starts: Mapping[int, int], searches: Mapping[int, RecordSearch[T]], max_seconds: float = math.inf
    ) -> dict[int, T]:
        """Find one committed record in each partition; a partition without such a record is left out.

        Args:
            starts: the offset to read from, by partition.
            searches: by partition: called with the offset and the time (ms since 1970) of each record from the start
                on, in the log's order, until it returns something, which is the result.
            max_seconds: give up after this time.
        Raises:
            SearchTooLong: not all was read within `max_seconds`.
            NotCommitted: the brokers do not answer.
        """
        results: dict[int, T] = {}
        if not starts:
            return results
        waiting, deadline = dict(starts), monotonic() + max_seconds
        with self._reading(starts) as reader, wait_for(f"a search in topic '{self.topic}'"):
            while waiting:
                message = self._await_message(reader)
                partition, at_end = message.partition(), self._is_at_end(message)
                if partition not in waiting:
                    continue
                if at_end:
                    self._stop_reading(reader, waiting, partition)
                    continue
                if monotonic() > deadline:
                    raise SearchTooLong(partition, message.offset())
                result = searches[partition](message.offset(), message.timestamp()[1])
                if result is not None:
                    results[partition] = result
                    self._stop_reading(reader, waiting, partition)
        return results

    def read_records(self, partitions: Mapping[int, tuple[int, int]]) -> Generator[Any, None, None]:
        """Yield the committed records from start to end of each partition, as confluent-kafka's messages.

        Raises:
            NotCommitted: the log does not have all of it, or did not answer.
        """
        starts: dict[int, int] = {}
        waiting: dict[int, int] = {}  # the end of each partition that is not read to its end
        for partition, (start, end) in partitions.items():
            if start < end:
                starts[partition], waiting[partition] = start, end
        with self._reading(starts) as reader:
            while waiting:
                message = self._await_message(reader)
                partition, at_end = message.partition(), self._is_at_end(message)
                if message.offset() >= waiting.get(partition, 0):
                    self._stop_reading(reader, waiting, partition)
                elif at_end:
                    raise self._no_answer_error(f"partition {partition} ends at {message.offset()}")
                else:
                    yield message

    @contextmanager
    def _reading(self, starts: Mapping[int, int]) -> Iterator[PatientConsumer]:
        """Read committed records of these partitions, from these offsets on, with a consumer that is closed after."""
        from confluent_kafka import TopicPartition

        settings = {
            **self.make_config(),
            "group.id": "onceonly",  # required, never joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
            "queued.max.messages.kbytes": 16384,
        }
        with closing(PatientConsumer(settings, REQUEST_SECONDS)) as reader:
            positions = [TopicPartition(self.topic, partition, offset) for partition, offset in starts.items()]
            reader.consumer.assign(positions)
            yield reader

    def _await_message(self, reader: PatientConsumer) -> Any:
        message = self._request(reader.poll)
        if message is None:
            raise self._no_answer_error(f"no record, no progress and no end of the log within {REQUEST_SECONDS:.0f} s")
        return message

    @property
    def _broker_name(self) -> str:
        return f"the Kafka broker at {self._kafka.bootstrap}, asked about topic '{self.topic}'"

    def _stop_reading(self, reader: PatientConsumer, waiting: dict[int, int], partition: int) -> None:
        from confluent_kafka import TopicPartition

        waiting.pop(partition, None)  # what was fetched before the pause comes still
        reader.consumer.pause([TopicPartition(self.topic, partition)])

    def _is_at_end(self, message: Any) -> bool:
        """Return whether the message only tells that its partition ends here. Raises another error that it tells."""
        from confluent_kafka import KafkaError

        error = message.error()
        if error is None:
            return False
        if error.code() != KafkaError._PARTITION_EOF:
            raise self._no_answer_error(error.str())
        return True

    def _request(self, request: Callable[[], T]) -> T:
        """Return the result of a request, which is retried while a partition changes its leader.

        Raises:
            NoTopic: there is no such topic.
            InvalidPipeline: the brokers refuse it.
            NotCommitted: no answer.
        """
        from confluent_kafka import KafkaError, KafkaException

        moving_codes = {getattr(KafkaError, name) for name in MOVING}
        deadline = monotonic() + REQUEST_SECONDS
        while True:
            try:
                with wait_for(self._broker_name):
                    return request()
            except KafkaException as failure:
                error = failure.args[0]
                if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._no_topic() from failure
                if error.code() in DENIED:
                    raise self._access_denied_error(error.str()) from failure
                if error.code() not in moving_codes or monotonic() > deadline:
                    raise self._no_answer_error(error.str()) from failure
            sleep(0.1)

    def _no_topic(self) -> NoTopic:
        """Return the error for a topic that does not exist, with similar names."""
        topics = self._request(lambda: self.admin.list_topics(timeout=REQUEST_SECONDS)).topics
        similar = difflib.get_close_matches(self.topic, [name for name in topics if not name.startswith("__")])
        names = "No name is similar"
        if similar:
            names = "Similar names: " + ", ".join(f"'{name}'" for name in similar)
        return NoTopic(
            f"topic '{self.topic}' does not exist on {self._kafka.bootstrap}.",
            f"{names}. Onceonly never creates a topic.",
            f"Create the topic ({name_page('kafka', 'create-a-topic')}), or correct its name in the pipeline. "
            "Nothing was written.",
            code="topic-missing",
        )

    def _no_answer_error(self, why: str) -> NotCommitted:
        """Return the error for brokers that do not answer, or that refuse the credentials."""
        self.admin.poll(0)  # delivers the errors of the connections
        error = self._connection_error()
        reason = why
        if error:
            reason = self._kafka.scrub(error.str())
        if AUTHENTICATION_ERROR in reason:
            return self._credentials_error(reason)
        if reason != why:
            why = f"{why}: {reason}"
        return NotCommitted(
            f"topic '{self.topic}': the Kafka broker at {self._kafka.describe()} did not answer.",
            f"{why}.",
            "Check that it is running and reachable from here. This is safe to retry. Nothing was written.",
            code="kafka-unreachable",
        )

    def _access_denied_error(self, reason: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"topic '{self.topic}': the Kafka broker at {self._kafka.describe()} does not allow this.",
            f"{reason}.",
            "Grant the client Describe and Read (sources) or Write (sinks) on the topic. Nothing was written.",
            code="kafka-access-denied",
        )

    def _connection_error(self) -> Any:
        """Return the most telling error of the connections: one of TLS, else the last one; None if there was none."""
        from confluent_kafka import KafkaError

        errors = [error for error in self._connection_errors if error.code() != KafkaError._ALL_BROKERS_DOWN]
        errors.sort(key=lambda error: error.code() == KafkaError._SSL)  # stable
        return errors[-1] if errors else None

    def _credentials_error(self, reason: str) -> InvalidPipeline:
        """Return the error for refused credentials. They are not retried: somebody must correct them."""
        return InvalidPipeline(
            f"topic '{self.topic}': the Kafka broker at {self._kafka.describe()} refuses the credentials.",
            f"{reason}.",
            "Correct mechanism, user or password in the connection, or add the user on the broker. "
            "Nothing was written.",
            code="kafka-credentials-refused",
        )


class NoTopic(InvalidPipeline):
    """The error for a topic that does not exist: the user's mistake, unless a checkpoint has pinned a range of it."""


class PatientConsumer:
    """A confluent-kafka consumer that waits as long as it makes progress.

    A read_committed reader hands out nothing while it fetches and drops the records of aborted transactions, however
    fast. The position at which it fetches shows that it is not idle. Only librdkafka's statistics have that position,
    since `Consumer.position` follows the last record that was handed out.

    Args:
        settings: librdkafka's.
        timeout: seconds without a record and without progress, after which `poll` gives up.
    """

    def __init__(self, settings: Mapping[str, Any], timeout: float) -> None:
        from confluent_kafka import Consumer

        self._timeout, self._pause = timeout, timeout / CHECKS_PER_TIMEOUT
        self._positions: dict[tuple[str, str], int] = {}
        self._progress_at = monotonic()
        statistics = {"statistics.interval.ms": max(1, round(self._pause * 1000)), "stats_cb": self._note_positions}
        self.consumer = Consumer({**settings, **statistics})

    def close(self) -> None:
        self.consumer.close()

    def poll(self) -> Any:
        """Return the next message, or None if the broker was silent for the whole time-out."""
        message = self.consumer.poll(self._pause)
        if message is not None:  # nearly always: no clock is read for it
            return message
        silent_since = monotonic() - self._pause
        while True:
            message = self.consumer.poll(self._pause)
            if message is not None or monotonic() - max(silent_since, self._progress_at) > self._timeout:
                return message

    def _note_positions(self, statistics: str) -> None:
        """Note the positions in librdkafka's statistics, and that there was progress if one has changed."""
        positions: dict[tuple[str, str], int] = {}
        for name, topic in json.loads(statistics)["topics"].items():
            for number, partition in topic["partitions"].items():
                positions[name, number] = partition["next_offset"]
        if positions != self._positions:
            self._positions, self._progress_at = positions, monotonic()

"""Kafka as a source: what the log holds for a read_committed reader, and reading exactly a pinned range of it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

from onceonly.errors import BadRecord, InvalidPipeline, NotCommitted, SourceLost
from onceonly.offsets import TopicLog, TopicRange, check_held
from onceonly.pipeline import KafkaSource
from onceonly.protocols import Found

PATIENCE = 10.0  # seconds, for one request; also for one pause in a scan
EPOCH, MILLISECOND = datetime.fromtimestamp(0, UTC), timedelta(milliseconds=1)
EARLIEST, LATEST = -2, -1  # in place of a time
T = TypeVar("T")


class KafkaReader:
    """The `Source` of a `KafkaSource`; plans with a Kafka client, reads with Spark.

    Args:
        bootstrap: broker addresses, as in `bootstrap.servers`.
        root: the project's folder, in which schema files are looked up.
    """

    def __init__(self, config: KafkaSource, bootstrap: str, root: Path) -> None:
        self._config, self._bootstrap, self._root = config, bootstrap, root
        self._complaints: list[str] = []

    def check(self) -> list[str]:
        """Nothing to note; an error when the pipeline could not read.

        Raises:
            InvalidPipeline: no such topic, or no usable schema file.
            NotCommitted: no broker answered within 10 s.
        """
        self._check_schema()
        self._describe()
        return []

    def log(self) -> TopicLog:
        """Log start and last stable offset of every partition, in three requests."""
        topic_id, partitions = self._describe()
        starts = self._list(partitions, EARLIEST)
        ends = self._list(partitions, LATEST)
        return TopicLog(self._config.topic, topic_id, {p: (starts[p].offset, ends[p].offset) for p in partitions})

    def offsets_at(self, time: datetime) -> Mapping[int, Found]:
        """Per partition the first record at or after `time` that a read_committed reader sees, else the LSO.

        The broker's answer may be an aborted record, or a commit marker (stamped with the broker's clock, so found
        for any time up to now): it is only where the search begins. The LSO is taken first, so that a record which
        arrives meanwhile is never below a boundary that it belongs above.

        Args:
            time: aware.
        """
        millis = _millis(time)
        _, partitions = self._describe()
        stable = self._list(partitions, LATEST)
        hints = self._list(partitions, millis)
        seen = self._first_seen({p: hint.offset for p, hint in hints.items() if hint.offset >= 0}, millis)
        return {p: seen.get(p) or Found(stable[p].offset, None) for p in partitions}

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        try:
            log = self.log()
        except _NoTopic as error:
            raise SourceLost(
                error.what,
                "A range of it was pinned by a checkpoint, and it was deleted since.",
                "Restore the topic, or give the pipeline a new name to start over. Nothing was written.",
            ) from error
        for range_ in ranges:
            check_held(range_, log)

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """The committed records of `ranges`, their values decoded, as a lazy DataFrame (columns: see `spark.read`)."""
        from onceonly.spark.decode import decode
        from onceonly.spark.read import read_ranges

        return decode(read_ranges(spark, self._bootstrap, ranges), self._config.format, self._schema())

    def diagnose(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> Exception:
        """SourceLost where the log shows it, a BadRecord where one is found, otherwise `error` itself."""
        from onceonly.spark.decode import looks_malformed
        from onceonly.spark.read import looks_lost

        if not (looks_lost(error) or looks_malformed(error)):
            return error
        try:
            self.verify(ranges)
            return self._bad_record(error, spark, ranges) or error
        except SourceLost as lost:
            return lost
        except Exception:  # the first error says more than a failure to explain it
            return error

    def _bad_record(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> BadRecord | None:
        from onceonly.spark.decode import find_malformed
        from onceonly.spark.read import read_ranges

        rows = read_ranges(spark, self._bootstrap, ranges)
        bad = find_malformed(error, rows, self._config.format, self._schema())
        if bad is None:
            return None
        return BadRecord(
            f"topic '{bad.topic}' partition {bad.partition} offset {bad.offset}: the record cannot be decoded as "
            f"{self._config.format} with '{self._config.schema}'.",
            bad.why,
            "Correct the schema file, or read the topic with format='raw' and decode it in the transform. "
            "Nothing was published.",
        )

    # --- schema file

    def _schema(self) -> str | None:
        if self._config.schema is None:
            return None
        try:
            return (self._root / self._config.schema).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self._bad_schema(f"It cannot be read: {error}.") from error

    def _check_schema(self) -> None:
        text = self._schema()
        if text is not None and not text.strip():
            raise self._bad_schema("It is empty.")
        if text is not None and self._config.format == "avro":
            self._check_avro(text)

    def _check_avro(self, text: str) -> None:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType

        try:
            parse_schema(json.loads(text))
        except (ValueError, KeyError, SchemaParseException, UnknownType) as error:
            raise self._bad_schema(f"It is no Avro schema: {error!r}.") from error

    def _bad_schema(self, why: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"schema '{self._config.schema}' of topic '{self._config.topic}' cannot be used.",
            why,
            f"Correct the file, or KafkaSource(schema=…); it is looked up in {self._root}. Nothing was written.",
        )

    # --- broker

    @cached_property
    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient(self._client_config())

    def _client_config(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._bootstrap,
            "client.id": "onceonly",
            "allow.auto.create.topics": False,
            "socket.connection.setup.timeout.ms": int(PATIENCE * 1000 / 2),
            "reconnect.backoff.max.ms": 1000,
            "log_level": 0,  # what matters comes as an error; librdkafka would print it to stderr as well
            "error_cb": lambda error: self._complaints.append(error.str()),
        }

    def _describe(self) -> tuple[str, list[int]]:
        """The topic's id and partitions."""
        from confluent_kafka import TopicCollection

        topic = self._config.topic
        futures = self._ask(lambda: self._admin.describe_topics(TopicCollection([topic]), request_timeout=PATIENCE))
        description = self._ask(futures[topic].result)
        return str(description.topic_id), sorted(partition.id for partition in description.partitions)

    def _list(self, partitions: list[int], at: int) -> dict[int, Any]:
        """ListOffsets for a read_committed reader; `at`: milliseconds, EARLIEST, or LATEST (the last stable offset)."""
        from confluent_kafka import IsolationLevel, TopicPartition, admin

        offsets: Any = admin.OffsetSpec  # type: ignore[attr-defined]
        spec = {EARLIEST: offsets.earliest, LATEST: offsets.latest}.get(at, lambda: offsets.for_timestamp(at))()
        wanted = {TopicPartition(self._config.topic, p): spec for p in partitions}
        limits = {"isolation_level": IsolationLevel.READ_COMMITTED, "request_timeout": PATIENCE}
        futures = self._ask(lambda: self._admin.list_offsets(wanted, **limits))
        return {key.partition: self._ask(future.result) for key, future in futures.items()}

    def _first_seen(self, starts: Mapping[int, int], millis: int) -> dict[int, Found]:
        """From `starts` on, the first record at or after `millis` that a reader sees, where there is one."""
        from confluent_kafka import Consumer, TopicPartition

        if not starts:
            return {}
        settings = {
            **self._client_config(),
            "group.id": "onceonly",  # required, never joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
            "queued.max.messages.kbytes": 16384,
        }
        with closing(Consumer(settings)) as consumer:
            consumer.assign([TopicPartition(self._config.topic, p, offset) for p, offset in starts.items()])
            return self._scan(consumer, set(starts), millis)

    def _scan(self, consumer: Any, waiting: set[int], millis: int) -> dict[int, Found]:
        from confluent_kafka import TopicPartition

        seen: dict[int, Found] = {}
        while waiting:
            message = self._ask(lambda: consumer.poll(PATIENCE))
            if message is None:
                raise self._unanswered(f"no record and no end of the log within {PATIENCE:.0f} s")
            partition, at_end = message.partition(), self._at_end(message)
            if partition not in waiting or not (at_end or message.timestamp()[1] >= millis):
                continue
            if not at_end:
                seen[partition] = Found(message.offset(), _utc(message.timestamp()[1]))
            waiting.discard(partition)
            consumer.pause([TopicPartition(self._config.topic, partition)])
        return seen

    def _at_end(self, message: Any) -> bool:
        from confluent_kafka import KafkaError

        if (error := message.error()) is None:
            return False
        if error.code() != KafkaError._PARTITION_EOF:
            raise self._unanswered(error.str())
        return True

    def _ask(self, request: Callable[[], T]) -> T:
        """The request's result, or its error in our terms; waits while a partition changes its leader."""
        from confluent_kafka import KafkaError, KafkaException

        moving = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
        end = monotonic() + PATIENCE
        while True:
            try:
                return request()
            except KafkaException as failure:
                error = failure.args[0]
                if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._no_topic() from failure
                if error.code() not in moving or monotonic() > end:
                    raise self._unanswered(error.str()) from failure
            sleep(0.1)

    def _no_topic(self) -> _NoTopic:
        topics = self._ask(lambda: self._admin.list_topics(timeout=PATIENCE)).topics
        alike = difflib.get_close_matches(self._config.topic, [name for name in topics if not name.startswith("__")])
        names = "Similar names: " + ", ".join(f"'{name}'" for name in alike) if alike else "No name is similar"
        return _NoTopic(
            f"topic '{self._config.topic}' does not exist on {self._bootstrap}.",
            f"{names}. Onceonly never creates a topic it reads.",
            "Create the topic, or correct KafkaSource(topic=…). Nothing was written.",
        )

    def _unanswered(self, why: str) -> NotCommitted:
        self._admin.poll(0)  # delivers what the connections complained of
        reason = self._complaints[-1] if self._complaints else why
        return NotCommitted(
            f"topic '{self._config.topic}': the Kafka broker at {self._bootstrap} did not answer.",
            f"{why}: {reason}." if reason != why else f"{why}.",
            "Is it running, and reachable from here? This is safe to retry. Nothing was written.",
        )


class _NoTopic(InvalidPipeline):
    """The topic does not exist: the user's mistake, unless a checkpoint has pinned a range of it."""


def _millis(time: datetime) -> int:
    """Since 1970, rounded up: Kafka's next millisecond at or after `time`."""
    return max(0, -((EPOCH - time) // MILLISECOND))


def _utc(millis: int) -> datetime:
    return EPOCH + millis * MILLISECOND

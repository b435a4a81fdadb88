"""Kafka as a source: the extent of a log for a read_committed reader, and reading exactly a pinned range of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from onceonly.checkpoint.boundary_search import FirstRecord
from onceonly.checkpoint.interfaces import OpenTransaction
from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import (
    NO_OFFSETS,
    START_OVER,
    Offsets,
    TopicLog,
    TopicRange,
    find_range,
    require_in_log,
)
from onceonly.checkpoint.sink import Trace
from onceonly.checkpoint.verification import Depth, Finding, ReadRange
from onceonly.counts import count
from onceonly.documentation import name_page
from onceonly.errors import BadRecord, InvalidPipeline, NotCommitted, OutcomeUnknown, SourceLost
from onceonly.json_values.columns import BadColumns, parse_columns
from onceonly.kafka import client_settings
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.registry import avro_schema
from onceonly.kafka.registry.client import Registry
from onceonly.kafka.topic import REQUEST_SECONDS, NoTopic, TopicClient
from onceonly.pipeline.sources import KafkaSource
from onceonly.sources import registered_values, topic_counts
from onceonly.sources.consumer_group import Group, OffsetMetadata, own_name
from onceonly.sources.kafka_log import KafkaLog
from onceonly.sources.registered_values import RegisteredPart
from onceonly.sources.topic_marks import TopicMarks

if TYPE_CHECKING:
    import pyarrow as pa

    from onceonly.spark.decode_results import Malformed

WHY = "_onceonly_why_value"
LEAVE_BAD_RECORDS_OUT = (
    "Records that can be left out: KafkaSource(on_bad_record='dead_letter') publishes them beside the others, 'drop' "
    f"only counts them ({name_page('bad-records')})."
)


class KafkaReader:
    """The `Source` of a `KafkaSource`; plans with a Kafka client, reads with Spark.

    Args:
        kafka: how to reach the brokers; plain addresses (as in `bootstrap.servers`) mean no security.
        root: the project's folder, in which schema files are searched.
        registry: the one with the schemas that its values name.
        pins: the schemas by which they are decoded, once that is known.
    """

    def __init__(
        self,
        config: KafkaSource,
        kafka: KafkaConnection | str,
        root: Path,
        registry: Registry | None = None,
        pins: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._config, self._root = config, root
        self._kafka = KafkaConnection.plaintext(kafka) if isinstance(kafka, str) else kafka
        self._registry, self._pins = registry, pins
        self._small_batch: tuple[tuple[TopicRange, ...], pa.Table] | None = None

    @cached_property
    def _topic(self) -> TopicClient:
        client_settings.java_options(self._kafka)  # refuse a connection that Spark cannot use before anything is pinned
        return TopicClient(self._config.input_name, self._kafka)

    def check(self) -> list[str]:
        """Check that the pipeline can read the topic, and return notes.

        Raises:
            InvalidPipeline: no such topic, no usable schema file, or the brokers refuse the credentials.
            NotCommitted: no broker answered within 10 s.
        """
        self._check_schema()
        topics = []
        if self._config.topic_pattern is not None:
            topics = [topic for topic in self.topics() if self._config.reads(topic)]
        if topics or self._config.topic_pattern is None:
            self._topic.require_grants(("DESCRIBE", "READ"), topics)
        notes: list[str] = []
        for part in self._registered_parts:
            notes += part.check()
        return notes

    def topics(self) -> list[str]:
        """Return the names of all topics that the brokers show to this client."""
        return self._topic.list_names()

    @cached_property
    def _log(self) -> KafkaLog:
        return KafkaLog(self._config.topic, self._topic, self._kafka)

    def log(self) -> TopicLog:
        """Return the log start, last stable offset and high watermark of every partition."""
        return self._log.read_extent()

    def has_records(self, range_: TopicRange) -> bool:
        """Return whether the range has a committed record. It is read up to the first one."""
        return self._reader_of(range_.topic)._log.has_records(range_)

    def first_offsets(self, range_: TopicRange) -> Offsets:
        """Return the offset of the first committed record, by partition; the range's end, where there is none."""
        return self._reader_of(range_.topic)._log.find_first_offsets(range_)

    def await_transactions(self, log: TopicLog) -> tuple[TopicLog, list[OpenTransaction]]:
        """Wait a moment for open transactions; return the log then, and those that are still open."""
        return self._log.await_transactions(log)

    def offsets_at(
        self, time: datetime, latest: datetime | None = None, floor: Offsets = NO_OFFSETS
    ) -> Mapping[int, FirstRecord]:
        """Find, per partition, the first record at or after `time`: see `KafkaLog.find_offsets`."""
        return self._log.find_offsets(time, latest, floor)

    # --- what was pinned

    @cached_property
    def _marks(self) -> TopicMarks:
        return TopicMarks(self._kafka)

    def add_mark(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """Return the range with its mark, once `previous` was compared with the log: see `topic_marks`."""
        return self._marks.mark_next(range_, previous)

    def mark_left_out(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """Return the range with its mark. It may be left out because the log was replaced: nothing is compared."""
        return self._marks.mark(range_, previous)

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        """Check that the log still has the pinned ranges. Raises SourceLost if not."""
        for range_ in ranges:
            require_in_log(range_, self._reader_of(range_.topic)._read_pinned_log())
            self._marks.check(range_)

    def count_ranges(self, ranges: Sequence[ReadRange], depth: Depth) -> Iterator[Finding]:
        """Count the committed records of each range in the log: see `topic_counts`."""
        return topic_counts.count_ranges(self._kafka, self._read_pinned_log(), ranges, depth)

    def _reader_of(self, topic: str) -> KafkaReader:
        """Return the reader of one topic: this one, or for a pattern of topics another."""
        config = self._config.for_topic(topic)
        return self if config == self._config else KafkaReader(config, self._kafka, self._root)

    def _read_pinned_log(self) -> TopicLog:
        """Read the log. Raises SourceLost where there is no topic any more."""
        try:
            return self.log()
        except NoTopic as error:
            raise SourceLost(
                error.what,
                "A checkpoint has pinned a range of it, and it was deleted since.",
                f"Restore the topic, or {START_OVER}. Nothing was written.",
                code="topic-deleted",
            ) from error

    def report(self, done: Checkpoint, state_id: str) -> None:
        """Commit the ends of the checkpoint's range to the consumer group `onceonly-<pipeline>`."""
        range_ = find_range(done.ranges, self._config.topic)
        marks = {}
        if range_:
            for partition, end in range_.ends.items():
                marks[partition] = OffsetMetadata(state_id, done.decision or 0, done.epoch, end)
        self._group(done.pipeline).report(marks)

    def traces(self, pipeline: str) -> list[Trace]:
        """Read the decisions that the consumer group shows."""
        _, partitions = self._topic.describe()
        return self._group(pipeline).traces(partitions)

    def _group(self, pipeline: str) -> Group:
        return self._open_group(own_name(pipeline))

    def _open_group(self, name: str) -> Group:
        return Group(self._topic.make_config(), name, self._config.topic, REQUEST_SECONDS)

    def read_group(self, group: str) -> Offsets:
        """Return the offsets that a consumer group has committed: see `GroupOffsets`."""
        _, partitions = self._topic.describe()
        try:
            committed = self._open_group(group).read_committed(partitions)
        except OutcomeUnknown as error:
            todo = "Grant Read on the group to this client, or name the offsets: start={partition: offset}."
            raise NotCommitted(error.what, error.why, f"{todo} Nothing was written.", code=error.code) from error
        members = self._topic.count_members(group)  # asked last: who is at work now was so before
        if members:
            raise InvalidPipeline(
                f"topic '{self._config.topic}' cannot be read from where consumer group '{group}' is.",
                f"{count(members, 'consumer')} of it {'is' if members == 1 else 'are'} at work, and would read on.",
                "Stop what reads by it. Its offsets stay. Nothing was written.",
                code="group-active",
            )
        return committed

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """Return the committed records of `ranges` with decoded values: a lazy DataFrame (see `spark.topics`)."""
        from onceonly.spark import decode_results, topics

        rows = self._read_to_decode(spark, ranges)
        for part in self._registered_parts:
            rows = part.decode(rows, self._pins[part.part])
        if self._registered_parts:
            return rows.select(*topics.COLUMNS)
        decoder = self._plain_json_decoder()
        if decoder:
            return decode_results.fail_bad_rows(decoder.decode(rows, WHY), decoder.part, WHY).select(*topics.COLUMNS)
        return decode_results.decode_or_fail(rows, self._config.format, self._read_schema())

    def read_with_errors(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """Return the committed records of `ranges`, decoded, with the errors of those that could not be."""
        from onceonly.spark import decode_results

        decodes = self._list_decodes()
        return decode_results.decode_with_errors(self._read_to_decode(spark, ranges), decodes)

    def _list_decodes(self) -> list[tuple[str, Any]]:
        """Return how each part is decoded: a function of rows and of the name of the column for why one was not."""
        from onceonly.spark.avro import decode_plain_avro

        if self._registered_parts:
            return [(part.part, self._make_registry_decode(part)) for part in self._registered_parts]
        decoder = self._plain_json_decoder()
        if decoder:
            return [(decoder.part, decoder.decode)]
        schema = self._read_schema()
        if schema is None:
            return []
        return [("value", partial(decode_plain_avro, schema=schema))]

    def _make_registry_decode(self, part: RegisteredPart) -> Any:
        return lambda rows, why: part.judge(rows, why, self._pins[part.part])

    def read_undecoded(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """Return the committed records of `ranges` as they are in the log."""
        from onceonly.spark import small_batch
        from onceonly.spark.topics import read_ranges

        table = self._find_small_batch(ranges)
        if table is not None:
            return small_batch.to_frame(spark, table)
        return read_ranges(spark, client_settings.java_options(self._kafka), ranges)

    def _read_to_decode(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """Return the records undecoded; but of a small batch this process decodes the JSON.

        It does so as fast as Spark would start workers.
        """
        from onceonly.spark import small_batch

        table, decoders = self._find_small_batch(ranges), self._json_decoders()
        if table is None or not decoders:
            return self.read_undecoded(spark, ranges)
        decoded_types = {}
        for decoder in decoders:
            table = decoder.decode_here(table)
            decoded_types[decoder.column] = decoder.column_type
        return small_batch.to_frame(spark, table, decoded_types)

    def _json_decoders(self) -> list[Any]:
        """Return the decoders of the parts that are JSON."""
        plain_decoder = self._plain_json_decoder()
        if plain_decoder:
            return [plain_decoder]
        decoders = []
        for part in self._registered_parts:
            decoder = part.json(self._pins[part.part])
            if decoder:
                decoders.append(decoder)
        return decoders

    def _plain_json_decoder(self) -> Any:
        """Return the decoder of values that are JSON without a registry; None: they are not."""
        from onceonly.spark.decoding import JsonDecoder

        text = self._read_schema()
        if self._registered_parts or self._config.format != "json" or text is None:
            return None
        return JsonDecoder(self._parse_columns(text), "value")

    def read_small_batch(self, ranges: tuple[TopicRange, ...]) -> None:
        """Read few records in this process, and keep them for `schemas` and `read`; where that fails, Spark reads."""
        from onceonly.spark import small_batch

        self._small_batch = None
        with suppress(NotCommitted):  # nothing is lost by it: Spark reads them, or says why it cannot
            table = small_batch.to_table(self._iterate_records(ranges))
            if table is not None:
                self._small_batch = ranges, table

    def _find_small_batch(self, ranges: tuple[TopicRange, ...]) -> pa.Table | None:
        """Return the records of these ranges, if this process has read them; None: Spark has to."""
        if self._small_batch is None or self._small_batch[0] != ranges:
            return None
        return self._small_batch[1]

    def count_read(self, ranges: tuple[TopicRange, ...]) -> Mapping[tuple[str, int], int] | None:
        """Return how many records of the ranges this process has read, by topic and partition; None: it has not."""
        table = self._find_small_batch(ranges)
        if table is None:
            return None
        return Counter(zip(table["topic"].to_pylist(), table["partition"].to_pylist(), strict=True))

    def _iterate_records(self, ranges: tuple[TopicRange, ...]) -> Iterator[Any]:
        for range_ in ranges:
            yield from self._reader_of(range_.topic)._topic.read_records(dict(range_.partitions))

    # --- schemas of a registry

    @cached_property
    def _registered_parts(self) -> list[RegisteredPart]:
        self._check_schema()
        return registered_values.list_registered_parts(self._config, self._registry, self._read_schema())

    def schemas(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Mapping[str, Any]:
        """Return the schemas that the records name, by part, to be pinned."""
        schemas = {}
        for part in self._registered_parts:
            schemas[part.part] = part.pins(self.read_undecoded(spark, ranges))
        return schemas

    def pinned_to(self, schemas: Mapping[str, Any]) -> KafkaReader:
        """Return a reader that decodes by these schemas. It takes over a small batch that was read."""
        reader = KafkaReader(self._config, self._kafka, self._root, self._registry, schemas)
        reader._small_batch = self._small_batch
        return reader

    # --- diagnosis of a read that failed

    def diagnose(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> Exception:
        """Return SourceLost if the log shows it, a BadRecord if one is found, otherwise `error` itself."""
        from onceonly.spark.decode_results import looks_malformed
        from onceonly.spark.topics import looks_lost, looks_untimely

        if not (looks_lost(error) or looks_malformed(error) or looks_untimely(error)):
            return error
        try:
            self.verify(ranges)
            if looks_untimely(error):
                return self._find_bad_time(ranges) or error
            return self._find_bad_record(error, spark, ranges) or error
        except SourceLost as lost:
            return lost
        except Exception:  # the original error says more than a failure to explain it
            return error

    def _find_bad_record(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> BadRecord | None:
        from onceonly.spark.decode_results import find_malformed

        malformed = find_malformed(error)
        if malformed is None:
            return None
        if self._registered_parts:
            return self._explain_bad_part(malformed, self.read_undecoded(spark, ranges))
        return BadRecord(
            f"topic '{malformed.topic}' partition {malformed.partition} offset {malformed.offset}: the record cannot "
            f"be decoded as {self._config.format} with '{self._config.schema}'.",
            malformed.why,
            "Correct the schema file, or read the topic with format='raw' and decode it in the transform. "
            f"{LEAVE_BAD_RECORDS_OUT} Nothing was published.",
            code="record-undecodable",
        )

    def _find_bad_time(self, ranges: tuple[TopicRange, ...]) -> BadRecord | None:
        """Find a record whose time is too large for Spark, which cannot read it: it becomes no dead letter either."""
        from onceonly.spark import small_batch

        for record in self._iterate_records(ranges):
            if not small_batch.is_representable_time(record.timestamp()[1]):
                return self._explain_bad_time(record)
        return None

    def _explain_bad_time(self, record: Any) -> BadRecord:
        from onceonly.spark import small_batch

        topic, partition, offset = record.topic(), record.partition(), record.offset()
        return BadRecord(
            f"topic '{topic}' partition {partition} offset {offset}: Spark cannot read the record.",
            f"Its Kafka timestamp is {record.timestamp()[1]} ms since 1970, and a timestamp of Spark holds at most "
            f"{small_batch.MAX_TIME_MILLIS}. A producer that takes nanoseconds for milliseconds writes such times.",
            "Correct the producer. To leave the record out: abort the checkpoint, run the pipeline up to it "
            f"(max_records), then onceonly skip PIPELINE --topic {topic} --partition {partition} --to {offset + 1} "
            "--reason …, which leaves out all unread records before that offset. Nothing was published.",
            code="record-time-unreadable",
        )

    def _explain_bad_part(self, malformed: Malformed, rows: Any) -> BadRecord:
        """Return the error of a record whose key or value a schema of the registry does not decode."""
        part = next(part for part in self._registered_parts if part.part == malformed.part)
        topic, partition, offset = malformed.topic, malformed.partition, malformed.offset
        row = rows.where(f"topic = '{topic}' AND partition = {partition} AND offset = {offset}").first()
        detail = None
        if row:
            detail = part.explain_failure(bytes(row[part.part]), self._pins[part.part])
        return BadRecord(
            f"topic '{topic}' partition {partition} offset {offset}: the {part.part} cannot be decoded as "
            f"{part.format} with the schema registry {part.registry.connection.describe()}.",
            " ".join(filter(None, [malformed.why, detail])),
            "Give another reader's schema, or read it raw and decode it in the transform. "
            f"{LEAVE_BAD_RECORDS_OUT} Nothing was published.",
            code="record-undecodable",
        )

    # --- schema file

    def _read_schema(self) -> str | None:
        """Read the schema file; None: there is none. Raises InvalidPipeline: it cannot be read."""
        if self._config.schema is None:
            return None
        try:
            return (self._root / self._config.schema).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self._schema_error(f"It cannot be read: {error}.") from error

    def _check_schema(self) -> None:
        """Refuse a schema file that cannot be used. Raises InvalidPipeline."""
        text = self._read_schema()
        if text is None:
            return
        if not text.strip():
            raise self._schema_error("It is empty.")
        if self._config.format == "json":
            self._parse_columns(text)
        if self._config.format == "avro":
            error = avro_schema.find_flaw(text)
            if error:
                raise self._schema_error(f"It is not a usable Avro schema: {error}.") from error

    def _parse_columns(self, text: str) -> Any:
        """Return the type of JSON values that the text, Spark's DDL, names. Raises InvalidPipeline: it names none."""
        try:
            return parse_columns(text)
        except BadColumns as error:
            raise self._schema_error(f"It does not name columns of JSON: {error}.") from error

    def _schema_error(self, why: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"schema '{self._config.schema}' of topic '{self._config.topic}' cannot be used.",
            why,
            f"Correct the file, or KafkaSource(schema=…), which is relative to {self._root}. Nothing was written.",
            code="schema-unusable",
        )

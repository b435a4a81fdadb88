"""Kafka as a source: what a read_committed reader can see in a log, and reading exactly a pinned range of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from time import monotonic, sleep
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from onceonly.checkpoint.boundary_search import BoundarySearch, FirstRecord
from onceonly.checkpoint.interfaces import OpenTransaction
from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import NO_OFFSETS, START_OVER, Offsets, TopicLog, TopicRange, check_held, range_of
from onceonly.checkpoint.sink import Trace
from onceonly.errors import BadRecord, InvalidPipeline, NotCommitted, SourceLost
from onceonly.json_values.columns import BadColumns, columns
from onceonly.kafka import avro, java
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.topic import EARLIEST, EPOCH, LATEST, MILLISECOND, TIMEOUT, NoTopic, TopicClient
from onceonly.pipeline.sources import KafkaSource
from onceonly.registry.client import Registry
from onceonly.sources import open_transactions, registered
from onceonly.sources.consumer_group import Group, OffsetMetadata
from onceonly.sources.registered import Registered
from onceonly.sources.topic_marks import TopicMarks

if TYPE_CHECKING:
    import pyarrow as pa

    from onceonly.spark.decode import Malformed

ANY_TIME = -(2**63)  # in milliseconds; producers may write any number
WHY = "_onceonly_why_value"
MARKERS = 1.0  # seconds within which the markers of a transaction usually follow its end


class KafkaReader:
    """The `Source` of a `KafkaSource`; plans with a Kafka client, reads with Spark.

    Args:
        kafka: how to reach the brokers; plain addresses (as in `bootstrap.servers`) mean no security.
        root: the project's folder, in which schema files are searched.
        registry: where the schemas are that its values name.
        pins: by which of them they are decoded, once that is known.
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
        self._held: tuple[tuple[TopicRange, ...], Any] | None = None

    @cached_property
    def _topic(self) -> TopicClient:
        java.options(self._kafka)  # refuse a connection that Spark cannot use before anything is pinned
        return TopicClient(self._config.called, self._kafka)

    def check(self) -> list[str]:
        """Notes; an error if the pipeline could not read the topic.

        Raises:
            InvalidPipeline: no such topic, no usable schema file, or the brokers refuse the credentials.
            NotCommitted: no broker answered within 10 s.
        """
        self._check_schema()
        if self._config.topic_pattern is None:
            self._topic.describe()
        return [note for part in self._registered for note in part.check()]

    def topics(self) -> list[str]:
        """The names of all topics that the brokers show to this client."""
        return self._topic.names()

    def log(self) -> TopicLog:
        """The log start, last stable offset and high watermark of every partition, by four requests."""
        topic_id, partitions = self._topic.describe()
        starts = self._topic.offsets(partitions, EARLIEST)
        written, stable = self._ends(partitions)  # in this order: what arrives in between seems to wait for nobody
        extent = {partition: (starts[partition].offset, stable[partition]) for partition in partitions}
        return TopicLog(self._config.topic, topic_id, extent, written=written)

    def has_records(self, range_: TopicRange) -> bool:
        """See `FindsRecords`."""
        with closing(self._of(range_.topic)._topic.records(dict(range_.partitions))) as records:
            return next(records, None) is not None

    def first_offsets(self, range_: TopicRange) -> Offsets:
        """See `FindsRecords`."""
        starts = {p: start for p, (start, end) in range_.partitions.items() if start < end}
        first = self._of(range_.topic)._topic.first_seen(starts, ANY_TIME)
        return {p: min(first[p].offset, end) if p in first else end for p, end in range_.ends.items()}

    def await_transactions(self, log: TopicLog) -> tuple[TopicLog, list[OpenTransaction]]:
        """See `ShowsTransactions`."""
        limit = monotonic() + MARKERS
        while log.held and monotonic() < limit:
            sleep(MARKERS / 10)
            before, log = log, self.log()
            if log.partitions != before.partitions:
                return log, []
        return log, open_transactions.find(self._kafka, log) if log.held else []

    def offsets_at(
        self, time: datetime, latest: datetime | None = None, floor: Offsets = NO_OFFSETS
    ) -> Mapping[int, FirstRecord]:
        """Per partition the first record at or after `time` that a read_committed reader sees, else the LSO.

        A broker can only name the first record at or after a time. Where that one is dated after `latest`, what follows
        it is read, from `floor` on if that comes later: the boundary will not lie before.

        Args:
            time: aware.
        Raises:
            InvalidPipeline: what follows is more than can be read in a reasonable time.
        """
        first = _ask_until_decided(lambda: self._offsets_at(_millis(time)))
        behind = {p: max(one.offset, floor.get(p, 0)) for p, one in first.items() if latest and _is_ahead(one, latest)}
        if latest is None or not behind:
            return first
        return {**first, **_ask_until_decided(lambda: self._pass_over(behind, time, latest))}

    def _offsets_at(self, millis: int) -> dict[int, FirstRecord]:
        """As `offsets_at`, without retries.

        The broker's result may be an aborted record, or a commit marker (with the broker's time, so found for any time
        up to now): the search only starts there. The LSO is read before, so that a record which arrives meanwhile is
        never below a boundary that it belongs above. The end of the log is read before the LSO, so that such a record
        is not taken for one that an open transaction hides.
        """
        _, partitions = self._topic.describe()
        ends, stable = self._ends(partitions)
        hints = self._topic.offsets(partitions, millis)
        seen = self._topic.first_seen({p: hint.offset for p, hint in hints.items() if hint.offset >= 0}, millis)
        last = {p: FirstRecord(stable[p], None, held=stable[p] < ends[p]) for p in partitions}
        return {p: seen.get(p) or last[p] for p in partitions}

    def _pass_over(self, starts: Offsets, time: datetime, latest: datetime) -> dict[int, FirstRecord]:
        """From `starts` on the first record in [time, latest], else the LSO; the ends are read first, as above."""
        ends, stable = self._ends(list(starts))
        searches = {p: BoundarySearch(time, latest, stable[p]) for p in starts}
        found = self._topic.search(starts, searches)
        return {p: found.get(p) or searches[p].nothing(held=stable[p] < ends[p]) for p in starts}

    def _ends(self, partitions: list[int]) -> tuple[dict[int, int], dict[int, int]]:
        """The ends of the log, and then the last stable offsets."""
        ends = self._topic.offsets(partitions, LATEST, committed=False)
        stable = self._topic.offsets(partitions, LATEST)
        return {p: ends[p].offset for p in partitions}, {p: stable[p].offset for p in partitions}

    # --- what was pinned

    @cached_property
    def _marks(self) -> TopicMarks:
        return TopicMarks(self._kafka)

    def marked(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """See `ChecksRanges`, and `topic_marks` for the mark."""
        return self._marks.mark_next(range_, previous)

    def recognised(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """See `Recognises`. Where a person leaves out what a replaced log holds, there is nothing to compare."""
        return self._marks.mark(range_, previous)

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        for range_ in ranges:
            check_held(range_, self._of(range_.topic)._pinned_log())
            self._marks.check(range_)

    def _of(self, topic: str) -> KafkaReader:
        """Itself, or of a pattern the one for that topic."""
        one = self._config.of(topic)
        return self if one == self._config else KafkaReader(one, self._kafka, self._root)

    def _pinned_log(self) -> TopicLog:
        try:
            return self.log()
        except NoTopic as error:
            raise SourceLost(
                error.what,
                "A checkpoint has pinned a range of it, and it was deleted since.",
                f"Restore the topic, or {START_OVER}. Nothing was written.",
            ) from error

    def report(self, done: Checkpoint, state_id: str) -> None:
        """Commit the ends of the checkpoint's range to the consumer group `onceonly-<pipeline>`."""
        range_ = range_of(done.ranges, self._config.topic)
        ends = range_.ends if range_ else {}
        marks = {p: OffsetMetadata(state_id, done.decision or 0, done.epoch, end) for p, end in ends.items()}
        self._group(done.pipeline).report(marks)

    def traces(self, pipeline: str) -> list[Trace]:
        _, partitions = self._topic.describe()
        return self._group(pipeline).traces(partitions)

    def _group(self, pipeline: str) -> Group:
        return Group(self._topic.client_config(), pipeline, self._config.topic, TIMEOUT)

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """The committed records of `ranges` with decoded values, as a lazy DataFrame (columns: see `spark.read`)."""
        from onceonly.spark import read as reading
        from onceonly.spark import registered as failures
        from onceonly.spark.decode import decode

        rows = self._to_decode(spark, ranges)
        for part in self._registered:
            rows = part.decode(rows, self._pins[part.part])
        if self._registered:
            return rows.select(*reading.COLUMNS)
        if json := self._plain_json():
            return failures.failing(json.decode(rows, WHY), json.part, WHY).select(*reading.COLUMNS)
        return decode(rows, self._config.format, self._schema())

    def judged(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """See `Judges`."""
        from onceonly.spark import decode, judged

        parts: list[tuple[str, Any]] = [(each.part, self._judge(each)) for each in self._registered]
        if json := self._plain_json():
            parts = [(json.part, json.decode)]
        elif not parts and (schema := self._schema()):
            parts = [("value", partial(decode.plain_avro, schema=schema))]
        return judged.judged(self._to_decode(spark, ranges), parts)

    def _judge(self, part: Registered) -> Any:
        return lambda rows, why: part.judge(rows, why, self._pins[part.part])

    def undecoded(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """See `Judges`."""
        from onceonly.spark import few
        from onceonly.spark.read import read_ranges

        if (table := self._few(ranges)) is not None:
            return few.frame(spark, table)
        return read_ranges(spark, java.options(self._kafka), ranges)

    def _to_decode(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """Undecoded, unless they are few: this process decodes their JSON, as fast as Spark would start workers."""
        from onceonly.spark import few

        table, decoders = self._few(ranges), self._json()
        if table is None or not decoders:
            return self.undecoded(spark, ranges)
        for decoder in decoders:
            table = decoder.decode_here(table)
        return few.frame(spark, table, {decoder.column: decoder.column_type for decoder in decoders})

    def _json(self) -> list[Any]:
        """How JSON is decoded, by part."""
        if plain := self._plain_json():
            return [plain]
        decoders = [part.json(self._pins[part.part]) for part in self._registered]
        return [decoder for decoder in decoders if decoder]

    def _plain_json(self) -> Any:
        """The same of JSON without a registry."""
        from onceonly.spark.json_decoding import JsonDecoder

        text = self._schema()
        if self._registered or self._config.format != "json" or text is None:
            return None
        return JsonDecoder(self._columns(text), "value")

    def _few(self, ranges: tuple[TopicRange, ...]) -> pa.Table | None:
        """Read once, although they are looked at for their schemas before they are decoded."""
        from onceonly.spark import few

        if not few.expected():
            return None
        if self._held is None or self._held[0] != ranges:
            self._held = ranges, None
            with suppress(NotCommitted):  # nothing is lost by it: Spark reads them, or says why it cannot
                self._held = ranges, few.table(self._records(ranges))
        return self._held[1]

    def _records(self, ranges: tuple[TopicRange, ...]) -> Iterator[Any]:
        for range_ in ranges:
            yield from self._of(range_.topic)._topic.records(dict(range_.partitions))

    # --- schemas of a registry

    @cached_property
    def _registered(self) -> list[Registered]:
        self._check_schema()
        return registered.parts_of(self._config, self._registry, self._schema())

    def schemas(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Mapping[str, Any]:
        return {part.part: part.pins(self.undecoded(spark, ranges)) for part in self._registered}

    def pinned_to(self, schemas: Mapping[str, Any]) -> KafkaReader:
        pinned = KafkaReader(self._config, self._kafka, self._root, self._registry, schemas)
        pinned._held = self._held
        return pinned

    # --- what went wrong

    def diagnose(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> Exception:
        """SourceLost if the log shows it, a BadRecord if one is found, otherwise `error` itself."""
        from onceonly.spark.decode import looks_malformed
        from onceonly.spark.read import looks_lost, looks_untimely

        if not (looks_lost(error) or looks_malformed(error) or looks_untimely(error)):
            return error
        try:
            self.verify(ranges)
            found = self._bad_time(ranges) if looks_untimely(error) else self._bad_record(error, spark, ranges)
            return found or error
        except SourceLost as lost:
            return lost
        except Exception:  # the original error says more than a failure to explain it
            return error

    def _bad_record(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> BadRecord | None:
        from onceonly.spark.decode import find_malformed

        bad = find_malformed(error)
        if bad is None:
            return None
        if self._registered:
            return self._bad_part(bad, self.undecoded(spark, ranges))
        return BadRecord(
            f"topic '{bad.topic}' partition {bad.partition} offset {bad.offset}: the record cannot be decoded as "
            f"{self._config.format} with '{self._config.schema}'.",
            bad.why,
            "Correct the schema file, or read the topic with format='raw' and decode it in the transform. "
            "Nothing was published.",
            code="record-undecodable",
        )

    def _bad_time(self, ranges: tuple[TopicRange, ...]) -> BadRecord | None:
        """Spark cannot read a record with such a time, so it becomes no dead letter either."""
        from onceonly.spark import few

        bad = next((each for each in self._records(ranges) if not few.is_time(each.timestamp()[1])), None)
        if bad is None:
            return None
        topic, partition, offset = bad.topic(), bad.partition(), bad.offset()
        return BadRecord(
            f"topic '{topic}' partition {partition} offset {offset}: Spark cannot read the record.",
            f"Its Kafka timestamp is {bad.timestamp()[1]} ms since 1970, and a timestamp of Spark holds at most "
            f"{few.MOST_MILLIS}. A producer that takes nanoseconds for milliseconds writes such times.",
            "Correct the producer. To leave the record out: abort the checkpoint, run the pipeline up to it "
            f"(max_records), then onceonly skip PIPELINE --topic {topic} --partition {partition} --to {offset + 1} "
            "--reason …, which leaves out all unread records before that offset. Nothing was published.",
            code="record-time-unreadable",
        )

    def _bad_part(self, bad: Malformed, rows: Any) -> BadRecord:
        part = next(each for each in self._registered if each.part == bad.part)
        found = rows.where(f"topic = '{bad.topic}' AND partition = {bad.partition} AND offset = {bad.offset}").first()
        more = part.exactly(bytes(found[bad.part]), self._pins[bad.part]) if found else None
        return BadRecord(
            f"topic '{bad.topic}' partition {bad.partition} offset {bad.offset}: the {bad.part} cannot be decoded as "
            f"{part.format} with the schema registry {part.registry.connection.describe()}.",
            " ".join(filter(None, [bad.why, more])),
            "Give another reader's schema, or read it raw and decode it in the transform. Nothing was published.",
            code="record-undecodable",
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
        if text is not None and self._config.format == "json":
            self._columns(text)
        if text is not None and self._config.format == "avro" and (error := avro.flaw(text)):
            raise self._bad_schema(f"It is not a usable Avro schema: {error}.") from error

    def _columns(self, text: str) -> Any:
        """Of JSON."""
        try:
            return columns(text)
        except BadColumns as error:
            raise self._bad_schema(f"It does not name columns of JSON: {error}.") from error

    def _bad_schema(self, why: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"schema '{self._config.schema}' of topic '{self._config.topic}' cannot be used.",
            why,
            f"Correct the file, or KafkaSource(schema=…), which is relative to {self._root}. Nothing was written.",
            code="schema-unusable",
        )


def _ask_until_decided(ask: Callable[[], dict[int, FirstRecord]]) -> dict[int, FirstRecord]:
    """Ask again for a moment if an open transaction hides records: its markers may be about to be written."""
    limit = monotonic() + MARKERS
    while True:
        answer = ask()
        if monotonic() > limit or not any(record.held for record in answer.values()):
            return answer
        sleep(MARKERS / 10)


def _is_ahead(record: FirstRecord, latest: datetime) -> bool:
    return record.at is not None and record.at > latest


def _millis(time: datetime) -> int:
    """Milliseconds since 1970, rounded up: Kafka's first millisecond at or after `time`."""
    return max(0, -((EPOCH - time) // MILLISECOND))

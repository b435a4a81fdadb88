"""Kafka topics as sources of a pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from onceonly.pipeline.checks import TOPIC, check_connection, invalid
from onceonly.pipeline.source_config import EARLIEST, check_grace, is_offset, place

FORMATS = ("raw", "json", "avro", "protobuf")
FAIL, DEAD_LETTER, DROP = "fail", "dead_letter", "drop"
# Fields that are stored only if they differ from these.
LATER = {
    **{"grace": 0.0, "registry": None, "subject": None, "key_format": "raw", "message": None, "start": EARLIEST},
    **{"topic": "", "topic_pattern": None, "on_bad_record": FAIL},
}
OWN = "__"  # begins the names of Kafka's own topics


@dataclass(frozen=True)
class KafkaSource:
    """A topic to read, or all topics whose names match a pattern.

    Args:
        topic: its name; or instead
        topic_pattern: a regular expression of whole names ('orders-.*'). The topics that match are one cut and one
            DataFrame. One that appears later is read from its earliest record on.
        format: 'raw': `value` stays bytes; 'json' and 'avro': it becomes a struct, decoded by `schema`.
        schema: file with the record's schema, relative to the project: Avro (.avsc), or Spark DDL (.ddl) for JSON.
        registry: id of the Airflow connection of a schema registry, whose schema ids the values begin with; they are
            decoded into `schema`, else into the latest version of `subject` (docs/schema-registry.md).
        subject: the subject of the values in the registry; by default '<topic>-value'.
        key_format: unless 'raw', keys begin with schema ids, too, and become the latest version of '<topic>-key'.
        message: the full name of the Protobuf message of the values; by default the first one of the subject's schema.
        max_records: chained mode only: the maximum number of offsets in one checkpoint.
        start: chained mode only: where the first checkpoint begins: 'earliest', 'latest', a time (a datetime with a
            zone, or its ISO text), or an offset for each partition; partitions that are not named begin at 'earliest'.
            Later ones begin where the last one ended, whatever `start` says then.
        grace: interval mode only: seconds after its end for which an interval waits for late records before it is
            pinned. Records that come later are read by the next interval.
        on_bad_record: what happens to a record whose key or value cannot be decoded: 'fail' publishes nothing,
            'dead_letter' sends it to `Pipeline(dead_letters=…)` as it was read, 'drop' leaves it out and counts it.
        bootstrap: broker addresses; by default ONCEONLY_KAFKA_BOOTSTRAP or the embedded broker.
        connection: id of the Airflow connection with addresses and credentials (docs/connections.md), instead of
            `bootstrap`.
    """

    topic: str = ""
    format: Literal["raw", "json", "avro", "protobuf"] = "raw"
    schema: str | None = None
    max_records: int | None = None
    bootstrap: str | None = None
    connection: str | None = None
    grace: float = 0.0
    start: str | Mapping[str, int] = EARLIEST
    registry: str | None = None
    subject: str | None = None
    key_format: Literal["raw", "avro", "json", "protobuf"] = "raw"
    message: str | None = None
    topic_pattern: str | None = None
    on_bad_record: Literal["fail", "dead_letter", "drop"] = "fail"

    kind: ClassVar[str] = "kafka"

    def __post_init__(self) -> None:
        check_connection(self.connection, self.bootstrap)
        object.__setattr__(self, "start", _check_start(self.start))
        check_grace(self.grace)
        if self.topic_pattern is not None:
            self._check_pattern(self.topic_pattern)
        elif not TOPIC.fullmatch(self.topic):
            raise invalid(
                f"topic '{self.topic}'", "is not a Kafka topic name", "Use letters, digits, '.', '_' and '-'."
            )
        if self.format not in FORMATS:
            raise invalid(f"format '{self.format}'", "is not known", "Use 'raw', 'json', 'avro' or 'protobuf'.")
        self._check_registry()
        self._check_bad_records()
        suffix = {"json": ".ddl", "avro": ".avsc"}.get(self.format)
        by_latest = self.registry is not None and self.format != "raw" and self.schema is None
        has_right_schema = (suffix is None) == (self.schema is None) and str(self.schema).endswith(suffix or "")
        if not has_right_schema and not by_latest:
            needs = f"needs a schema file ending in {suffix}" if suffix else "takes no schema"
            raise invalid(f"format '{self.format}' with schema {self.schema!r}", needs, "Set KafkaSource(schema=…).")
        if self.max_records is not None and self.max_records < 1:
            raise invalid("max_records", f"is {self.max_records}", "Use a number above 0, or remove it.")

    @property
    def begins(self) -> str | Mapping[str, int]:
        return self.start

    @property
    def most(self) -> int | None:
        return self.max_records

    @property
    def input_name(self) -> str:
        return self.topic_pattern or self.topic

    def reads(self, topic: str) -> bool:
        """Return whether a topic of that name is one of its topics. Kafka's own match no pattern."""
        if self.topic_pattern is None:
            return topic == self.topic
        return not topic.startswith(OWN) and re.fullmatch(self.topic_pattern, topic) is not None

    def of(self, topic: str) -> KafkaSource:
        """Return the same source for one of its topics."""
        return replace(self, topic=topic, topic_pattern=None)

    def _check_pattern(self, pattern: str) -> None:
        what = f"topic_pattern '{pattern}'"
        try:
            re.compile(pattern)
        except re.error as error:
            raise invalid(what, f"is not a regular expression: {error}", "Correct it.") from None
        if self.topic:
            raise invalid(what, f"is set together with topic '{self.topic}'", "Remove one of them.")
        if not pattern or TOPIC.fullmatch(pattern):
            raise invalid(what, "is the name of one topic", "Set topic, or a pattern as in 'orders-.*'.")
        if isinstance(self.start, Mapping):
            raise invalid(what, "has many topics, and start gives offsets of one", "Use a word or a time.")
        if self.registry and (self.key_format != "raw" or not (self.subject or self.schema)):
            why = "has many topics, whose records have no single subject"
            raise invalid(what, why, "Set subject or schema for the values, and leave the keys raw.")

    def _check_bad_records(self) -> None:
        if self.on_bad_record not in (FAIL, DEAD_LETTER, DROP):
            todo = "Use 'fail', 'dead_letter' or 'drop'."
            raise invalid(f"on_bad_record '{self.on_bad_record}'", "is not known", todo)
        if self.on_bad_record != FAIL and self.format == "raw" and self.key_format == "raw":
            why = "has nothing to decide: raw keys and values are not decoded, so none is bad"
            raise invalid(f"on_bad_record '{self.on_bad_record}'", why, "Remove it, or set a format.")

    def _check_registry(self) -> None:
        if self.registry is None:
            if self.format == "protobuf":
                raise invalid("format 'protobuf'", "is read with a schema registry", "Set KafkaSource(registry=…).")
            for name in ("subject", "key_format", "message"):
                if (value := getattr(self, name)) != LATER[name]:
                    raise invalid(f"{name} '{value}'", "needs a registry", "Set KafkaSource(registry=…).")
            return
        check_connection(self.registry, None)
        if self.key_format not in FORMATS:
            raise invalid(f"key_format '{self.key_format}'", "is not known", "Use 'raw', 'json', 'avro' or 'protobuf'.")
        if self.message is not None and self.format != "protobuf":
            raise invalid(f"message '{self.message}'", "is of Protobuf", "Set format='protobuf', or remove it.")
        if self.format == "raw" and (self.key_format == "raw" or self.subject is not None):
            raise invalid("format 'raw'", "has no schemas in a registry", "Use another format, or no registry.")
        if self.subject is not None and self.schema is not None:
            why = "is not used: the reader's schema is in a file"
            raise invalid(f"subject '{self.subject}'", why, "Remove one of subject and schema.")


def bad_records(source: Any) -> str:
    """Return what happens to records of that source which cannot be decoded: FAIL, DEAD_LETTER or DROP."""
    return str(getattr(source, "on_bad_record", FAIL))


def source_json(source: KafkaSource) -> dict[str, Any]:
    """Return the source as JSON, without the fields that have their usual value."""
    data = {"kind": source.kind, **asdict(source)}
    return {name: value for name, value in data.items() if name not in LATER or value != LATER[name]}


def _check_start(start: Any) -> str | dict[str, int]:
    """Return the start as plain data: a word, the ISO text of a time, or offsets by partition.

    Raises:
        InvalidPipeline: it is none of these.
    """
    if isinstance(start, Mapping):
        return _check_offsets(start)
    start_place = place(start)
    if start_place is None:
        todo = "Use 'earliest', 'latest', a time with its zone, or {partition: offset}."
        raise invalid(f"start {start!r}", "is not a place in a topic", todo)
    return start_place


def _check_offsets(start: Mapping[Any, Any]) -> dict[str, int]:
    offsets = {str(partition): offset for partition, offset in start.items()}
    if not offsets or not all(partition.isdecimal() and is_offset(offset) for partition, offset in offsets.items()):
        raise invalid(
            f"start {dict(start)!r}", "does not give an offset for each partition", "Write {0: 1200, 1: 800}."
        )
    return offsets

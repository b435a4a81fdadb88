"""The sources of a pipeline, as users declare them: Kafka topics, Delta tables and folders of files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self
from urllib.parse import urlsplit

from onceonly.pipeline import catalogs
from onceonly.pipeline.checks import TOPIC, check_connection, omit_defaults, option_error
from onceonly.pipeline.places import EARLIEST as EARLIEST
from onceonly.pipeline.places import LATEST as LATEST
from onceonly.pipeline.places import OF_GROUP as OF_GROUP
from onceonly.pipeline.places import check_end, check_stored_start, check_topic_start

FORMATS = ("raw", "json", "avro", "protobuf")
FAIL, DEAD_LETTER, DROP = "fail", "dead_letter", "drop"
# Fields that are stored only if they differ from these.
KAFKA_UNSTORED_DEFAULTS: Mapping[str, Any] = {
    **{"grace": 0.0, "registry": None, "subject": None, "key_format": "raw", "message": None, "start": EARLIEST},
    "end": None,
    **{"topic": "", "topic_pattern": None, "on_bad_record": FAIL},
}
OWN = "__"  # begins the names of Kafka's own topics


class SourceConfig(Protocol):
    """What users declare as a source: a frozen dataclass, stored with every checkpoint."""

    kind: ClassVar[str]  # in stored definitions

    @property
    def topic(self) -> str:
        """Its name in messages and in the state table; unique in a pipeline. Empty if it has a pattern."""

    @property
    def topic_pattern(self) -> str | None:
        """In place of `topic`: a regular expression of whole names; each topic that matches is read as one."""

    @property
    def input_name(self) -> str:
        """Its name in its pipeline and in the transform's input: the topic, the pattern, or the name of the table."""

    def reads(self, topic: str) -> bool:
        """Return whether a topic, or table, of that name is one of those that it reads."""

    def for_topic(self, topic: str) -> SourceConfig:
        """Return the same source for one of its topics."""

    @property
    def begins(self) -> str | Mapping[str, int]:
        """Where the first checkpoint begins: 'earliest', 'latest', the ISO text of a time, or offsets by partition."""

    @property
    def ends(self) -> str | Mapping[str, int] | None:
        """Where reading ends for good: the ISO text of a time, or offsets by partition; None: it does not."""

    @property
    def most(self) -> int | None:
        """The maximum number of offsets in one checkpoint."""

    @property
    def grace(self) -> float:
        """Seconds for which an interval waits for what comes late."""


def check_grace(grace: float) -> None:
    """Raise InvalidPipeline unless it is a time to wait, of at most a leap year."""
    if not 0 <= grace <= 3600 * 24 * 366:
        raise option_error("grace", f"is {grace}", "Give seconds, from 0 to a year.", code="option-invalid")


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
            zone, or its ISO text), 'group:NAME' (the offsets that this consumer group has committed, in all
            partitions), or an offset for each partition; partitions that are not named begin at 'earliest'.
            Later ones begin where the last one ended, whatever `start` says then.
        end: chained mode only: where reading ends for good: a time, before each partition's first record of that time
            or later; or the first offset that is not read, for every partition. Nothing is planned once it is reached.
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
    end: str | Mapping[str, int] | None = None

    kind: ClassVar[str] = "kafka"
    unstored_defaults: ClassVar[Mapping[str, Any]] = KAFKA_UNSTORED_DEFAULTS

    def __post_init__(self) -> None:
        check_connection(self.connection, self.bootstrap)
        object.__setattr__(self, "start", check_topic_start(self.start))
        object.__setattr__(self, "end", check_end(self.end, self.start))
        check_grace(self.grace)
        if self.topic_pattern is not None:
            self._check_pattern(self.topic_pattern)
        elif not TOPIC.fullmatch(self.topic):
            raise option_error(
                f"topic '{self.topic}'",
                "is not a Kafka topic name",
                "Use letters, digits, '.', '_' and '-'.",
                code="option-invalid",
            )
        if self.format not in FORMATS:
            raise option_error(
                f"format '{self.format}'",
                "is not known",
                "Use 'raw', 'json', 'avro' or 'protobuf'.",
                code="option-invalid",
            )
        self._check_registry()
        self._check_bad_records()
        suffix = {"json": ".ddl", "avro": ".avsc"}.get(self.format)
        by_latest = self.registry is not None and self.format != "raw" and self.schema is None
        has_right_schema = (suffix is None) == (self.schema is None) and str(self.schema).endswith(suffix or "")
        if not has_right_schema and not by_latest:
            needs = f"needs a schema file ending in {suffix}" if suffix else "takes no schema"
            raise option_error(
                f"format '{self.format}' with schema {self.schema!r}",
                needs,
                "Set KafkaSource(schema=…).",
                code="option-invalid",
            )
        check_limit("max_records", self.max_records)

    @property
    def begins(self) -> str | Mapping[str, int]:
        return self.start

    @property
    def ends(self) -> str | Mapping[str, int] | None:
        return self.end

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

    def for_topic(self, topic: str) -> KafkaSource:
        """Return the same source for one of its topics."""
        return replace(self, topic=topic, topic_pattern=None)

    def _check_pattern(self, pattern: str) -> None:
        what = f"topic_pattern '{pattern}'"
        try:
            re.compile(pattern)
        except re.error as error:
            why = f"is not a regular expression: {error}"
            raise option_error(what, why, "Correct it.", code="option-invalid") from None
        if self.topic:
            raise option_error(
                what, f"is set together with topic '{self.topic}'", "Remove one of them.", code="options-conflict"
            )
        if not pattern or TOPIC.fullmatch(pattern):
            raise option_error(
                what, "is the name of one topic", "Set topic, or a pattern as in 'orders-.*'.", code="option-invalid"
            )
        for option in ("start", "end"):
            if isinstance(getattr(self, option), Mapping):
                why = f"has many topics, and {option} gives offsets of one"
                raise option_error(what, why, "Use a time.", code="options-conflict")
        if self.registry and (self.key_format != "raw" or not (self.subject or self.schema)):
            why = "has many topics, whose records have no single subject"
            raise option_error(
                what, why, "Set subject or schema for the values, and leave the keys raw.", code="options-conflict"
            )

    def _check_bad_records(self) -> None:
        if self.on_bad_record not in (FAIL, DEAD_LETTER, DROP):
            todo = "Use 'fail', 'dead_letter' or 'drop'."
            raise option_error(f"on_bad_record '{self.on_bad_record}'", "is not known", todo, code="option-invalid")
        if self.on_bad_record != FAIL and self.format == "raw" and self.key_format == "raw":
            why = "has nothing to decide: raw keys and values are not decoded, so none is bad"
            raise option_error(
                f"on_bad_record '{self.on_bad_record}'", why, "Remove it, or set a format.", code="options-conflict"
            )

    def _check_registry(self) -> None:
        if self.registry is None:
            if self.format == "protobuf":
                raise option_error(
                    "format 'protobuf'",
                    "is read with a schema registry",
                    "Set KafkaSource(registry=…).",
                    code="option-missing",
                )
            for name in ("subject", "key_format", "message"):
                if (value := getattr(self, name)) != KAFKA_UNSTORED_DEFAULTS[name]:
                    raise option_error(
                        f"{name} '{value}'", "needs a registry", "Set KafkaSource(registry=…).", code="option-missing"
                    )
            return
        check_connection(self.registry, None)
        if self.key_format not in FORMATS:
            raise option_error(
                f"key_format '{self.key_format}'",
                "is not known",
                "Use 'raw', 'json', 'avro' or 'protobuf'.",
                code="option-invalid",
            )
        if self.message is not None and self.format != "protobuf":
            raise option_error(
                f"message '{self.message}'",
                "is of Protobuf",
                "Set format='protobuf', or remove it.",
                code="options-conflict",
            )
        if self.format == "raw" and (self.key_format == "raw" or self.subject is not None):
            raise option_error(
                "format 'raw'",
                "has no schemas in a registry",
                "Use another format, or no registry.",
                code="options-conflict",
            )
        if self.subject is not None and self.schema is not None:
            why, todo = "is not used: the reader's schema is in a file", "Remove one of subject and schema."
            raise option_error(f"subject '{self.subject}'", why, todo, code="options-conflict")


def bad_records(source: Any) -> str:
    """Return what happens to records of that source which cannot be decoded: FAIL, DEAD_LETTER or DROP."""
    return str(getattr(source, "on_bad_record", FAIL))


def source_json(source: KafkaSource | DeltaSource | FileSource) -> dict[str, Any]:
    """Return the source as JSON, without fields that have one of its unstored defaults."""
    return omit_defaults({"kind": source.kind, **asdict(source)}, source.unstored_defaults)


@dataclass(frozen=True)
class Stored:
    """What tables and folders have in common. The place is a path; the name need not be one."""

    path: str
    name: str | None = None

    topic_pattern: ClassVar[None] = None
    ends: ClassVar[None] = None
    unstored_defaults: ClassVar[Mapping[str, Any]] = {}  # fields that are stored only if they differ from these

    def __post_init__(self) -> None:
        check_source_name(self.path, self.name)

    @property
    def topic(self) -> str:
        return self.name or last_part(self.path)

    @property
    def place(self) -> str:
        """What is read, for people, as the targets of sinks are."""
        return f"'{self.path}'"

    @property
    def asset_uri(self) -> str:
        return folder_uri(self.path)

    @property
    def input_name(self) -> str:
        return self.topic

    def reads(self, topic: str) -> bool:
        return topic == self.topic

    def for_topic(self, topic: str) -> Self:
        return self


@dataclass(frozen=True)
class DeltaSource(Stored):
    """A Delta table to read, version after version.

    Args:
        path: folder or URI; a relative path is below ONCEONLY_HOME.
        name: what it is called in the transform's input and in messages; by default the last part of the path.
        changes: read the table's Change Data Feed, with inserted, updated and deleted rows, and the columns
            _change_type, _commit_version and _commit_timestamp. Without it, the table may only be appended to.
        ignore_deletes: pass over versions whose operation is DELETE: rows that others take out are no news, and what
            was read before stays as it is downstream. All else that removes rows is refused, as without it.
        start: chained mode only: where the first checkpoint begins: 'earliest', with all rows that the table has;
            'latest'; a version, which is the first one to be read; or a time (a datetime with a zone, or its ISO
            text), whose first commit is the first one. Later checkpoints begin where the last one ended.
        max_versions: chained mode only: the maximum number of versions in one checkpoint.
        grace: interval mode only: seconds after its end for which an interval waits for late commits before it is
            pinned.
        table: instead of path: the name of a table in a Spark catalog, 'catalog.schema.table' or 'schema.table'.
            Each plan looks it up (docs/catalogs.md).
        table_id: set by the plan, with path: the id of the table that it found.
    """

    path: str = ""
    changes: bool = False
    start: str | int = EARLIEST
    max_versions: int | None = None
    grace: float = 0.0
    table: str | None = None
    table_id: str | None = None
    ignore_deletes: bool = False

    kind: ClassVar[str] = "delta"
    unstored_defaults: ClassVar[Mapping[str, Any]] = {**catalogs.UNSTORED_DEFAULTS, "ignore_deletes": False}
    word: ClassVar[str] = "table"
    counts: ClassVar[str] = "max_versions"

    def __post_init__(self) -> None:
        catalogs.check_table_name("a DeltaSource", self.path, self.table, self.table_id)
        if self.table:
            check_source_name(self.table, self.topic)
        else:
            check_source_name(self.path, self.name or None)
        check_grace(self.grace)
        check_limit(self.counts, self.most)
        if self.changes and self.ignore_deletes:
            why = "has the deletes as changes"
            raise option_error("changes", why, "Remove one of changes and ignore_deletes.", code="options-conflict")
        object.__setattr__(self, "start", check_stored_start(self.start, self.word, "version"))

    @property
    def topic(self) -> str:
        if self.name:
            return self.name
        if self.table:
            return self.table.rpartition(".")[2]
        return last_part(self.path)

    @property
    def place(self) -> str:
        return super().place if self.path else f"table '{self.table}'"

    @property
    def asset_uri(self) -> str:
        return catalogs.table_uri(self.table) if self.table else super().asset_uri

    @property
    def begins(self) -> str | Mapping[str, int]:
        return {"0": self.start} if isinstance(self.start, int) else self.start

    @property
    def most(self) -> int | None:
        return self.max_versions


@dataclass(frozen=True)
class FileSource(Stored):
    """A folder to read, into which a FileSink publishes: decision after decision.

    Args:
        path: folder on a local or mounted file system, hdfs://namenode:8020/… or s3://bucket/…; a relative path is
            below ONCEONLY_HOME.
        name: what it is called in the transform's input and in messages; by default the last part of the path.
        start: chained mode only: where the first checkpoint begins: 'earliest', with all files that are published;
            'latest'; a decision, which is the first one to be read; or a time (a datetime with a zone, or its ISO
            text), whose first decision is the first one. Later checkpoints begin where the last one ended.
        max_decisions: chained mode only: the maximum number of decisions in one checkpoint.
        grace: interval mode only: seconds after its end for which an interval waits for late commits before it is
            pinned.
    """

    start: str | int = EARLIEST
    max_decisions: int | None = None
    grace: float = 0.0

    kind: ClassVar[str] = "files"
    word: ClassVar[str] = "folder"
    counts: ClassVar[str] = "max_decisions"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_grace(self.grace)
        check_limit(self.counts, self.most)
        object.__setattr__(self, "start", check_stored_start(self.start, self.word, "decision"))

    @property
    def begins(self) -> str | Mapping[str, int]:
        return {"0": self.start} if isinstance(self.start, int) else self.start

    @property
    def most(self) -> int | None:
        return self.max_decisions


def folder_uri(path: str) -> str:
    """Return the URI of an asset: an absolute path becomes file://…, a path below ONCEONLY_HOME onceonly://…."""
    if urlsplit(path).scheme:
        return path
    if path.startswith("/"):
        return f"file://{path}"
    return f"onceonly://{path}"


def last_part(path: str) -> str:
    """Return the last part of a path or URI."""
    return urlsplit(path).path.rstrip("/").rpartition("/")[2]


def check_source_name(path: str, name: str | None) -> None:
    """Check that the path is one, and that the name, or else its last part, can be a source's name.

    Raises:
        InvalidPipeline: that is not so.
    """
    if not isinstance(path, str) or not path or "\0" in path:
        raise option_error(f"path {path!r}", "is no place", "Give a folder or a URI.", code="option-invalid")
    if name is None:
        topic, what = last_part(path), f"the last part of '{path}'"
    else:
        topic, what = name, f"name '{name}'"
    if not TOPIC.fullmatch(topic):
        raise option_error(
            what, "cannot be a source's name", "Set name=… to letters, digits, '.', '_' and '-'.", code="option-invalid"
        )


def check_limit(name: str, most: int | None) -> None:
    if most is not None and most < 1:
        raise option_error(name, f"is {most}", "Use a number above 0, or remove it.", code="option-invalid")

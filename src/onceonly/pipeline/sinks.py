"""The sinks of a pipeline, as users declare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from onceonly.pipeline import catalogs, dead_letters
from onceonly.pipeline.checks import PREFIX, TOPIC, check_connection, option_error, parse_condition
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.pipeline.sources import folder_uri

PARTITIONS = "partitions"
# Begins the error of a Spark job that a transform fails because a record says nothing that can be merged.
REFUSED_RECORD = "onceonly: this record is refused: "
SUFFIXES = {"avro": ".avsc", "json": ".json", "protobuf": ".desc"}  # of schema files


@dataclass(frozen=True)
class Merge:
    """Rows are changes: the newest row of each key is the one in the table, in whatever order changes arrive.

    Args:
        keys: columns that identify a row; never null. With the partition columns among them, only the partitions of
            the changes are searched.
        order_by: columns that order the changes of a key, such as a log position; never null. They stay in the table.
            A change that is not above the row in the table has no effect.
        deletes: a boolean column, never null, that is true in a row that says its key was deleted. Such a row stays in
            the table and keeps older changes out, so readers filter on this column. By default nothing is deleted.
    """

    keys: Sequence[str]
    order_by: Sequence[str]
    deletes: str | None = None

    def __post_init__(self) -> None:
        for name in ("keys", "order_by"):
            columns = getattr(self, name)
            if isinstance(columns, str) or not columns:
                raise option_error(
                    f"Merge({name}={columns!r})",
                    "names no columns",
                    "Give a list of column names.",
                    code="option-missing",
                )
            object.__setattr__(self, name, tuple(columns))
        columns = list_merge_columns(self)
        if len(set(columns)) != len(columns):
            raise option_error(
                f"Merge with {list(columns)}",
                "names a column twice",
                "Name each one once.",
                code="names-not-distinct",
            )


def list_merge_columns(merge: Merge) -> tuple[str, ...]:
    """Return all columns that it names."""
    deletes = [] if merge.deletes is None else [merge.deletes]
    return (*merge.keys, *merge.order_by, *deletes)


@dataclass(frozen=True)
class DeltaSink(SinkConfig):
    """A Delta table to append to, or to merge changes into.

    Args:
        path: folder or URI; a relative path is below ONCEONLY_HOME.
        partition_by: used when the table is created; must match an existing table.
        add_columns: add columns that the table does not have, in the commit that publishes their first rows.
        widen: widen columns whose values became wider (int to bigint, float to double …), in the commit that publishes
            the first such rows. This goes through Spark, in a table that allows it (delta.enableTypeWidening).
        replace: the rows that each checkpoint replaces, in one commit, no matter who wrote them. 'partitions': all rows
            of the partitions that the new rows are in. Or a condition on partition columns that all new rows match, as
            in [("country", "=", "us"), ("day", ">=", "2013-01-01")]. By default nothing is replaced.
        merge: rows are changes, of which the table keeps the newest of each key. By default rows are appended.
        checkpoint_column: a text column in which each row gets the name of the transaction that has published it. By it
            the rows of one checkpoint are found wherever they lie, also after OPTIMIZE, when the interval is processed
            again or the pipeline is rewound. The table needs the column, or `add_columns`.
        table: instead of path: the name of an existing table in a Spark catalog, 'catalog.schema.table' or
            'schema.table'. Each plan looks it up (docs/catalogs.md).
        table_id: set by the plan, with path: the id of the table that it found.
    """

    path: str = ""
    partition_by: Sequence[str] = ()
    add_columns: bool = False
    widen: bool = False
    replace: Literal["partitions"] | Sequence[tuple[str, str, Any]] | None = None
    merge: Merge | None = None
    checkpoint_column: str | None = None
    table: str | None = None
    table_id: str | None = None

    kind = "delta"
    unstored_defaults: ClassVar[Mapping[str, Any]] = {**catalogs.UNSTORED_DEFAULTS, "checkpoint_column": None}
    writer = "onceonly.sinks.delta.sink:DeltaWriter.make"
    inspectable = True

    def __post_init__(self) -> None:
        super().__post_init__()
        catalogs.check_table_name(f"sink '{self.name}'", self.path, self.table, self.table_id)
        check_folder(self, self.path or self.table or "")
        if self.replace is not None and self.replace != PARTITIONS:
            object.__setattr__(self, "replace", tuple(parse_condition(self.name, part) for part in self.replace))
        self._check_replace()
        self._check_merge()
        self._check_checkpoint_column()

    def _check_checkpoint_column(self) -> None:
        column = self.checkpoint_column
        if column is None:
            return
        if not isinstance(column, str) or not column:
            raise option_error(
                f"sink '{self.name}'",
                f"has checkpoint_column={column!r}",
                "Set it to the name of a column.",
                code="option-invalid",
            )
        if self.merge:
            raise option_error(
                f"sink '{self.name}'",
                "has checkpoint_column and merge: what merged rows have replaced no longer exists, so they stay",
                "Remove one of the two.",
                code="options-conflict",
            )
        if column in self.partition_by:
            raise option_error(
                f"sink '{self.name}'",
                f"is partitioned by its checkpoint_column '{column}': each checkpoint would have partitions of its own",
                "Partition it by another column.",
                code="options-conflict",
            )

    def _check_merge(self) -> None:
        if isinstance(self.merge, Mapping):  # read from a stored definition
            object.__setattr__(self, "merge", Merge(**self.merge))
        if self.merge and (self.replace is not None or self.widen):
            other = "widen" if self.widen else "replace"
            raise option_error(
                f"sink '{self.name}'", f"has merge and {other}", "Remove one of the two.", code="options-conflict"
            )

    def _check_replace(self) -> None:
        if self.replace is None:
            return
        if not self.replace or not self.partition_by:
            raise option_error(
                f"sink '{self.name}'",
                "has nothing to replace",
                "Set partition_by, and a condition on it.",
                code="option-missing",
            )
        if self.replace == PARTITIONS:
            return
        other_columns = {part[0] for part in self.replace} - set(self.partition_by)
        if other_columns:
            raise option_error(
                f"sink '{self.name}'",
                f"replaces by {sorted(other_columns)}, and the table is partitioned by {list(self.partition_by)}",
                "Use only partition columns: only whole files can be replaced.",
                code="options-conflict",
            )

    def targets(self) -> tuple[str, ...]:
        target = f"'{self.path}'" if self.path else f"table '{self.table}'"
        return (target,)

    def asset_uris(self) -> tuple[str, ...]:
        uri = catalogs.table_uri(self.table) if self.table else folder_uri(self.path)
        return (uri,)

    def merges_changes(self) -> bool:
        return self.merge is not None

    def clears_when_empty(self) -> bool:
        return self.replace not in (None, PARTITIONS)

    def check_dead_letters(self) -> None:
        if self.merge or self.replace is not None:
            why = "it would remove earlier ones" if self.replace is not None else "it would merge them"
            raise dead_letters.dead_letters_error(self.name, why, "Append to a table of their own.")
        dead_letters.check_partitions(self.name, self.partition_by)


@dataclass(frozen=True, kw_only=True)
class KafkaSink(SinkConfig):
    """Topics to write to, in transactions that the commit ends.

    The rows' columns: `value`, and optionally `key`, `headers`, `timestamp`, `partition`, `topic` (docs/kafka.md).

    Args:
        topic: the topic of every row. Without it, the column `topic` has to contain one of `topics`.
        format: how `value` is written: as it is (binary or text), as JSON, or as Avro by `schema`; with a registry also
            as Protobuf.
        schema: file with the schema, relative to the project: Avro (.avsc); with a registry also JSON Schema (.json),
            or Protobuf as `protoc --descriptor_set_out --include_imports` makes it (.desc).
        guarantee: 'at-least-once' writes at commit without transactions. 'none' writes while staging, and the rows
            cannot be taken back.
        mode: 'staged' writes while staging, and commits in milliseconds. 'late' writes at commit, in the order of the
            decisions. By default 'late' for interval pipelines (they may run in parallel), otherwise 'staged'.
        unordered: allows 'staged' in an interval pipeline: rows of later intervals may come first.
        transaction_timeout: seconds after which the broker aborts a transaction; its rows are then written again.
        commit_within: the maximum number of seconds until the commit; it must be below the time-out. By default one
            schedule interval of the DAG, at most 15 minutes.
        id_prefix: first part of every transactional id, for prefixed ACLs.
        ids: 'unique' gives each transaction its own id, which brokers delete after seven days. 'pool' reuses ids, for
            pipelines that run every minute: one per partition for each of `pool_size` attempts.
        pool_size: the maximum number of attempts whose outcome is not recorded. Allow for a long outage.
        bootstrap, connection: as in `KafkaSource`.
        registry: id of the Airflow connection of a schema registry: values begin with their schema's id.
        message: the full name of the Protobuf message of the values; by default the first one of the file.
        key_format, key_schema: the same for `key`, in the subject '<topic>-key'; unless 'raw', with a registry.
        subjects: of which subject the schema is a version: that of each topic ('<topic>-value'), of the record's full
            name, or of both ('<topic>-<record>').
        register: whether staging registers the schema; otherwise it has to be registered before.
    """

    topic: str | None = None
    topics: Sequence[str] = ()
    format: Literal["raw", "json", "avro", "protobuf"] = "raw"
    schema: str | None = None
    guarantee: Literal["exactly-once", "at-least-once", "none"] = "exactly-once"
    mode: Literal["staged", "late"] | None = None
    unordered: bool = False
    transaction_timeout: float = 900.0
    commit_within: float | None = None
    id_prefix: str = "onceonly"
    ids: Literal["unique", "pool"] = "unique"
    pool_size: int = 5
    bootstrap: str | None = None
    connection: str | None = None
    registry: str | None = None
    subjects: Literal["topic", "record", "topic-record"] = "topic"
    register: bool = False
    message: str | None = None
    key_format: Literal["raw", "json", "avro", "protobuf"] = "raw"
    key_schema: str | None = None

    kind = "kafka"
    unstored_defaults: ClassVar[Mapping[str, Any]] = {"message": None, "key_format": "raw", "key_schema": None}
    writer = "onceonly.sinks.kafka.sink:KafkaWriter.make"
    takes_records = True
    inspectable = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_connection(self.connection, self.bootstrap)
        if isinstance(self.topics, str):
            raise option_error(
                f"sink '{self.name}'", "topics is a string", "Use a list of topic names.", code="option-invalid"
            )
        object.__setattr__(self, "topics", tuple(self.topics))
        if (self.topic is None) == (not self.topics):
            raise option_error(
                f"sink '{self.name}'",
                "needs either a topic or topics",
                "Set KafkaSink(topic=…).",
                code="option-missing",
            )
        self._check_choices()
        for topic in self.written_topics():
            if not TOPIC.fullmatch(topic):
                raise option_error(
                    f"topic '{topic}'",
                    "is not a Kafka topic name",
                    "Use letters, digits, '.', '_' and '-'.",
                    code="option-invalid",
                )
        self._check_registry()
        self._check_schema("schema", self.format, self.schema)
        self._check_schema("key_schema", self.key_format, self.key_schema)
        self._check_transactions()

    def written_topics(self) -> tuple[str, ...]:
        return (self.topic,) if self.topic else tuple(self.topics)

    def targets(self) -> tuple[str, ...]:
        return tuple(f"topic '{topic}'" for topic in self.written_topics())

    def asset_uris(self) -> tuple[str, ...]:
        cluster = self.connection or (self.bootstrap or "default").split(",")[0]
        return tuple(f"kafka://{cluster}/{topic}" for topic in self.written_topics())

    def is_late(self, mode: str) -> bool:
        """Return whether its rows are only written at commit, in a pipeline of that mode."""
        if self.mode is None:
            return mode == "interval"
        return self.mode == "late"

    def check_mode(self, mode: str) -> None:
        if mode == "interval" and self.mode == "staged" and not self.unordered:
            raise option_error(
                f"sink '{self.name}'",
                "writes while staging, so intervals that run in parallel would be written in any order",
                "Use KafkaSink(mode='late'), or unordered=True if order does not matter.",
                code="options-conflict",
            )

    def check_gate(self, gate: Gate) -> None:
        if self.guarantee == "none":
            raise option_error(
                f"sink '{self.name}'",
                "has guarantee='none': its rows are visible before the gate has checked them",
                "Use another guarantee, or remove the gate.",
                code="options-conflict",
            )

    def check_dead_letters(self) -> None:
        """Check that a dead letter can be written: its value is the record's own, the rest goes into headers."""
        if self.format != "raw":
            raise dead_letters.dead_letters_error(
                self.name, f"it would write them as {self.format}", "Use format='raw'."
            )
        if self.topic is None:
            raise dead_letters.dead_letters_error(self.name, "it has several topics", "Set KafkaSink(topic=…).")
        if self.guarantee != "exactly-once":
            why = f"guarantee={self.guarantee!r} would leave those of checkpoints that were aborted, or repeat them"
            raise dead_letters.dead_letters_error(self.name, why, "Remove guarantee.")

    def check_commits(self, within: float, mode: str) -> None:
        """Check the time-out, unless `commit_within` was compared with it when the sink was created."""
        if self.commit_within or self.is_late(mode) or self.guarantee != "exactly-once":
            return
        if self.transaction_timeout < within:
            raise option_error(
                f"sink '{self.name}'",
                f"has transactions that time out after {self.transaction_timeout:g} s, and the commit may follow up to "
                f"{within:g} s later: one schedule interval, at most 15 minutes",
                "Raise transaction_timeout, set a shorter commit_within if the commit follows sooner, or use "
                "mode='late'.",
                code="transaction-timeout-too-short",
            )

    def slots(self) -> int | None:
        return self.pool_size if self.ids == "pool" else None

    def _check_transactions(self) -> None:
        if not 1 <= self.transaction_timeout <= 3600 * 24:
            raise option_error(
                "transaction_timeout",
                f"is {self.transaction_timeout}",
                "Give seconds, at least 1.",
                code="option-invalid",
            )
        if self.commit_within is not None and self.commit_within >= self.transaction_timeout:
            raise option_error(
                f"transaction_timeout of {self.transaction_timeout:g} s",
                f"is not longer than commit_within={self.commit_within:g}: transactions would end before their commit",
                "Raise transaction_timeout (up to the brokers' transaction.max.timeout.ms), or use mode='late'.",
                code="transaction-timeout-too-short",
            )
        if self.pool_size < 1:
            raise option_error("pool_size", f"is {self.pool_size}", "Use a number above 0.", code="option-invalid")
        if self.ids == "pool" and self.guarantee != "exactly-once":
            why = f"is for transactions, and guarantee={self.guarantee!r} has none"
            raise option_error("ids='pool'", why, "Remove it.", code="options-conflict")
        if not PREFIX.fullmatch(self.id_prefix):
            raise option_error(
                f"id_prefix '{self.id_prefix}'",
                "is not usable",
                "Use letters, digits, '.' and '_'.",
                code="option-invalid",
            )

    def _check_registry(self) -> None:
        needs_registry = self.format == "protobuf" or self.key_format != "raw"
        if self.registry is None:
            if self.register or self.subjects != "topic" or needs_registry:
                raise option_error(
                    f"sink '{self.name}'", "names no registry", "Set KafkaSink(registry=…).", code="option-missing"
                )
            return
        check_connection(self.registry, None)
        if self.format == self.key_format == "raw":
            why = "writes keys and values as they are, which have no schema in a registry"
            raise option_error(
                f"sink '{self.name}'", why, "Set format or key_format, or remove registry.", code="options-conflict"
            )
        if self.message is not None and self.format != "protobuf":
            raise option_error(
                f"message '{self.message}'",
                "is of Protobuf",
                "Set format='protobuf', or remove it.",
                code="options-conflict",
            )

    def _check_schema(self, field: str, format: str, path: str | None) -> None:
        """Check that `path` is the schema file that the format needs, by its ending."""
        suffix = SUFFIXES.get(format) if self.registry or format == "avro" else None
        if (suffix is None) != (path is None) or not str(path).endswith(suffix or ""):
            needs = f"needs a schema file ending in {suffix}" if suffix else "takes no schema"
            raise option_error(
                f"format '{format}' with {field} {path!r}", needs, f"Set KafkaSink({field}=…).", code="option-invalid"
            )

    def _check_choices(self) -> None:
        choices: dict[str, tuple[str | None, ...]] = {
            "format": ("raw", "json", "avro", "protobuf"),
            "key_format": ("raw", "json", "avro", "protobuf"),
            "guarantee": ("exactly-once", "at-least-once", "none"),
            "mode": ("staged", "late", None),
            "ids": ("unique", "pool"),
            "subjects": ("topic", "record", "topic-record"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                words = ", ".join(repr(word) for word in allowed if word)
                raise option_error(
                    f"{name} '{getattr(self, name)}'", "is not known", f"Use one of {words}.", code="option-invalid"
                )


@dataclass(frozen=True)
class FileSink(SinkConfig):
    """A folder to which each checkpoint adds files. Every file appears complete, and once.

    Args:
        path: folder on a local or mounted file system, hdfs://namenode:8020/… or s3://bucket/…; a relative path is
            below ONCEONLY_HOME.
        format: Parquet, JSON lines, CSV with a header, or Avro.
        partition_by: columns that become folders, as in `day=2013-01-01/`.
    """

    path: str
    format: Literal["parquet", "json", "csv", "avro"] = "parquet"
    partition_by: Sequence[str] = ()

    kind = "files"
    writer = "onceonly.sinks.files.sink:FileWriter.make"
    inspectable = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_folder(self, self.path)
        if self.format not in ("parquet", "json", "csv", "avro"):
            raise option_error(
                f"format '{self.format}'",
                "is not known",
                "Use 'parquet', 'json', 'csv' or 'avro'.",
                code="option-invalid",
            )

    def targets(self) -> tuple[str, ...]:
        return (f"'{self.path}'",)

    def asset_uris(self) -> tuple[str, ...]:
        return (folder_uri(self.path),)

    def check_dead_letters(self) -> None:
        if self.format == "csv":
            raise dead_letters.dead_letters_error(self.name, "CSV has no bytes and no lists", "Use format='parquet'.")
        dead_letters.check_partitions(self.name, self.partition_by)

    def check_gate(self, gate: Gate) -> None:
        if self.format == "avro" and gate.checks_freshness(self.name):
            why = "writes Avro files, and Gate(fresh=…) cannot read a column of them"
            raise option_error(
                f"sink '{self.name}'", why, "Use a suite with expect_column_max_to_be_between.", code="options-conflict"
            )


@dataclass(frozen=True)
class StateSink(SinkConfig):
    """The state of the transform: rows by key, published with each checkpoint and read by the next one.

    The transform becomes `transform(batch, state) -> outputs, changes`. Each row of `changes` replaces the row of its
    key. If its column `deleted` is true, the key is deleted.

    Args:
        schema: of the rows, as Spark DDL: "page STRING, views BIGINT".
        key: columns that identify a row; never null.
        path: folder or URI that Spark and the committer can reach; by default `appstate/` below ONCEONLY_HOME.
    """

    schema: str
    key: Sequence[str]
    path: str | None = None

    kind = "state"
    writer = "onceonly.sinks.state.sink:StateWriter.make"
    keeps_state = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.key, str) or not self.key:
            raise option_error(
                f"sink '{self.name}'",
                f"has the key {self.key!r}",
                "Give a list of column names.",
                code="option-invalid",
            )
        if not self.schema:
            raise option_error(
                f"sink '{self.name}'", "has no schema", "Set StateSink(schema='page STRING, …').", code="option-missing"
            )
        object.__setattr__(self, "key", tuple(self.key))

    def check_dead_letters(self) -> None:
        raise dead_letters.dead_letters_error(self.name, "it keeps state", "Use a DeltaSink or a KafkaSink.")

    def targets(self) -> tuple[str, ...]:
        """Return nothing: state is not output, and its folder is named after the pipeline."""
        return ()


def check_folder(sink: DeltaSink | FileSink, place: str) -> None:
    """Check that there is a path, and make `partition_by` a tuple. Raises InvalidPipeline."""
    if not place:
        raise option_error(
            f"sink '{sink.name}'", "has no path", f"Set {type(sink).__name__}(path=…).", code="option-missing"
        )
    if isinstance(sink.partition_by, str):
        raise option_error(
            f"sink '{sink.name}'", "partition_by is a string", "Use a list of column names.", code="option-invalid"
        )
    object.__setattr__(sink, "partition_by", tuple(sink.partition_by))

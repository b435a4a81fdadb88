"""What a pipeline writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onceonly.pipeline.checks import PREFIX, TOPIC, check_connection, condition, invalid
from onceonly.pipeline.names import check_name

PARTITIONS = "partitions"


@dataclass(frozen=True)
class DeltaSink:
    """A Delta table to append to.

    Args:
        path: folder or URI; a relative path is taken below ONCEONLY_HOME.
        partition_by: used when the table is created; an existing table must agree.
        add_columns: columns that the table has not are added to it by the commit that brings their first rows.
        widen: columns whose values have become wider (int to bigint, float to double …) are widened by the commit that
            brings the first, through Spark, in a table that allows it (delta.enableTypeWidening).
        replace: what each checkpoint's rows take the place of, in one commit, whoever wrote it: 'partitions', those
            that the new rows are in; or a condition on partition columns that all new rows meet, as in
            [("country", "=", "us"), ("day", ">=", "2013-01-01")]. By default nothing.
    """

    name: str
    path: str
    partition_by: Sequence[str] = ()
    add_columns: bool = False
    widen: bool = False
    replace: Literal["partitions"] | Sequence[tuple[str, str, Any]] | None = None

    kind = "delta"

    def __post_init__(self) -> None:
        check_folder(self)
        if self.replace is not None and self.replace != PARTITIONS:
            object.__setattr__(self, "replace", tuple(condition(self.name, part) for part in self.replace))
        self._check_replace()

    def _check_replace(self) -> None:
        if self.replace is None:
            return
        if not self.replace or not self.partition_by:
            raise invalid(f"sink '{self.name}'", "has nothing to replace", "Set partition_by, and a condition on it.")
        others = {part[0] for part in self.replace if self.replace != PARTITIONS} - set(self.partition_by)
        if others:
            raise invalid(
                f"sink '{self.name}'",
                f"replaces by {sorted(others)}, and the table is partitioned by {list(self.partition_by)}",
                "Only whole files can be replaced: use partition columns alone.",
            )


@dataclass(frozen=True, kw_only=True)
class KafkaSink:
    """Topics to write to, in transactions that end with the commit.

    The rows' columns: `value`, and where wanted `key`, `headers`, `timestamp`, `partition`, `topic` (docs/kafka.md).

    Args:
        topic: where every row goes; without it, the column `topic` says, and must name one of `topics`.
        format: how `value` is written: as it is (binary or text), as JSON, or as Avro by `schema`.
        schema: file with the Avro schema (.avsc), relative to the project.
        guarantee: 'at-least-once' writes at commit without a transaction; 'none' while staging, and cannot take back.
        mode: 'staged' writes while staging, and commits in milliseconds; 'late' writes at commit, in order of the
            decisions. By default late for interval pipelines (they may run in parallel), else staged.
        unordered: allows 'staged' in an interval pipeline: rows of later intervals may come first.
        transaction_timeout: seconds after which the broker ends a transaction by itself (it is then written again).
        commit_within: seconds within which the commit follows, at the latest; refused where the time-out is shorter.
            By default one schedule interval of the DAG, at most 15 minutes.
        id_prefix: first part of every transactional id, for prefixed ACLs.
        ids: 'unique' gives each transaction an id of its own, which brokers forget after seven days. 'pool' uses the
            same few again, for pipelines that run every minute: one per partition for each of `pool_size` attempts.
        pool_size: most attempts of the pipeline whose outcome is not recorded; plan for what a long outage may leave.
        bootstrap, connection: as in `KafkaSource`.
    """

    name: str
    topic: str | None = None
    topics: Sequence[str] = ()
    format: Literal["raw", "json", "avro"] = "raw"
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

    kind = "kafka"

    def __post_init__(self) -> None:
        check_name("sink", self.name)
        check_connection(self.connection, self.bootstrap)
        if isinstance(self.topics, str):
            raise invalid(f"sink '{self.name}'", "topics is a string", "Use a list of topic names.")
        object.__setattr__(self, "topics", tuple(self.topics))
        if (self.topic is None) == (not self.topics):
            raise invalid(f"sink '{self.name}'", "needs either a topic or topics", "Set KafkaSink(topic=…).")
        self._check_choices()
        for topic in self.allowed:
            if not TOPIC.fullmatch(topic):
                raise invalid(f"topic '{topic}'", "is no Kafka topic name", "Use letters, digits, '.', '_' and '-'.")
        if (self.format == "avro") != str(self.schema).endswith(".avsc"):
            needs = "needs a schema file ending in .avsc" if self.format == "avro" else "takes no schema"
            raise invalid(f"format '{self.format}' with schema {self.schema!r}", needs, "Set KafkaSink(schema=…).")
        self._check_transactions()

    @property
    def allowed(self) -> tuple[str, ...]:
        """Every topic that it may write to."""
        return (self.topic,) if self.topic else tuple(self.topics)

    def _check_transactions(self) -> None:
        if not 1 <= self.transaction_timeout <= 3600 * 24:
            raise invalid("transaction_timeout", f"is {self.transaction_timeout}", "Give seconds, at least 1.")
        if self.commit_within is not None and self.commit_within >= self.transaction_timeout:
            raise invalid(
                f"transaction_timeout of {self.transaction_timeout:g} s",
                f"is not longer than commit_within={self.commit_within:g}: transactions would end before their commit",
                "Raise transaction_timeout (the brokers allow transaction.max.timeout.ms), or use mode='late'.",
            )
        if self.pool_size < 1:
            raise invalid("pool_size", f"is {self.pool_size}", "Use a number above 0.")
        if self.ids == "pool" and self.guarantee != "exactly-once":
            why = f"is for transactions, and guarantee={self.guarantee!r} has none"
            raise invalid("ids='pool'", why, "Leave it out.")
        if not PREFIX.fullmatch(self.id_prefix):
            raise invalid(f"id_prefix '{self.id_prefix}'", "is not usable", "Use letters, digits, '.' and '_'.")

    def _check_choices(self) -> None:
        choices: dict[str, tuple[str | None, ...]] = {
            "format": ("raw", "json", "avro"),
            "guarantee": ("exactly-once", "at-least-once", "none"),
            "mode": ("staged", "late", None),
            "ids": ("unique", "pool"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                words = ", ".join(repr(word) for word in allowed if word)
                raise invalid(f"{name} '{getattr(self, name)}'", "is not known", f"Use one of {words}.")


@dataclass(frozen=True)
class FileSink:
    """A folder to which each checkpoint adds files, every file whole and once.

    Args:
        path: folder on a local or mounted file system, or hdfs://namenode:8020/…; a relative path is taken below
            ONCEONLY_HOME.
        format: Parquet, JSON lines, CSV with a header, or Avro.
        partition_by: columns that become folders, as in `day=2013-01-01/`.
    """

    name: str
    path: str
    format: Literal["parquet", "json", "csv", "avro"] = "parquet"
    partition_by: Sequence[str] = ()

    kind = "files"

    def __post_init__(self) -> None:
        check_folder(self)
        if self.format not in ("parquet", "json", "csv", "avro"):
            raise invalid(f"format '{self.format}'", "is not known", "Use 'parquet', 'json', 'csv' or 'avro'.")


@dataclass(frozen=True)
class StateSink:
    """What the transform remembers: rows by key, published with each checkpoint and read by the next.

    The transform becomes `transform(batch, state) -> outputs, changes`. Each row of `changes` takes the place of what
    its key had; where its column `deleted` is true, the key is forgotten.

    Args:
        schema: of the rows, as Spark DDL: "page STRING, views BIGINT".
        key: columns that tell one row from the other; never null.
        path: folder or URI that Spark and the committer reach; by default `appstate/` below ONCEONLY_HOME.
    """

    name: str
    schema: str
    key: Sequence[str]
    path: str | None = None

    kind = "state"

    def __post_init__(self) -> None:
        check_name("sink", self.name)
        if isinstance(self.key, str) or not self.key:
            raise invalid(f"sink '{self.name}'", f"has the key {self.key!r}", "Give a list of column names.")
        if not self.schema:
            raise invalid(f"sink '{self.name}'", "has no schema", "Set StateSink(schema='page STRING, …').")
        object.__setattr__(self, "key", tuple(self.key))


AnySink = DeltaSink | FileSink | KafkaSink | StateSink
KINDS: tuple[type[AnySink], ...] = (DeltaSink, FileSink, KafkaSink, StateSink)
SINKS: Mapping[str, type[AnySink]] = {kind.kind: kind for kind in KINDS}


def check_folder(sink: DeltaSink | FileSink) -> None:
    check_name("sink", sink.name)
    if not sink.path:
        raise invalid(f"sink '{sink.name}'", "has no path", f"Set {type(sink).__name__}(path=…).")
    if isinstance(sink.partition_by, str):
        raise invalid(f"sink '{sink.name}'", "partition_by is a string", "Use a list of column names.")
    object.__setattr__(sink, "partition_by", tuple(sink.partition_by))

"""A pipeline as plain frozen data: JSON in, JSON out, checked as soon as it is made.

It holds no connection and no secret, so it can be stored with every checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.gate import Fresh as Fresh
from onceonly.pipeline.gate import Gate as Gate
from onceonly.pipeline.names import check_name
from onceonly.pipeline.shapes import problem

DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
PREFIX = re.compile(r"[A-Za-z0-9._]{1,64}")
PARTITIONS = "partitions"
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "not in")
CONNECTION = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True)
class KafkaSource:
    """A topic to read.

    Args:
        format: what `value` becomes: the raw bytes, or a struct decoded by `schema`.
        schema: file with the record's schema, relative to the project: Avro (.avsc), or for JSON Spark DDL (.ddl).
        max_records: chained mode only: most offsets in one checkpoint.
        grace: interval mode only: seconds after its end for which an interval waits for late records before it is
            pinned. What comes later is read by the next interval.
        bootstrap: broker addresses; by default ONCEONLY_KAFKA_BOOTSTRAP or the embedded broker.
        connection: id of the Airflow connection that says how to reach and to authenticate (docs/connections.md),
            instead of `bootstrap`.
    """

    topic: str
    format: Literal["raw", "json", "avro"] = "raw"
    schema: str | None = None
    max_records: int | None = None
    bootstrap: str | None = None
    connection: str | None = None
    grace: float = 0.0

    def __post_init__(self) -> None:
        check_connection(self.connection, self.bootstrap)
        if not 0 <= self.grace <= 3600 * 24 * 366:
            raise _invalid("grace", f"is {self.grace}", "Give seconds, from 0 to a year.")
        if not TOPIC.fullmatch(self.topic):
            raise _invalid(f"topic '{self.topic}'", "is no Kafka topic name", "Use letters, digits, '.', '_' and '-'.")
        if self.format not in ("raw", "json", "avro"):
            raise _invalid(f"format '{self.format}'", "is not known", "Use 'raw', 'json' or 'avro'.")
        suffix = {"json": ".ddl", "avro": ".avsc"}.get(self.format)
        if (suffix is None) != (self.schema is None) or (suffix and not str(self.schema).endswith(suffix)):
            needs = f"needs a schema file ending in {suffix}" if suffix else "takes no schema"
            raise _invalid(f"format '{self.format}' with schema {self.schema!r}", needs, "Set KafkaSource(schema=…).")
        if self.max_records is not None and self.max_records < 1:
            raise _invalid("max_records", f"is {self.max_records}", "Use a number above 0, or leave it out.")


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
        _check_folder(self)
        if self.replace is not None and self.replace != PARTITIONS:
            object.__setattr__(self, "replace", tuple(_condition(self.name, part) for part in self.replace))
        self._check_replace()

    def _check_replace(self) -> None:
        if self.replace is None:
            return
        if not self.replace or not self.partition_by:
            raise _invalid(f"sink '{self.name}'", "has nothing to replace", "Set partition_by, and a condition on it.")
        others = {part[0] for part in self.replace if self.replace != PARTITIONS} - set(self.partition_by)
        if others:
            raise _invalid(
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
            raise _invalid(f"sink '{self.name}'", "topics is a string", "Use a list of topic names.")
        object.__setattr__(self, "topics", tuple(self.topics))
        if (self.topic is None) == (not self.topics):
            raise _invalid(f"sink '{self.name}'", "needs either a topic or topics", "Set KafkaSink(topic=…).")
        self._check_choices()
        for topic in self.allowed:
            if not TOPIC.fullmatch(topic):
                raise _invalid(f"topic '{topic}'", "is no Kafka topic name", "Use letters, digits, '.', '_' and '-'.")
        if (self.format == "avro") != str(self.schema).endswith(".avsc"):
            needs = "needs a schema file ending in .avsc" if self.format == "avro" else "takes no schema"
            raise _invalid(f"format '{self.format}' with schema {self.schema!r}", needs, "Set KafkaSink(schema=…).")
        self._check_transactions()

    @property
    def allowed(self) -> tuple[str, ...]:
        """Every topic that it may write to."""
        return (self.topic,) if self.topic else tuple(self.topics)

    def _check_transactions(self) -> None:
        if not 1 <= self.transaction_timeout <= 3600 * 24:
            raise _invalid("transaction_timeout", f"is {self.transaction_timeout}", "Give seconds, at least 1.")
        if self.commit_within is not None and self.commit_within >= self.transaction_timeout:
            raise _invalid(
                f"transaction_timeout of {self.transaction_timeout:g} s",
                f"is not longer than commit_within={self.commit_within:g}: transactions would end before their commit",
                "Raise transaction_timeout (the brokers allow transaction.max.timeout.ms), or use mode='late'.",
            )
        if self.pool_size < 1:
            raise _invalid("pool_size", f"is {self.pool_size}", "Use a number above 0.")
        if self.ids == "pool" and self.guarantee != "exactly-once":
            why = f"is for transactions, and guarantee={self.guarantee!r} has none"
            raise _invalid("ids='pool'", why, "Leave it out.")
        if not PREFIX.fullmatch(self.id_prefix):
            raise _invalid(f"id_prefix '{self.id_prefix}'", "is not usable", "Use letters, digits, '.' and '_'.")

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
                raise _invalid(f"{name} '{getattr(self, name)}'", "is not known", f"Use one of {words}.")


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
        _check_folder(self)
        if self.format not in ("parquet", "json", "csv", "avro"):
            raise _invalid(f"format '{self.format}'", "is not known", "Use 'parquet', 'json', 'csv' or 'avro'.")


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
            raise _invalid(f"sink '{self.name}'", f"has the key {self.key!r}", "Give a list of column names.")
        if not self.schema:
            raise _invalid(f"sink '{self.name}'", "has no schema", "Set StateSink(schema='page STRING, …').")
        object.__setattr__(self, "key", tuple(self.key))


AnySink = DeltaSink | FileSink | KafkaSink | StateSink
KINDS: tuple[type[AnySink], ...] = (DeltaSink, FileSink, KafkaSink, StateSink)
SINKS: Mapping[str, type[AnySink]] = {kind.kind: kind for kind in KINDS}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """source → transform → gate → sinks.

    Args:
        source: one topic, or several, which are read up to one consistent cut: their offsets are pinned together.
        transform: dotted path `package.module:function` of a pure function of one DataFrame, with the columns key,
            value, topic, partition, offset, timestamp, headers; it returns a DataFrame, or one per sink by name. Of
            several topics, it gets a dict by topic. With a StateSink, it is a function of two (see there).
        mode: 'chained': each checkpoint starts where the last one ended. 'interval': the data interval of the run,
            by record time.
        gate: what is asked of the staged rows before they are published.
    """

    name: str
    source: KafkaSource | Sequence[KafkaSource]
    transform: str
    sinks: Sequence[AnySink]
    mode: Literal["chained", "interval"] = "chained"
    gate: Gate | None = None

    def __post_init__(self) -> None:
        check_name("pipeline", self.name)
        object.__setattr__(self, "sinks", tuple(self.sinks))
        if not isinstance(self.source, KafkaSource):
            object.__setattr__(self, "source", tuple(self.source))
        topics = [source.topic for source in self.sources]
        if not topics or len(set(topics)) != len(topics):
            raise _invalid(f"pipeline '{self.name}'", f"reads the topics {topics}", "Name at least one, each once.")
        if not DOTTED.fullmatch(self.transform):
            raise _invalid(f"transform '{self.transform}'", "is no dotted path", "Write 'package.module:function'.")
        self._check_mode()
        names = [sink.name for sink in self.sinks]
        if not names or len(set(names)) != len(names):
            raise _invalid(f"pipeline '{self.name}'", f"has the sinks {names}", "Name at least one sink, each once.")
        if sum(isinstance(sink, StateSink) for sink in self.sinks) > 1:
            raise _invalid(f"pipeline '{self.name}'", "has several StateSinks", "Keep all of it in one.")
        for sink in self.sinks:
            if self.mode == "interval" and isinstance(sink, KafkaSink) and sink.mode == "staged" and not sink.unordered:
                raise _invalid(
                    f"sink '{sink.name}'",
                    "writes while staging, and intervals that run in parallel would arrive in any order",
                    "Use KafkaSink(mode='late'), or unordered=True if order does not matter.",
                )
        self._check_gate()

    def _check_mode(self) -> None:
        if self.mode not in ("chained", "interval"):
            raise _invalid(f"mode '{self.mode}'", "is not known", "Use 'chained' or 'interval'.")
        if self.mode == "interval" and any(source.max_records is not None for source in self.sources):
            raise _invalid("max_records", "is for chained mode; an interval is read whole", "Leave it out.")
        if self.mode == "chained" and any(source.grace for source in self.sources):
            raise _invalid("grace", "is for intervals; in chained mode no record is late", "Leave it out.")

    def _check_gate(self) -> None:
        """A gate can keep back what is written at commit only; what a checkpoint remembers is no output."""
        if self.gate is None:
            return
        for sink in self.sinks:
            if isinstance(sink, KafkaSink) and sink.guarantee == "none":
                raise _invalid(
                    f"sink '{sink.name}'",
                    "writes while staging and cannot take back, so a gate would come too late",
                    "Use another guarantee, or leave the gate out.",
                )
        seen = [sink.name for sink in self.sinks if not isinstance(sink, StateSink)]
        gate = self.gate.of(seen)
        object.__setattr__(self, "gate", gate)
        for sink in self.sinks:
            if isinstance(sink, FileSink) and sink.format == "avro" and gate.asks_fresh(sink.name):
                why = "writes Avro files, of which only Spark reads a single column"
                raise _invalid(f"sink '{sink.name}'", why, "Ask it of a suite: expect_column_max_to_be_between.")

    @property
    def state(self) -> StateSink | None:
        """What it remembers from checkpoint to checkpoint; such a pipeline runs one after the other."""
        return next((sink for sink in self.sinks if isinstance(sink, StateSink)), None)

    def judges_no_records(self) -> bool:
        """Whether an interval without records goes through the gate.

        Never where a sink replaces by a condition: that there are no records is no reason to take all of it out.
        """
        replacing = [sink.replace for sink in self.sinks if isinstance(sink, DeltaSink)]
        return self.gate is not None and self.gate.asks_of_none() and set(replacing) <= {None, PARTITIONS}

    def is_late(self, sink: KafkaSink) -> bool:
        """Whether its rows are written at commit only."""
        return (sink.mode or ("late" if self.mode == "interval" else "staged")) == "late"

    def check_commits(self, within: float) -> None:
        """Refuse transactions that would end before a commit which comes that late, in seconds.

        A sink that says by itself how soon its commit follows (`commit_within`) was checked against that.
        """
        for sink in self.sinks:
            if not isinstance(sink, KafkaSink) or sink.commit_within or self.is_late(sink):
                continue
            if sink.guarantee == "exactly-once" and sink.transaction_timeout < within:
                raise _invalid(
                    f"sink '{sink.name}'",
                    f"has transactions that end after {sink.transaction_timeout:g} s, and a commit may take "
                    f"{within:g} s: one schedule interval, at most 15 minutes",
                    "Raise transaction_timeout, promise more with commit_within, or use mode='late'.",
                )

    def sink(self, name: str) -> AnySink:
        return next(sink for sink in self.sinks if sink.name == name)

    @property
    def sources(self) -> tuple[KafkaSource, ...]:
        """One per topic."""
        return (self.source,) if isinstance(self.source, KafkaSource) else tuple(self.source)

    @property
    def pool_size(self) -> int | None:
        """Attempts that its pools of transactional ids have room for; None: it has no pool."""
        pools = [sink.pool_size for sink in self.sinks if isinstance(sink, KafkaSink) and sink.ids == "pool"]
        return min(pools, default=None)

    @property
    def connections(self) -> set[str]:
        """Ids of the Airflow connections that its parts name."""
        named = (getattr(part, "connection", None) for part in (*self.sources, *self.sinks))
        return {conn_id for conn_id in named if conn_id}

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        sinks = [{"kind": sink.kind, **_plain(asdict(sink))} for sink in self.sinks]
        read = [_source_json(source) for source in self.sources]
        del data["gate"]
        gate = {"gate": self.gate.to_json()} if self.gate else {}  # without one, definitions are as they always were
        return {**data, "source": read[0] if isinstance(self.source, KafkaSource) else read, "sinks": sinks, **gate}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Pipeline:
        """The inverse of `to_json`.

        Raises:
            InvalidPipeline: a kind or field that this version does not know, or a value of another type.
        """
        try:
            kinds, read = {"kafka": KafkaSource}, data["source"]
            source = [_build(kinds, each) for each in read] if isinstance(read, list) else _build(kinds, read)
            sinks = [_build(SINKS, sink) for sink in data["sinks"]]
            gate = {"gate": Gate.from_json(data["gate"])} if "gate" in data else {}
            return cls(**{**data, "source": source, "sinks": sinks, **gate})
        except (KeyError, TypeError, AttributeError) as error:
            raise _unreadable(data, error) from error


def check_connection(connection: str | None, bootstrap: str | None) -> None:
    """A definition names a connection and holds none of it: it is stored with every checkpoint.

    Raises:
        InvalidPipeline: no connection id (its text is not repeated: it may hold a secret), or both are given.
    """
    if connection is not None and not CONNECTION.fullmatch(connection):
        raise _invalid("connection", "is no Airflow connection id", "Name one, as in connection='kafka_default'.")
    if connection is not None and bootstrap is not None:
        raise _invalid(f"connection '{connection}'", "is given beside bootstrap", "Leave one of them out.")


def _check_folder(sink: DeltaSink | FileSink) -> None:
    check_name("sink", sink.name)
    if not sink.path:
        raise _invalid(f"sink '{sink.name}'", "has no path", f"Set {type(sink).__name__}(path=…).")
    if isinstance(sink.partition_by, str):
        raise _invalid(f"sink '{sink.name}'", "partition_by is a string", "Use a list of column names.")
    object.__setattr__(sink, "partition_by", tuple(sink.partition_by))


def _condition(sink: str, part: Any) -> tuple[str, str, Any]:
    if isinstance(part, (list, tuple)) and len(part) == 3 and part[1] in OPERATORS:
        column, operator, value = part
        if operator.endswith("in") and isinstance(value, (list, tuple)):
            return column, operator, tuple(value)
        if isinstance(value, (str, int, float)):
            return column, operator, value
    raise _invalid(
        f"sink '{sink}'",
        f"replaces where {part!r}",
        f'Write it as in replace=[("day", "=", "2013-01-01")]; operators: {", ".join(OPERATORS)}.',
    )


def _source_json(source: KafkaSource) -> dict[str, Any]:
    """Without a grace, as it always was."""
    data = {"kind": "kafka", **asdict(source)}
    return data if source.grace else {name: value for name, value in data.items() if name != "grace"}


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _build(kinds: Mapping[str, type[Any]], data: Mapping[str, Any]) -> Any:
    kind, given = kinds[data["kind"]], {key: value for key, value in data.items() if key != "kind"}
    if wrong := problem(given, kind):
        raise TypeError(f"in '{data.get('name') or data['kind']}', {wrong}")
    return kind(**given)


def _unreadable(data: Any, error: Exception) -> InvalidPipeline:
    name = data.get("name") if isinstance(data, Mapping) else data
    why = f"cannot be read: {error}"
    return _invalid(
        f"definition of '{name}'", why, "Was it written by a newer Onceonly, or edited by hand in the state table?"
    )


def _invalid(what: str, why: str, todo: str) -> InvalidPipeline:
    return InvalidPipeline(f"{what} {why}.", todo=todo)

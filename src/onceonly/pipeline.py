"""A pipeline as plain frozen data: JSON in, JSON out, checked as soon as it is made.

It holds no connection and no secret, so it can be stored with every checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from onceonly.checkpoint import check_name
from onceonly.errors import InvalidPipeline

DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True)
class KafkaSource:
    """A topic to read.

    Args:
        format: what `value` becomes: the raw bytes, or a struct decoded by `schema`.
        schema: file with the record's schema, relative to the project: Avro (.avsc), or for JSON Spark DDL (.ddl).
        max_records: chained mode only: most offsets in one checkpoint.
        bootstrap: broker addresses; by default ONCEONLY_KAFKA_BOOTSTRAP or the embedded broker.
    """

    topic: str
    format: Literal["raw", "json", "avro"] = "raw"
    schema: str | None = None
    max_records: int | None = None
    bootstrap: str | None = None

    def __post_init__(self) -> None:
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
    """

    name: str
    path: str
    partition_by: Sequence[str] = ()

    kind = "delta"

    def __post_init__(self) -> None:
        check_name("sink", self.name)
        if not self.path:
            raise _invalid(f"sink '{self.name}'", "has no path", "Set DeltaSink(path=…).")
        if isinstance(self.partition_by, str):
            raise _invalid(f"sink '{self.name}'", "partition_by is a string", "Use a list of column names.")
        object.__setattr__(self, "partition_by", tuple(self.partition_by))


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """source → transform → sinks.

    Args:
        transform: dotted path `package.module:function` of a pure function of one DataFrame, with the columns key,
            value, topic, partition, offset, timestamp, headers; it returns a DataFrame, or one per sink by name.
        mode: 'chained': each checkpoint starts where the last one ended. 'interval': the data interval of the run,
            by record time.
    """

    name: str
    source: KafkaSource
    transform: str
    sinks: Sequence[DeltaSink]
    mode: Literal["chained", "interval"] = "chained"

    def __post_init__(self) -> None:
        check_name("pipeline", self.name)
        object.__setattr__(self, "sinks", tuple(self.sinks))
        if not DOTTED.fullmatch(self.transform):
            raise _invalid(f"transform '{self.transform}'", "is no dotted path", "Write 'package.module:function'.")
        if self.mode not in ("chained", "interval"):
            raise _invalid(f"mode '{self.mode}'", "is not known", "Use 'chained' or 'interval'.")
        names = [sink.name for sink in self.sinks]
        if not names or len(set(names)) != len(names):
            raise _invalid(f"pipeline '{self.name}'", f"has the sinks {names}", "Name at least one sink, each once.")
        if self.mode == "interval" and self.source.max_records is not None:
            raise _invalid("max_records", "is for chained mode; an interval is read whole", "Leave it out.")

    def sink(self, name: str) -> DeltaSink:
        return next(sink for sink in self.sinks if sink.name == name)

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        sinks = [{"kind": sink.kind, **asdict(sink), "partition_by": list(sink.partition_by)} for sink in self.sinks]
        return {**data, "source": {"kind": "kafka", **data["source"]}, "sinks": sinks}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Pipeline:
        """The inverse of `to_json`.

        Raises:
            InvalidPipeline: a kind or field that this version does not know.
        """
        try:
            source = _build({"kafka": KafkaSource}, data["source"])
            sinks = [_build({"delta": DeltaSink}, sink) for sink in data["sinks"]]
            return cls(**{**data, "source": source, "sinks": sinks})
        except (KeyError, TypeError) as error:
            why = f"cannot be read: {error}"
            raise _invalid(f"definition of '{data.get('name')}'", why, "Was it written by a newer Onceonly?") from error


def _build(kinds: Mapping[str, type[Any]], data: Mapping[str, Any]) -> Any:
    return kinds[data["kind"]](**{key: value for key, value in data.items() if key != "kind"})


def _invalid(what: str, why: str, todo: str) -> InvalidPipeline:
    return InvalidPipeline(f"{what} {why}.", todo=todo)

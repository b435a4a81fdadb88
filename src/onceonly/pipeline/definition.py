"""A pipeline as plain frozen data, validated on creation, that can be converted to JSON and back.

It contains no connection and no secret, so it can be stored with every checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.checks import DOTTED, invalid
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.names import check_name
from onceonly.pipeline.shapes import problem
from onceonly.pipeline.sinks import PARTITIONS, SINKS, AnySink, DeltaSink, FileSink, KafkaSink, StateSink
from onceonly.pipeline.sources import KafkaSource, source_json


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """source → transform → gate → sinks.

    Args:
        source: one topic, or several whose offsets are pinned together, as one consistent cut.
        transform: dotted path `package.module:function` of a pure function of one DataFrame with the columns key,
            value, topic, partition, offset, timestamp and headers. It returns a DataFrame for every sink, or a dict of
            DataFrames by sink name. With several topics its argument is a dict of DataFrames by topic. With a
            StateSink it has a second argument (see there).
        mode: 'chained': each checkpoint starts where the last one ended. 'interval': each checkpoint covers the data
            interval of its run, by record time.
        gate: checks on the staged rows before they are published.
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
            raise invalid(f"pipeline '{self.name}'", f"reads the topics {topics}", "Name at least one, each once.")
        if not DOTTED.fullmatch(self.transform):
            raise invalid(f"transform '{self.transform}'", "is not a dotted path", "Write 'package.module:function'.")
        self._check_mode()
        names = [sink.name for sink in self.sinks]
        if not names or len(set(names)) != len(names):
            raise invalid(f"pipeline '{self.name}'", f"has the sinks {names}", "Name at least one sink, each once.")
        if sum(isinstance(sink, StateSink) for sink in self.sinks) > 1:
            raise invalid(f"pipeline '{self.name}'", "has several StateSinks", "Keep all of it in one.")
        for sink in self.sinks:
            if self.mode == "interval" and isinstance(sink, KafkaSink) and sink.mode == "staged" and not sink.unordered:
                raise invalid(
                    f"sink '{sink.name}'",
                    "writes while staging, and intervals that run in parallel would arrive in any order",
                    "Use KafkaSink(mode='late'), or unordered=True if order does not matter.",
                )
        self._check_gate()

    def _check_mode(self) -> None:
        if self.mode not in ("chained", "interval"):
            raise invalid(f"mode '{self.mode}'", "is not known", "Use 'chained' or 'interval'.")
        if self.mode == "interval" and any(source.max_records is not None for source in self.sources):
            raise invalid("max_records", "is for chained mode; an interval is read completely", "Remove it.")
        if self.mode == "chained" and any(source.grace for source in self.sources):
            raise invalid("grace", "is for intervals; in chained mode no record is late", "Remove it.")

    def _check_gate(self) -> None:
        """A gate can hold back only what is written at commit. It does not check state, which is not output."""
        if self.gate is None:
            return
        for sink in self.sinks:
            if isinstance(sink, KafkaSink) and sink.guarantee == "none":
                raise invalid(
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
                raise invalid(f"sink '{sink.name}'", why, "Ask it of a suite: expect_column_max_to_be_between.")

    @property
    def state(self) -> StateSink | None:
        """What it remembers from checkpoint to checkpoint; such a pipeline runs one after the other."""
        return next((sink for sink in self.sinks if isinstance(sink, StateSink)), None)

    def judges_no_records(self) -> bool:
        """Whether an interval without records goes through the gate.

        Never if a sink replaces by a condition: an interval without records must not delete everything there.
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
                raise invalid(
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
        """The ids of the Airflow connections of its sources and sinks."""
        named = (getattr(part, "connection", None) for part in (*self.sources, *self.sinks))
        return {conn_id for conn_id in named if conn_id}

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        sinks = [{"kind": sink.kind, **_plain(asdict(sink))} for sink in self.sinks]
        read = [source_json(source) for source in self.sources]
        del data["gate"]
        gate = {"gate": self.gate.to_json()} if self.gate else {}  # without a gate, the same as in older versions
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
    return invalid(
        f"definition of '{name}'", why, "Was it written by a newer Onceonly, or edited by hand in the state table?"
    )

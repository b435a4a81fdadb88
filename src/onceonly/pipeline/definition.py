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
from onceonly.pipeline.registry import build, check_sink, sink_class, sink_from_json, sink_json
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.pipeline.sources import EARLIEST, KafkaSource, source_json


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """source → transform → gate → sinks.

    Args:
        source: one topic or pattern of topics, or several whose offsets are pinned together, as one consistent cut.
        transform: dotted path `package.module:function` of a pure function of one DataFrame with the columns key,
            value, topic, partition, offset, timestamp and headers. It returns a DataFrame for every sink, or a dict of
            DataFrames by sink name. With several sources its argument is a dict of DataFrames by topic or
            pattern. With a StateSink it has a second argument (see there).
        mode: 'chained': each checkpoint starts where the last one ended. 'interval': each checkpoint covers the data
            interval of its run, by record time.
        gate: checks on the staged rows before they are published.
    """

    name: str
    source: KafkaSource | Sequence[KafkaSource]
    transform: str
    sinks: Sequence[SinkConfig]
    mode: Literal["chained", "interval"] = "chained"
    gate: Gate | None = None

    def __post_init__(self) -> None:
        check_name("pipeline", self.name)
        object.__setattr__(self, "sinks", tuple(self.sinks))
        if not isinstance(self.source, KafkaSource):
            object.__setattr__(self, "source", tuple(self.source))
        topics = [source.name for source in self.sources]
        if not topics or len(set(topics)) != len(topics):
            raise invalid(
                f"pipeline '{self.name}'", f"reads the topics {topics}", "Pass at least one topic, and each only once."
            )
        if not DOTTED.fullmatch(self.transform):
            raise invalid(f"transform '{self.transform}'", "is not a dotted path", "Write 'package.module:function'.")
        self._check_mode()
        self._check_sinks()
        self._check_patterns()
        self._check_gate()

    def _check_mode(self) -> None:
        if self.mode not in ("chained", "interval"):
            raise invalid(f"mode '{self.mode}'", "is not known", "Use 'chained' or 'interval'.")
        if self.mode == "interval" and any(source.max_records is not None for source in self.sources):
            raise invalid("max_records", "is for chained mode; an interval is read completely", "Remove it.")
        if self.mode == "interval" and any(source.start != EARLIEST for source in self.sources):
            raise invalid("start", "is for chained mode; an interval is found by its times", "Remove it.")
        if self.mode == "chained" and any(source.grace for source in self.sources):
            raise invalid("grace", "is for intervals; in chained mode no record is late", "Remove it.")

    def _check_patterns(self) -> None:
        """No topic is read twice, and none that is written here is read again."""
        for pattern in (source for source in self.sources if source.topic_pattern):
            others = [source for source in self.sources if source is not pattern]
            if twice := [source.name for source in others if source.topic_pattern or pattern.reads(source.topic)]:
                raise invalid(
                    f"topic_pattern '{pattern.name}'",
                    f"may name topics that '{twice[0]}' names too",
                    "Put all of them into one pattern; in Python, (?!…) leaves a name out.",
                )
            written = [topic for sink in self.sinks for topic in getattr(sink, "allowed", ()) if pattern.reads(topic)]
            if written:
                raise invalid(
                    f"topic_pattern '{pattern.name}'",
                    f"matches '{written[0]}', to which the pipeline writes: it would read its own output",
                    "Rename that topic, or leave it out of the pattern, in Python by (?!…).",
                )

    def _check_sinks(self) -> None:
        for sink in self.sinks:
            check_sink(sink)
        names = [sink.name for sink in self.sinks]
        if not names or len(set(names)) != len(names):
            raise invalid(
                f"pipeline '{self.name}'", f"has the sinks {names}", "Pass at least one sink, with different names."
            )
        if sum(sink.keeps_state for sink in self.sinks) > 1:
            raise invalid(f"pipeline '{self.name}'", "has several StateSinks", "Use a single one.")
        for sink in self.sinks:
            sink.check_mode(self.mode)

    def _check_gate(self) -> None:
        """A gate can hold back only what becomes visible at commit. It does not check state, which is not output."""
        if self.gate is None:
            return
        gate = self.gate.of([sink.name for sink in self.sinks if sink.inspectable])
        object.__setattr__(self, "gate", gate)
        for sink in self.sinks:
            sink.check_gate(gate)

    @property
    def state(self) -> SinkConfig | None:
        """The sink that keeps state between checkpoints, if there is one. Its checkpoints run one at a time."""
        return next((sink for sink in self.sinks if sink.keeps_state), None)

    def gates_empty_intervals(self) -> bool:
        """Whether an interval without records goes through the gate.

        Never if a sink replaces by a condition: an interval without records must not delete everything there.
        """
        clearing = any(sink.clears_when_empty() for sink in self.sinks)
        return self.gate is not None and self.gate.can_fail_without_rows() and not clearing

    def check_commits(self, within: float) -> None:
        """Refuse sinks whose staged rows would expire before a commit that follows within that many seconds."""
        for sink in self.sinks:
            sink.check_commits(within, self.mode)

    def sink(self, name: str) -> SinkConfig:
        return next(sink for sink in self.sinks if sink.name == name)

    @property
    def sources(self) -> tuple[KafkaSource, ...]:
        """One per topic, or pattern of topics."""
        return (self.source,) if isinstance(self.source, KafkaSource) else tuple(self.source)

    def source_of(self, topic: str) -> KafkaSource | None:
        """The source that reads the topic; None: no source does."""
        return next((source for source in self.sources if source.reads(topic)), None)

    @property
    def pool_size(self) -> int | None:
        """The number of attempts that its pools of transactional ids have slots for; None if it has no pool."""
        pools = [slots for sink in self.sinks if (slots := sink.slots()) is not None]
        return min(pools, default=None)

    @property
    def connections(self) -> set[str]:
        """The ids of the Airflow connections of its sources and sinks."""
        return self._named("connection") | self.registries

    @property
    def registries(self) -> set[str]:
        """Those of them that are connections of schema registries."""
        return self._named("registry")

    def _named(self, field: str) -> set[str]:
        named = (getattr(part, field, None) for part in (*self.sources, *self.sinks))
        return {conn_id for conn_id in named if conn_id}

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        sinks = [sink_json(sink) for sink in self.sinks]
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
            read = data["source"]
            source = [_source(each) for each in read] if isinstance(read, list) else _source(read)
            sinks = [_sink(data, sink) for sink in data["sinks"]]
            gate = {"gate": Gate.from_json(data["gate"])} if "gate" in data else {}
            return cls(**{**data, "source": source, "sinks": sinks, **gate})
        except (KeyError, TypeError, AttributeError) as error:
            raise _unreadable(data, error) from error


def _sink(data: Mapping[str, Any], sink: Mapping[str, Any]) -> SinkConfig:
    try:
        sink_class(sink["kind"])
    except InvalidPipeline as error:
        what = f"definition of '{data['name']}' cannot be read: {error.what}"
        raise InvalidPipeline(what, error.why, error.todo) from error
    return sink_from_json(sink)


def _source(data: Mapping[str, Any]) -> KafkaSource:
    read: KafkaSource = build({"kafka": KafkaSource}[data["kind"]], data)
    return read


def _unreadable(data: Any, error: Exception) -> InvalidPipeline:
    name = data.get("name") if isinstance(data, Mapping) else data
    why = f"cannot be read: {error}"
    return invalid(
        f"definition of '{name}'", why, "Was it written by a newer Onceonly, or edited by hand in the state table?"
    )

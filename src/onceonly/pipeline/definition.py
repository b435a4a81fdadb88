"""A pipeline as plain frozen data, validated on creation, that can be converted to JSON and back.

It contains no connection and no secret, so it can be stored with every checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from onceonly.errors import InvalidPipeline
from onceonly.names import check_name
from onceonly.pipeline.checks import DOTTED, option_error
from onceonly.pipeline.dead_letters import can_lack_records, check_max_bad
from onceonly.pipeline.gate import Gate, assign_to_sinks
from onceonly.pipeline.registry import build, check_sink, sink_class, sink_from_json, sink_json
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.pipeline.sources import (
    DEAD_LETTER,
    EARLIEST,
    DeltaSource,
    FileSource,
    KafkaSource,
    Stored,
    bad_records,
    source_json,
)

AnySource = KafkaSource | DeltaSource | FileSource
SOURCES = {source.kind: source for source in (KafkaSource, DeltaSource, FileSource)}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """source → transform → gate → sinks.

    Args:
        source: one topic, pattern of topics, table or folder, or several whose offsets are pinned together, as one
            consistent cut.
        transform: dotted path `package.module:function` of a pure function of one DataFrame with the columns key,
            value, topic, partition, offset, timestamp and headers. It returns a DataFrame for every sink, or a dict of
            DataFrames by sink name. With several sources its argument is a dict of DataFrames by topic, pattern, or
            name of the table or folder. With a StateSink it has a second argument (see there). The DataFrame of a table
            or folder has its columns.
        mode: 'chained': each checkpoint starts where the last one ended. 'interval': each checkpoint covers the data
            interval of its run, by record time.
        gate: checks on the staged rows before they are published.
        dead_letters: a further sink, or the name of one of `sinks`, for the records of sources with
            on_bad_record='dead_letter', and for those that the transform returns under its name: the topic, partition,
            offset and error of each (docs/how-to/bad-records.md).
        max_bad: the number of bad records that one checkpoint may have, as a count (an int) or as a share of the
            records that it reads (a float). With more, nothing is published.
        after: names of pipelines that write the tables and folders which are read. These are read exactly up to a
            checkpoint of those pipelines; an interval is read as their checkpoints of the same interval published
            it (docs/how-to/chain.md).
    """

    name: str
    source: KafkaSource | DeltaSource | FileSource | Sequence[KafkaSource | DeltaSource | FileSource]
    transform: str
    sinks: Sequence[SinkConfig]
    mode: Literal["chained", "interval"] = "chained"
    gate: Gate | None = None
    dead_letters: SinkConfig | str | None = None
    max_bad: int | float | None = None
    after: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_name("pipeline", self.name)
        object.__setattr__(self, "sinks", tuple(self.sinks))
        if isinstance(self.dead_letters, SinkConfig):  # from here on it is a sink like the others
            object.__setattr__(self, "sinks", (*self.sinks, self.dead_letters))
            object.__setattr__(self, "dead_letters", self.dead_letters.name)
        if not isinstance(self.source, AnySource):
            object.__setattr__(self, "source", tuple(self.source))
        topics = [source.input_name for source in self.sources]
        if not topics or len(set(topics)) != len(topics):
            raise option_error(
                f"pipeline '{self.name}'",
                f"reads the topics {topics}",
                "Pass at least one topic, and each only once.",
                code="names-not-distinct",
            )
        self._check_sources()
        if not DOTTED.fullmatch(self.transform):
            raise option_error(
                f"transform '{self.transform}'",
                "is not a dotted path",
                "Write 'package.module:function'.",
                code="option-invalid",
            )
        self._check_mode()
        self._check_after()
        self._check_sinks()
        self._check_bad_records()
        self._check_patterns()
        self._check_gate()

    def _check_sources(self) -> None:
        for source in self.sources:
            if not isinstance(source, AnySource):
                raise option_error(
                    f"{source!r}",
                    "is not a source",
                    "Use KafkaSource, DeltaSource or FileSource.",
                    code="option-invalid",
                )
            targets = self._list_targets()
            if isinstance(source, Stored) and source.place in targets:
                why = f"reads the {source.word} {source.place}, which it writes to"
                raise option_error(
                    f"pipeline '{self.name}'",
                    why,
                    f"It would read its own rows. Write to another {source.word}.",
                    code="own-output-read",
                )

    def _list_targets(self) -> set[str]:
        targets: set[str] = set()
        for sink in self.sinks:
            targets.update(sink.targets())
        return targets

    def _check_mode(self) -> None:
        if self.mode not in ("chained", "interval"):
            raise option_error(
                f"mode '{self.mode}'", "is not known", "Use 'chained' or 'interval'.", code="option-invalid"
            )
        if self.mode == "interval" and any(source.most is not None for source in self.sources):
            raise option_error(
                "max_records",
                "is for chained mode; an interval is read completely",
                "Remove it.",
                code="options-conflict",
            )
        if self.mode == "interval" and any(source.begins != EARLIEST for source in self.sources):
            raise option_error(
                "start", "is for chained mode; an interval is found by its times", "Remove it.", code="options-conflict"
            )
        if self.mode == "interval" and any(source.ends is not None for source in self.sources):
            raise option_error(
                "end", "is for chained mode; an interval ends at its own time", "Remove it.", code="options-conflict"
            )
        if self.mode == "chained" and any(source.grace for source in self.sources):
            raise option_error(
                "grace", "is for intervals; in chained mode no record is late", "Remove it.", code="options-conflict"
            )

    def _check_patterns(self) -> None:
        """Check that no topic is read twice, and that none that is written here is read again."""
        for source in self.sources:
            if source.topic_pattern:
                self._check_pattern_of(source)

    def _check_pattern_of(self, pattern: AnySource) -> None:
        for source in self.sources:
            if source is not pattern and (source.topic_pattern or pattern.reads(source.topic)):
                raise option_error(
                    f"topic_pattern '{pattern.input_name}'",
                    f"may name topics that '{source.input_name}' names too",
                    "Put all of them into one pattern; in Python, (?!…) leaves a name out.",
                    code="names-not-distinct",
                )
        for topic in self._topics_written():
            if pattern.reads(topic):
                raise option_error(
                    f"topic_pattern '{pattern.input_name}'",
                    f"matches '{topic}', to which the pipeline writes: it would read its own output",
                    "Rename that topic, or leave it out of the pattern, in Python by (?!…).",
                    code="own-output-read",
                )

    def _topics_written(self) -> Iterator[str]:
        for sink in self.sinks:
            yield from sink.written_topics()

    def _check_after(self) -> None:
        if isinstance(self.after, str):
            raise option_error(
                f"after {self.after!r}", "is a text", f"Write after=[{self.after!r}].", code="option-invalid"
            )
        object.__setattr__(self, "after", tuple(self.after))
        for name in self.after:
            check_name("pipeline", name)
        if len(set(self.after)) != len(self.after) or self.name in self.after:
            why = "names a pipeline twice, or this one"
            raise option_error(
                f"after {list(self.after)}", why, "Name each other pipeline once.", code="names-not-distinct"
            )
        if self.after and not self.tables:
            why = "is about tables and folders, and none of the sources is one"
            raise option_error(
                f"after {list(self.after)}",
                why,
                "Use DeltaSource or FileSource for them, or remove it.",
                code="options-conflict",
            )
        if self.after:
            for source in self.sources:
                self._check_source_after(source)

    def _check_source_after(self, source: Any) -> None:
        """Check a source of a pipeline that reads what others publish, exactly up to one of their checkpoints."""
        if not isinstance(source, (DeltaSource, FileSource)):
            return
        if source.most is not None:
            why = f"is not for a {source.word} that is read up to a checkpoint of another pipeline"
            raise option_error(
                f"{source.counts} of '{source.topic}'",
                why,
                f"Remove {source.counts}, or after.",
                code="options-conflict",
            )
        if isinstance(source, DeltaSource) and source.changes and self.mode == "interval":
            why = "are not what the checkpoints of an interval have published"
            raise option_error(
                f"changes of '{source.topic}'", why, "Remove changes, or after.", code="options-conflict"
            )

    def _check_sinks(self) -> None:
        for sink in self.sinks:
            check_sink(sink)
        names = [sink.name for sink in self.sinks]
        if not names or len(set(names)) != len(names):
            raise option_error(
                f"pipeline '{self.name}'",
                f"has the sinks {names}",
                "Pass at least one sink, with different names.",
                code="names-not-distinct",
            )
        if sum(sink.keeps_state for sink in self.sinks) > 1:
            raise option_error(
                f"pipeline '{self.name}'", "has several StateSinks", "Use a single one.", code="options-conflict"
            )
        for sink in self.sinks:
            sink.check_mode(self.mode)

    def _check_bad_records(self) -> None:
        dead_letter_topics = [source.input_name for source in self.sources if bad_records(source) == DEAD_LETTER]
        if self.dead_letters is not None:
            self._check_dead_letters(self.dead_letters)
        elif dead_letter_topics:
            what = f"on_bad_record='dead_letter' of topic '{dead_letter_topics[0]}'"
            raise option_error(
                what,
                "has no sink to send records to",
                "Set Pipeline(dead_letters=DeltaSink(…)).",
                code="option-missing",
            )
        if self.max_bad is not None:
            check_max_bad(self.max_bad)
            if not can_lack_records(self.sources, self.dead_letters):
                why = "limits nothing: the first bad record fails the checkpoint"
                raise option_error(
                    "max_bad", why, "Set KafkaSource(on_bad_record=…), or remove it.", code="options-conflict"
                )

    def _check_dead_letters(self, name: Any) -> None:
        other_sinks = [sink.name for sink in self.sinks if sink.name != name]
        if not other_sinks or len(other_sinks) == len(self.sinks):
            why = f"is {name!r}, beside the sinks {other_sinks}"
            raise option_error(
                "dead_letters", why, "Pass a sink of its own, or the name of one of several.", code="options-conflict"
            )
        if not any(isinstance(source, KafkaSource) for source in self.sources):
            raise option_error(
                "dead_letters", "are records of topics, and it reads none", "Remove it.", code="options-conflict"
            )
        sink = self.sink(name)
        sink.check_dead_letters()
        for topic in sink.written_topics():
            if find_source(self, topic) is not None:
                why = f"go to topic '{topic}', which the pipeline reads: it would read them again and again"
                raise option_error("dead_letters", why, "Use another topic.", code="own-output-read")

    def _check_gate(self) -> None:
        """Check the gate, and give it its checks by sink.

        A gate can hold back only what becomes visible at commit. It does not check state, which is not output.
        """
        if self.gate is None:
            return
        inspectable_sinks = [sink.name for sink in self.sinks if sink.inspectable]
        gate = assign_to_sinks(self.gate, inspectable_sinks, apart=self.dead_letters)
        object.__setattr__(self, "gate", gate)
        for sink in self.sinks:
            sink.check_gate(gate)

    @property
    def state(self) -> SinkConfig | None:
        """The sink that keeps state between checkpoints, if there is one. Its checkpoints run one at a time."""
        for sink in self.sinks:
            if sink.keeps_state:
                return sink
        return None

    def sink(self, name: str) -> SinkConfig:
        """Return the sink of that name, which has to be one of `sinks`."""
        return next(sink for sink in self.sinks if sink.name == name)

    @property
    def sources(self) -> tuple[AnySource, ...]:
        """The sources, one per topic, pattern of topics, table or folder."""
        if isinstance(self.source, AnySource):
            return (self.source,)
        return tuple(self.source)

    @property
    def tables(self) -> dict[str, str]:
        """The assets of the tables and folders that are read, by topic. A sink that writes one has the same asset."""
        return {source.topic: source.asset_uri for source in self.sources if isinstance(source, Stored)}

    def _as_declared(self, sources: Sequence[Any]) -> Any:
        """Return what has been made of the sources: all of it, or the only one if a single source was declared."""
        if isinstance(self.source, tuple):
            return sources
        return sources[0]

    def to_json(self) -> dict[str, Any]:
        """Return the definition, as each checkpoint stores it; optional parts that are not set are left out."""
        data = asdict(self)
        for name in ("dead_letters", "max_bad"):
            if data[name] is None:
                del data[name]
        del data["gate"], data["after"]
        data["source"] = self._as_declared(list(map(source_json, self.sources)))
        data["sinks"] = list(map(sink_json, self.sinks))
        if self.gate:
            data["gate"] = self.gate.to_json()
        if self.after:
            data["after"] = list(self.after)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Pipeline:
        """Return the pipeline of a definition: the inverse of `to_json`.

        Raises:
            InvalidPipeline: a kind or field that this version does not know, or a value of another type.
        """
        try:
            source = _sources_from_json(data["source"])
            sinks = [_sink_from_json(data, sink) for sink in data["sinks"]]
            arguments = {**data, "source": source, "sinks": sinks}
            if "gate" in data:
                arguments["gate"] = Gate.from_json(data["gate"])
            return cls(**arguments)
        except (KeyError, TypeError, AttributeError) as error:
            raise _cannot_be_read(data, error) from error


def find_source(pipeline: Pipeline, topic: str) -> AnySource | None:
    """Return the source that reads the topic; None: no source does."""
    for source in pipeline.sources:
        if source.reads(topic):
            return source
    return None


def _sink_from_json(data: Mapping[str, Any], sink: Mapping[str, Any]) -> SinkConfig:
    """Return a sink of the definition `data`, which its error names."""
    try:
        sink_class(sink["kind"])
    except InvalidPipeline as error:
        what = f"definition of '{data['name']}' cannot be read: {error.what}"
        raise InvalidPipeline(what, error.why, error.todo, code=error.code) from error
    return sink_from_json(sink)


def _sources_from_json(data: Any) -> AnySource | list[AnySource]:
    if isinstance(data, list):
        return list(map(_source_from_json, data))
    return _source_from_json(data)


def _source_from_json(data: Mapping[str, Any]) -> AnySource:
    source: AnySource = build(SOURCES[data["kind"]], data)
    return source


def _cannot_be_read(data: Any, error: Exception) -> InvalidPipeline:
    name = data.get("name") if isinstance(data, Mapping) else data
    why = f"cannot be read: {error}"
    return option_error(
        f"definition of '{name}'",
        why,
        "Was it written by a newer Onceonly, or edited by hand in the state table?",
        code="definition-unreadable",
    )

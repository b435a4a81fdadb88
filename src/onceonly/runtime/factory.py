"""From plain definitions to live parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from onceonly.checkpoint.interfaces import Judges, PinsSchemas, Source
from onceonly.checkpoint.model import Checkpoint, Handle, Row
from onceonly.checkpoint.offsets import KAFKA, Ranges, has_data
from onceonly.checkpoint.sink import Changes, KeepsState, Sink
from onceonly.checkpoint.sources import Sources
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.stage import Produced, state_before
from onceonly.counts import count
from onceonly.errors import InvalidPipeline, NotCommitted, OnceonlyError
from onceonly.gate.inspector import LiveInspector
from onceonly.kafka import lookup
from onceonly.kafka.connection import KafkaConnection
from onceonly.pipeline.definition import AnySource, Pipeline
from onceonly.pipeline.source_config import SourceConfig
from onceonly.pipeline.sources import KafkaSource
from onceonly.pipeline.tables import DeltaSource, FileSource
from onceonly.registry.client import Registry
from onceonly.registry.connection import RegistryConnection
from onceonly.runtime import error_site, faults, owners, transforms
from onceonly.runtime.bad_records import BadRecords
from onceonly.settings import Settings
from onceonly.sinks.context import Context, open_sink
from onceonly.sinks.staging.handles import guarded
from onceonly.sources.files import FileReader
from onceonly.sources.kafka import KafkaReader
from onceonly.spark import catalog, few, stores
from onceonly.spark.progress import Say
from onceonly.spark.progress import reported as progress
from onceonly.spark.strict_reading import switch_off_skipping
from onceonly.statetable import location
from onceonly.statetable.table import StateTable
from onceonly.statetable.transitions import Notify
from onceonly.windows.bound import dated

SHOWN = 10  # topics of a pattern, in a note


@dataclass
class LiveParts:
    """Sinks and sources on real services. Spark starts only when something asks for it.

    Args:
        connections: finds the Airflow connections that a pipeline names; by default in the environment.
    """

    settings: Settings = field(default_factory=Settings.from_env)
    connections: lookup.Lookup = lookup.from_environment

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        config = pipeline.sink(name)
        return guarded(open_sink(config, self._context(pipeline)), config.kind)

    def sources(self, pipeline: Pipeline) -> Mapping[str, Source]:
        return Sources(pipeline, self._reader, self._topics)

    def _reader(self, config: AnySource) -> Source:
        if isinstance(config, DeltaSource):
            from onceonly.sources.delta import DeltaReader  # not every pipeline needs it

            return DeltaReader(config, self.settings.locate(config.path))
        if isinstance(config, FileSource):
            return FileReader(config, self.settings.locate(config.path), self.settings.webhdfs)
        return self._kafka_reader(config)

    def _kafka_reader(self, config: KafkaSource) -> KafkaReader:
        kafka, registry = self.kafka(config.connection, config.bootstrap), self.registry(config.registry)
        return KafkaReader(config, kafka, self.settings.project, registry)

    def _topics(self, config: AnySource) -> Iterable[str]:
        return self._kafka_reader(config).topics() if isinstance(config, KafkaSource) else [config.topic]

    def inspector(self, pipeline: Pipeline) -> LiveInspector:
        settings = self.settings
        return LiveInspector(
            pipeline, lambda name: self.sink(pipeline, name), settings.project, settings.docs, self.spark
        )

    def _context(self, pipeline: Pipeline) -> Context:
        return Context(pipeline, self.settings, self.connections, self.kafka, self.spark, self.registry)

    def kafka(self, connection: str | None, bootstrap: str | None) -> KafkaConnection:
        """How to reach the brokers: the connection of that name, else bare addresses.

        Raises:
            InvalidPipeline: no such connection, or one that cannot be used; or no addresses at all.
        """
        if connection is None:
            return KafkaConnection.plaintext(self.settings.brokers(bootstrap))
        return KafkaConnection.parse(self.connections(connection), connection)

    def registry(self, connection: str | None) -> Registry | None:
        """The schema registry of the connection of that name. It is not asked anything yet.

        Raises:
            InvalidPipeline: no such connection, or one that cannot be used.
        """
        if connection is None:
            return None
        try:
            settings = self.connections(connection)
        except InvalidPipeline as error:
            todo = "Add it; its extra needs 'url' (docs/schema-registry.md). Nothing was written."
            raise InvalidPipeline(error.what, error.why, todo) from error
        return Registry(RegistryConnection.parse(settings, connection))

    def spark(self, records: int | None = None) -> Any:
        """A session; `records`: how many it is for, where that is known."""
        from onceonly.spark.session import session

        return session(self.settings, records=records)


def coordinator(parts: LiveParts, log: Notify | None = None) -> Coordinator:
    """A coordinator on the state table and services that the settings name.

    Args:
        log: called after each recorded transition, before the function that ONCEONLY_NOTIFY names.
    """
    settings = parts.settings
    hooks: list[Callable[..., None]] = [log] if log else []
    if settings.notify:
        hooks.append(transforms.load(settings.notify, settings))

    def notify(checkpoint: Checkpoint, row: Row) -> None:
        for hook in hooks:
            hook(checkpoint, row)

    return Coordinator(StateTable(settings.state), parts, notify)


def planner(parts: LiveParts, log: Notify | None = None) -> Coordinator:
    """The same for a plan, which is the only step that makes a state table: the embedded one.

    Raises:
        NotCommitted: nothing could be recorded in the state table.
    """
    if parts.settings.embedded:
        location.make(parts.settings.state)
    location.check_writable(parts.settings.state)
    return coordinator(parts, log)


def located(pipeline: Pipeline, parts: LiveParts) -> Pipeline:
    """The same on the tables that its names mean now. Without names, nothing is asked.

    Raises:
        InvalidPipeline, NotCommitted: see `spark.catalog.find`.
    """
    names = pipeline.named_tables
    return pipeline.located(catalog.find(parts.spark(), names)) if names else pipeline


def check(pipeline: Pipeline, parts: LiveParts) -> list[str]:
    """Everything that can be known before any work, for people; writes nothing."""
    transforms.load(pipeline.transform, parts.settings)
    sources = parts.sources(pipeline)
    notes = [f"'{source.called}' matches {_matching(source, list(sources))}" for source in _patterns(pipeline)]
    notes += [note for source in pipeline.sources for note in sources[source.called].check()]
    for sink in pipeline.sinks:
        notes += parts.sink(pipeline, sink.name).check()
    if pipeline.gate:
        notes += parts.inspector(pipeline).check()
    return notes


def _patterns(pipeline: Pipeline) -> list[SourceConfig]:
    return [source for source in pipeline.sources if source.topic_pattern]


def _matching(source: SourceConfig, topics: list[str]) -> str:
    found = [topic for topic in topics if source.reads(topic)]
    return f"{count(len(found), 'topic')}: {', '.join(found[:SHOWN])}{', …' if len(found) > SHOWN else ''}"


def stage(
    parts: LiveParts,
    through: Coordinator,
    name: str,
    epoch: int,
    owner: str | None,
    say: Say | None = None,
    since: int | None = None,
) -> Checkpoint:
    """Stage one checkpoint on Spark.

    Args:
        say: told now and then how far Spark is.
        since: see `Coordinator.stage`.
    Raises:
        NotCommitted: also for errors of Spark that nobody classified: staging publishes nothing.
    """
    view = through.state.view(name)
    checkpoint = view.require(epoch)
    producing = _Producing(parts, checkpoint, state_before(view, checkpoint), through, say)
    try:
        return through.stage(name, epoch, producing, owner, since)
    except OnceonlyError as error:
        if told := _of_text(error):
            raise told from error
        raise
    except Exception as error:
        cause = _of_text(error) or producing.diagnose(error, checkpoint.ranges)
        raise _explained(cause, checkpoint, parts.settings) from error
    finally:
        producing.end()


def records(checkpoint: Checkpoint) -> int | None:
    """At most so many records are read for it; None: that is not known, or its state, of any size, is read as well."""
    of_any_size = any(range_.kind != KAFKA for range_ in checkpoint.ranges)  # a version of a table, a decision
    if of_any_size or Pipeline.from_json(checkpoint.definition).state:
        return None
    return sum(range_.span for range_ in checkpoint.ranges)


class _Producing:
    """From pinned ranges to a DataFrame per sink."""

    def __init__(
        self,
        parts: LiveParts,
        seen: Checkpoint,
        before: Handle | None,
        through: Coordinator,
        say: Say | None,
    ) -> None:
        self._say, self._through, self._until_end = say, through, ExitStack()
        self._parts, self._seen, self._before = parts, seen, before
        self._pipeline = pipeline = Pipeline.from_json(seen.definition)
        self._transform = transforms.load(pipeline.transform, parts.settings)
        self._sources = parts.sources(pipeline)
        self._pinned: dict[str, Source] = {}
        self._bad = BadRecords(pipeline)
        self._spark: Any = None
        self._held: list[Any] = []

    def __call__(self, claimed: Checkpoint) -> Produced:
        _check_same(self._seen, claimed)
        self._until_end.enter_context(owners.renewing(lambda: self._through.renew(claimed)))
        known = records(claimed)
        self._spark = self._parts.spark(known)
        self._until_end.enter_context(few.reading(known if claimed.attempt == 1 else None))  # whatever ended the first
        if self._say:
            self._until_end.enter_context(progress(self._spark, self._say))
        self._pin(claimed)
        batches = {name: self._read(name, ranges) for name, ranges in self._by_source(claimed.ranges).items()}
        self._bad.check(claimed)
        rows = self._transformed(claimed, batches)
        self._bad.check(claimed)  # again, with those that the transform has named
        return Produced(rows, self._bad.tally())

    def _transformed(self, claimed: Checkpoint, batches: Mapping[str, Any]) -> Mapping[str, Any]:
        given: Any = batches if len(batches) > 1 else next(iter(batches.values()))
        state = self._pipeline.state
        if state is None:
            return self._suited(self._outputs(claimed, self._transform(given)))
        writer = self._parts.sink(self._pipeline, state.name)
        assert isinstance(writer, KeepsState)
        before = dated(writer.read(self._spark, self._before), _time_of(claimed))
        outputs = self._outputs(claimed, self._transform(given, before))
        return self._suited({**outputs, state.name: Changes(outputs[state.name], self._before)})

    def _pin(self, claimed: Checkpoint) -> None:
        """What an earlier attempt decoded by, this one does; else it is recorded before a row is decoded."""
        pinning = {name: each for name in self._named if isinstance(each := self._sources[name], PinsSchemas)}
        if not claimed.schemas:
            ranges = self._by_source(claimed.ranges)
            found = {name: source.schemas(self._spark, ranges[name]) for name, source in pinning.items()}
            named = {name: schemas for name, schemas in found.items() if schemas}
            claimed = self._through.pin(claimed, named) if named else claimed
        for name, schemas in claimed.schemas.items():
            self._pinned[name] = pinning[name].pinned_to(schemas)

    @property
    def _named(self) -> list[str]:
        return [source.called for source in self._pipeline.sources]

    def _by_source(self, ranges: Ranges) -> dict[str, Ranges]:
        """By the name of the source: all that it reads."""
        return {
            source.called: tuple(range_ for range_ in ranges if source.reads(range_.topic))
            for source in self._pipeline.sources
        }

    def _source(self, name: str) -> Source:
        """As it decodes in this checkpoint."""
        return self._pinned.get(name) or self._sources[name]

    def _outputs(self, claimed: Checkpoint, result: Any) -> Mapping[str, Any]:
        """Of no records no rows, whatever the transform makes of them: a gate looks, and changes no output."""
        from onceonly.spark import text

        switch_off_skipping(self._spark)
        outputs = dict(transforms.outputs(self._pipeline, result))
        if name := self._pipeline.dead_letters:
            ranges = self._by_source(claimed.ranges)
            outputs[str(name)] = self._bad.letters(
                outputs.get(str(name)), lambda source: self._undecoded(source, ranges[source]), self._once
            )
        if not has_data(claimed.ranges):
            return {name: rows.limit(0) for name, rows in outputs.items()}
        return {name: text.checked(rows, name) for name, rows in outputs.items()}

    def _suited(self, outputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The gate's suites are about columns that are there: refused before any row is written."""
        if self._pipeline.gate:
            self._parts.inspector(self._pipeline).check_outputs(outputs)
        return outputs

    def _read(self, name: str, ranges: Ranges) -> Any:
        source, counts = self._source(name), self._pipeline.counts_bad
        if self._bad.judges(name):
            return self._bad.good(name, self._once(_judging(source).judged(self._spark, ranges)))
        batch = source.read(self._spark, ranges)
        if counts or len(self._pipeline.sinks) > 1:
            batch = self._once(batch)  # each sink runs a job of its own: the source is read once for all
        if counts:
            self._bad.read(name, batch)
        return batch

    def _once(self, batch: Any) -> Any:
        self._held.append(batch.persist())
        return self._held[-1]

    def _undecoded(self, name: str, ranges: Ranges) -> Any:
        source = self._source(name)
        return source.undecoded(self._spark, ranges) if isinstance(source, Judges) else None

    def diagnose(self, error: Exception, ranges: Ranges) -> Exception:
        """The error in the terms of the topic that it comes from, where one is found."""
        for name, mine in self._by_source(ranges).items() if self._spark else ():
            told = self._source(name).diagnose(error, self._spark, mine)
            if told is not error:
                return told
        return error

    def end(self) -> None:
        self._until_end.close()
        for batch in self._held:
            batch.unpersist()


def _time_of(checkpoint: Checkpoint) -> datetime:
    """The time that the rows of a checkpoint are compared with: as pinned, so that it is the same for each attempt."""
    return checkpoint.interval.end if checkpoint.interval else checkpoint.planned_at


def _judging(source: Source) -> Judges:
    assert isinstance(source, Judges)  # what a definition can ask for, its source is able to do
    return source


def _check_same(seen: Checkpoint, claimed: Checkpoint) -> None:
    """Its transform was loaded before it was claimed, so that one that does not load leaves no attempt."""
    if claimed.definition != seen.definition:
        raise NotCommitted(
            f"{claimed.pipeline} epoch {claimed.epoch} could not be staged.",
            "It was planned again meanwhile, with another definition.",
            "Retry the stage: it takes the new one. Nothing was written.",
        )


def _of_text(error: Exception) -> OnceonlyError | None:
    """Of rows whose text no sink may write, whichever sink has met it."""
    from onceonly.spark import text

    return text.explained(error)


def _explained(error: Exception, checkpoint: Checkpoint, settings: Settings) -> OnceonlyError:
    if isinstance(error, OnceonlyError):
        return error
    if told := stores.missing(error, f"{checkpoint.pipeline} epoch {checkpoint.epoch} could not be staged."):
        return told
    code, todo = faults.classify(str(error))
    return NotCommitted(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch} could not be staged.",
        error_site.explained(error, transforms.folders(settings)),
        todo,
        code=code,
    )

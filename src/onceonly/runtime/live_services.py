"""Live services from plain definitions: readers, sinks and registries of a pipeline, and coordinators on them.

They are asked two things without a coordinator: whether a pipeline can run, and how far it is behind its sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from onceonly.checkpoint.interfaces import Source
from onceonly.checkpoint.model import Checkpoint, Row
from onceonly.checkpoint.offsets import (
    KAFKA,
    NO_OFFSETS,
    Offsets,
    TopicLog,
    TopicRange,
    by_partition,
    find_range,
    require_same_topic,
)
from onceonly.checkpoint.sink import Sink
from onceonly.checkpoint.sources import Sources
from onceonly.coordinator.boundaries import require_end_of_each
from onceonly.coordinator.coordinator import Coordinator
from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.kafka import airflow_connections
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.registry.client import Registry, RegistryConnection
from onceonly.pipeline.definition import AnySource, Pipeline, find_source
from onceonly.pipeline.requirements import list_named_tables, place_tables
from onceonly.pipeline.sources import DeltaSource, FileSource, KafkaSource, SourceConfig
from onceonly.runtime import transforms
from onceonly.settings import Settings
from onceonly.sinks.context import Context, open_sink
from onceonly.sinks.staging.checked_sink import with_checked_handles
from onceonly.sources.files import FileReader
from onceonly.sources.kafka import KafkaReader
from onceonly.spark import catalog
from onceonly.statetable import location
from onceonly.statetable.table import Notify, StateTable
from onceonly.storage import write_probe
from onceonly.views.summary import Lag, Summary
from onceonly.waits import wait_for

if TYPE_CHECKING:
    from onceonly.gate.inspector import LiveInspector

MAX_TOPICS_IN_NOTE = 10  # of a pattern
MAX_CONCURRENT_SOURCES = 4  # that are asked for their lag


@dataclass
class LiveServices:
    """Sinks and sources on real services. Spark starts only when something asks for it.

    Args:
        connections: finds the Airflow connections that a pipeline names; by default in the environment.
    """

    settings: Settings = field(default_factory=Settings.from_env)
    connections: airflow_connections.Lookup = airflow_connections.read_variable

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        config = pipeline.sink(name)
        return with_checked_handles(open_sink(config, self._context(pipeline)), config.kind)

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
        if isinstance(config, KafkaSource):
            return self._kafka_reader(config).topics()
        return [config.topic]

    def inspector(self, pipeline: Pipeline) -> LiveInspector:
        from onceonly.gate.inspector import LiveInspector  # not every pipeline has a gate

        settings = self.settings
        return LiveInspector(
            pipeline, lambda name: self.sink(pipeline, name), settings.project, settings.docs, self.spark
        )

    def _context(self, pipeline: Pipeline) -> Context:
        return Context(pipeline, self.settings, self.connections, self.kafka, self.spark, self.registry)

    def kafka(self, connection: str | None, bootstrap: str | None) -> KafkaConnection:
        """Return how to reach the brokers: the connection of that name, else bare addresses.

        Raises:
            InvalidPipeline: no such connection, or one that cannot be used; or no addresses at all.
        """
        if connection is None:
            return KafkaConnection.plaintext(self.settings.brokers(bootstrap))
        return KafkaConnection.parse(self.connections(connection), connection)

    def registry(self, connection: str | None) -> Registry | None:
        """Return the schema registry of the connection of that name. It is not asked anything yet.

        Raises:
            InvalidPipeline: no such connection, or one that cannot be used.
        """
        if connection is None:
            return None
        try:
            settings = self.connections(connection)
        except InvalidPipeline as error:
            if error.code != "connection-missing":
                raise
            raise airflow_connections.missing_connection_error(connection, error.why, "registry") from error
        return Registry(RegistryConnection.parse(settings, connection))

    def spark(self, records: int | None = None) -> Any:
        """Return a session, started if there is none; `records`: how many it is for, where that is known."""
        from onceonly.spark.session import session

        return session(self.settings, records=records)


def open_coordinator(services: LiveServices, log: Notify | None = None) -> Coordinator:
    """Return a coordinator on the state table and services that the settings name.

    Args:
        log: called after each recorded transition, before the function that ONCEONLY_NOTIFY names.
    """
    settings = services.settings
    hooks: list[Callable[..., None]] = []
    if log:
        hooks.append(log)
    if settings.notify:
        hooks.append(transforms.load(settings.notify, settings))

    def notify(checkpoint: Checkpoint, row: Row) -> None:
        for hook in hooks:
            hook(checkpoint, row)

    return Coordinator(StateTable(settings.state), services, notify)


def open_planner(services: LiveServices, log: Notify | None = None) -> Coordinator:
    """Return a coordinator for a plan, which is the only step that makes a state table: the embedded one.

    Raises:
        NotCommitted: nothing could be recorded in the state table.
    """
    if services.settings.embedded:
        location.make(services.settings.state)
    location.check_writable(services.settings.state)
    return open_coordinator(services, log)


def locate_tables(pipeline: Pipeline, services: LiveServices) -> Pipeline:
    """Return the pipeline on the tables that its names mean now. Without names, nothing is asked.

    Raises:
        InvalidPipeline, NotCommitted: see `spark.catalog.find`.
    """
    names = list_named_tables(pipeline)
    if not names:
        return pipeline
    return place_tables(pipeline, catalog.find(services.spark(), names))


def check_pipeline(pipeline: Pipeline, services: LiveServices) -> list[str]:
    """Check everything that can be known before any work, and return notes for people; writes nothing."""
    transforms.load(pipeline.transform, services.settings)
    sources = services.sources(pipeline)
    notes = []
    for source in pipeline.sources:
        if source.topic_pattern:
            notes.append(f"'{source.input_name}' matches {_describe_matches(source, list(sources))}")
    for source in pipeline.sources:
        notes += sources[source.input_name].check()
        if isinstance(source.ends, Mapping):
            require_end_of_each(source.ends, sources[source.input_name].log(), pipeline.name)
    for sink in pipeline.sinks:
        notes += services.sink(pipeline, sink.name).check()
    if pipeline.gate:
        notes += services.inspector(pipeline).check()
    return notes


def check_written_folders(pipeline: Pipeline, services: LiveServices) -> list[str]:
    """Try to write where plan, stage and commit will, and return a note; nothing stays there.

    Raises:
        InvalidPipeline, NotCommitted: this user cannot write to one of the folders.
    """
    settings = services.settings
    location.check_place(settings.state, pipeline.name)
    folders = []
    for config in pipeline.sinks:
        folders += services.sink(pipeline, config.name).list_written_folders()  # a path may be that of a file
    if pipeline.gate:
        folders.append(settings.docs)
    for folder in dict.fromkeys(folders):
        write_probe.require_writable(folder, settings.webhdfs)
    return [f"this user can write to {', '.join([settings.state, *dict.fromkeys(folders)])}"]


def _describe_matches(source: SourceConfig, topics: list[str]) -> str:
    """Return '2 topics: a, b': those of the topics that a pattern matches."""
    matches = [topic for topic in topics if source.reads(topic)]
    ellipsis = ", …" if len(matches) > MAX_TOPICS_IN_NOTE else ""
    return f"{count(len(matches), 'topic')}: {', '.join(matches[:MAX_TOPICS_IN_NOTE])}{ellipsis}"


def measure_lags(
    services: LiveServices, summaries: Iterable[Summary], timeout_seconds: float | None = None
) -> dict[str, Lag]:
    """Return by name the lags of those pipelines whose sources answer in time; without a time-out, of all."""
    pool = ThreadPoolExecutor(MAX_CONCURRENT_SOURCES)
    futures = {summary.name: pool.submit(partial(measure_lag, services, summary)) for summary in summaries}
    with wait_for("the sources of the pipelines"):
        wait(futures.values(), timeout=timeout_seconds)
    pool.shutdown(wait=False, cancel_futures=True)
    lags = {}
    for name, future in futures.items():
        if future.done() and not future.cancelled():
            lags[name] = future.result()
    return lags


def measure_lag(services: LiveServices, summary: Summary) -> Lag:
    """Return how far a pipeline is behind. Asks the sources once; whatever they fail with is the answer."""
    try:
        sources = services.sources(summary.latest.definition.pipeline)
        logs = [source.log() for source in sources.values()]
        readable, hidden = _count_uncovered([log for log in logs if log.kind == KAFKA], summary)
        versions = sum(_count_uncovered([log for log in logs if log.kind != KAFKA], summary))
    except Exception as error:
        return Lag(error=str(error))
    since = summary.complete_until
    if since is None and summary.gaps:
        since = summary.gaps[0].start
    return Lag(readable + hidden, since, summary.gaps, versions=versions, blocked_records=hidden)


def _count_uncovered(logs: Iterable[TopicLog], summary: Summary) -> tuple[int, int]:
    """Count the offsets that no committed checkpoint covers: what can be read, and what open transactions hide."""
    readable = hidden = 0
    for log in logs:
        ends: Mapping[int, int] = {}
        covered = None
        if summary.furthest_commit:
            covered = find_range(summary.furthest_commit.ranges, log.topic)
        if covered:
            require_same_topic(covered.topic_id, log, "the last committed checkpoint")
            ends = covered.ends
        limits = _find_limits(summary, log.topic, covered)
        for partition, (start, stable) in log.partitions.items():
            next_offset, limit = max(start, ends.get(partition, 0)), limits.get(partition)
            if limit is None or limit > stable:
                hidden += log.hidden_offsets.get(partition, 0)
                limit = stable
            readable += max(0, limit - next_offset)
    return readable, hidden


def _find_limits(summary: Summary, topic: str, covered: TopicRange | None) -> Offsets:
    """Return the offsets at which reading of the topic ends for good, by partition, as far as they are known."""
    source = find_source(summary.latest.definition.pipeline, topic)
    if source is None or source.ends is None:
        return NO_OFFSETS
    if isinstance(source.ends, Mapping):
        return by_partition(source.ends)
    return covered.limits if covered else NO_OFFSETS

"""From plain definitions to live parts: the only module that knows which sink or source is which class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onceonly import transforms
from onceonly.checkpoint import Checkpoint, Row
from onceonly.coordinator import Coordinator, Notify
from onceonly.errors import InvalidPipeline, NotCommitted, OnceonlyError
from onceonly.pipeline import Pipeline
from onceonly.protocols import Sink, Source
from onceonly.settings import Settings
from onceonly.sinks.delta import DeltaWriter
from onceonly.sources.kafka import KafkaReader
from onceonly.state import StateTable


@dataclass
class LiveParts:
    """Sinks and sources on real services. Spark starts only when something asks for it."""

    settings: Settings = field(default_factory=Settings.from_env)

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        config = pipeline.sink(name)
        return DeltaWriter(config, self.settings.locate(config.path), self.spark)

    def source(self, pipeline: Pipeline) -> Source:
        brokers = self.settings.brokers(pipeline.source.bootstrap)
        return KafkaReader(pipeline.source, brokers, self.settings.project)

    def spark(self) -> Any:
        from onceonly.spark.session import session

        return session(self.settings)


def coordinator(parts: LiveParts, log: Notify | None = None) -> Coordinator:
    """A coordinator on the state table and services that the settings name.

    Args:
        log: called after each recorded transition, before the function that ONCEONLY_NOTIFY names.
    """
    settings = parts.settings
    hooks: list[Callable[..., None]] = [log] if log else []
    if settings.notify:
        hooks.append(transforms.load(settings.notify, settings.project))

    def notify(checkpoint: Checkpoint, row: Row) -> None:
        for hook in hooks:
            hook(checkpoint, row)

    return Coordinator(StateTable(settings.state), parts, notify)


def check(pipeline: Pipeline, parts: LiveParts) -> list[str]:
    """Everything that can be known before any work, for people; writes nothing."""
    transforms.load(pipeline.transform, parts.settings.project)
    notes = parts.source(pipeline).check()
    for sink in pipeline.sinks:
        notes += parts.sink(pipeline, sink.name).check()
    return notes


def stage(parts: LiveParts, through: Coordinator, name: str, epoch: int, owner: str | None) -> Checkpoint:
    """Stage one checkpoint on Spark.

    Raises:
        NotCommitted: also for errors of Spark that nobody classified: staging publishes nothing.
    """
    checkpoint = through.state.view(name).checkpoint(epoch)
    if checkpoint is None:
        raise InvalidPipeline(f"{name} has no epoch {epoch}.", todo="See what there is: onceonly status")
    pipeline = Pipeline.from_json(checkpoint.definition)
    transform = transforms.load(pipeline.transform, parts.settings.project)
    source = parts.source(pipeline)

    def produce(claimed: Checkpoint) -> Mapping[str, Any]:
        return transforms.outputs(pipeline, transform(source.read(parts.spark(), claimed.ranges)))

    try:
        return through.stage(name, epoch, produce, owner)
    except OnceonlyError:
        raise
    except Exception as error:
        raise _explained(source.diagnose(error, parts.spark(), checkpoint.ranges), checkpoint) from error


def _explained(error: Exception, checkpoint: Checkpoint) -> OnceonlyError:
    if isinstance(error, OnceonlyError):
        return error
    first_line = (str(error).splitlines() or [""])[0][:500]
    return NotCommitted(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch} could not be staged.",
        f"{type(error).__name__}: {first_line}",
        "Nothing was published and what was written is removed. Mend the cause and retry the stage.",
    )

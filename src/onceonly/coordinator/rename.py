"""A pipeline's name is its identity: under a new name it would read everything again, into the same targets."""

from __future__ import annotations

from collections.abc import Mapping

from onceonly.checkpoint.interfaces import Source
from onceonly.checkpoint.model import canonical
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import AnySink, KafkaSink, StateSink
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View


def refuse_renamed(state: StateTable, seen: View, pipeline: Pipeline, sources: Mapping[str, Source]) -> None:
    """Refuse the first checkpoint of what another pipeline of this state table has been doing.

    Raises:
        InvalidPipeline: one of another name reads the same topics, transforms them alike, and writes to the same place.
    """
    if seen.head.epoch:
        return
    for name in state.pipelines():
        latest = state.view(name).latest if name != pipeline.name else None
        other = Pipeline.from_json(latest.definition) if latest else None
        if latest is None or other is None or _does(other) != _does(pipeline):
            continue
        shared = _targets(other) & _targets(pipeline)
        if shared and all(sources[read.topic].log().topic_id == read.topic_id for read in latest.ranges):
            raise InvalidPipeline(
                f"{pipeline.name}: it has no checkpoint yet, and does what '{name}' has done so far.",
                f"Both read {[source.topic for source in pipeline.sources]} through {pipeline.transform} into "
                f"{', '.join(sorted(shared))}. Was '{name}' renamed? What it published would be published again.",
                f"Keep name='{name}' (a DAG may be called otherwise: dag_id=…), or name new targets. "
                "Nothing was written.",
            )


def _does(pipeline: Pipeline) -> str:
    topics = sorted((source.topic, source.connection or source.bootstrap or "") for source in pipeline.sources)
    return canonical([topics, pipeline.transform, pipeline.mode])


def _targets(pipeline: Pipeline) -> set[str]:
    return {target for sink in pipeline.sinks for target in _places(sink)}


def _places(sink: AnySink) -> list[str]:
    if isinstance(sink, StateSink):
        return []
    return [f"topic '{topic}'" for topic in sink.allowed] if isinstance(sink, KafkaSink) else [f"'{sink.path}'"]

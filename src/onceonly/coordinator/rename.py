"""A pipeline's name is its identity: under a new name it would read everything again, into the same targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceonly.checkpoint.interfaces import Source
from onceonly.checkpoint.model import canonical
from onceonly.checkpoint.offsets import Ranges
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View


def refuse_renamed(state: StateTable, view: View, pipeline: Pipeline, sources: Mapping[str, Source]) -> None:
    """Refuse the first checkpoint of what another pipeline of this state table has been doing.

    Raises:
        InvalidPipeline: one of another name reads the same topics, transforms them alike, and writes to the same place.
    """
    if view.head.epoch:
        return
    for name in state.pipelines():
        latest = state.view(name).latest if name != pipeline.name else None
        if latest is None or _describe_work(latest.definition) != _describe_work(pipeline.to_json()):
            continue
        old = Pipeline.from_json(latest.definition)
        shared = _targets_with_duplicates(old) & _targets_with_duplicates(pipeline)
        if shared and _reads_same_logs(old, pipeline, latest.ranges, sources):
            raise InvalidPipeline(
                f"{pipeline.name}: it has no checkpoint yet, and does what '{name}' has done so far.",
                f"Both read {[source.input_name for source in pipeline.sources]} through {pipeline.transform} into "
                f"{', '.join(sorted(shared))}. Was '{name}' renamed? What it published would be published again.",
                f"Keep name='{name}' (a DAG may be called otherwise: dag_id=…), or name new targets. "
                "Nothing was written.",
            )


def _describe_work(definition: Mapping[str, Any]) -> str:
    """Write what a pipeline reads and does, so that pipelines can be compared by it.

    Its sinks are not read: of a pipeline that does something else, they need not be installed here.
    """
    try:
        return _describe_json(definition)
    except (KeyError, TypeError, AttributeError):
        return _describe_json(Pipeline.from_json(definition).to_json())  # says what is wrong with it


def _describe_json(definition: Mapping[str, Any]) -> str:
    source_json = definition["source"]
    sources = source_json if isinstance(source_json, list) else [source_json]
    places = sorted(map(_locate_source, sources))
    return canonical([places, definition["transform"], definition["mode"]])


def _locate_source(source: Mapping[str, Any]) -> tuple[str, str]:
    """Return what identifies a source: of a table or folder its path, of a topic its name and brokers.

    Defaults may be left out.
    """
    if "path" in source:
        return source["path"], source["kind"]
    brokers = source.get("connection") or source.get("bootstrap") or ""
    return source.get("topic_pattern") or source["topic"], brokers


def _topic_in(old: Pipeline, new: Pipeline, topic: str) -> str:
    """Return what the new pipeline calls what the old one has read: both may name the same table differently."""
    path = getattr(old.source_of(topic), "path", None)
    if path:
        for source in new.sources:
            if getattr(source, "path", None) == path:
                return source.topic
    return topic


def _reads_same_logs(old: Pipeline, new: Pipeline, ranges: Ranges, sources: Mapping[str, Source]) -> bool:
    """Whether the sources of the new pipeline are those of which the old one has read these ranges."""
    for range_ in ranges:
        source = sources[_topic_in(old, new, range_.topic)]
        if source.log().topic_id != range_.topic_id:
            return False
    return True


def _targets_with_duplicates(pipeline: Pipeline) -> set[str]:
    """Return the targets that would have rows twice: what is merged a second time has no effect."""
    targets: set[str] = set()
    for sink in pipeline.sinks:
        if not getattr(sink, "merge", None):
            targets.update(sink.targets())
    return targets

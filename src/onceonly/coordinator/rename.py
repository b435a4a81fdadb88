"""A pipeline's name is its identity: under a new name it would read everything again, into the same targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceonly.checkpoint.interfaces import Source
from onceonly.checkpoint.model import canonical
from onceonly.checkpoint.offsets import TopicRange
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
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
        if latest is None or _does(latest.definition) != _does(pipeline.to_json()):
            continue
        old = Pipeline.from_json(latest.definition)
        shared = _targets(old) & _targets(pipeline)
        if shared and all(_same(read, sources[_called(old, pipeline, read.topic)]) for read in latest.ranges):
            raise InvalidPipeline(
                f"{pipeline.name}: it has no checkpoint yet, and does what '{name}' has done so far.",
                f"Both read {[source.called for source in pipeline.sources]} through {pipeline.transform} into "
                f"{', '.join(sorted(shared))}. Was '{name}' renamed? What it published would be published again.",
                f"Keep name='{name}' (a DAG may be called otherwise: dag_id=…), or name new targets. "
                "Nothing was written.",
            )


def _does(definition: Mapping[str, Any]) -> str:
    """Read without its sinks: of a pipeline that does something else, they need not be installed here."""
    try:
        return _what(definition)
    except (KeyError, TypeError, AttributeError):
        return _what(Pipeline.from_json(definition).to_json())  # says what is wrong with it


def _what(definition: Mapping[str, Any]) -> str:
    read = definition["source"]
    sources = read if isinstance(read, list) else [read]
    return canonical([sorted(_place(each) for each in sources), definition["transform"], definition["mode"]])


def _place(source: Mapping[str, Any]) -> tuple[str, str]:
    """A table or folder is identified by its path, a topic by its name and brokers. Defaults may be left out."""
    if "path" in source:
        return source["path"], source["kind"]
    brokers = source.get("connection") or source.get("bootstrap") or ""
    return source.get("topic_pattern") or source["topic"], brokers


def _called(old: Pipeline, new: Pipeline, topic: str) -> str:
    """What the new pipeline calls what the old one has read: both may name the same table differently."""
    path = getattr(old.source_of(topic), "path", None)
    return next((each.topic for each in new.sources if path and getattr(each, "path", None) == path), topic)


def _same(read: TopicRange, source: Source) -> bool:
    return source.log().topic_id == read.topic_id


def _targets(pipeline: Pipeline) -> set[str]:
    """Those that would have rows twice: what is merged a second time has no effect."""
    return {target for sink in pipeline.sinks if not getattr(sink, "merge", None) for target in sink.targets()}

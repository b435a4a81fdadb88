"""A pipeline's name is its identity: under a new name it would read everything again, into the same targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceonly.checkpoint.interfaces import Source
from onceonly.checkpoint.model import canonical
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
        shared = _targets(Pipeline.from_json(latest.definition)) & _targets(pipeline)
        if shared and all(sources[read.topic].log().topic_id == read.topic_id for read in latest.ranges):
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
        read = definition["source"]
        sources = read if isinstance(read, list) else [read]
        topics = sorted(_place(each) for each in sources)
        return canonical([topics, definition["transform"], definition["mode"]])
    except (KeyError, TypeError):
        return _does(Pipeline.from_json(definition).to_json())  # says what is wrong with it


def _place(source: Mapping[str, Any]) -> tuple[str, str]:
    """A table or folder is told by its path, a topic by its name and brokers."""
    if "path" in source:
        return source["path"], source["kind"]
    return source.get("topic_pattern") or source["topic"], source["connection"] or source["bootstrap"] or ""


def _targets(pipeline: Pipeline) -> set[str]:
    """Those that would have rows twice: what is merged a second time has no effect."""
    return {target for sink in pipeline.sinks if not getattr(sink, "merge", None) for target in sink.targets()}

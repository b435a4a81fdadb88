"""What upstream pipelines have to be like to be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.statetable.table import StateTable


class Tables(Protocol):
    """The tables of one upstream pipeline that are read, with the sinks that write them."""

    name: str
    sink_by_topic: dict[str, str]


def refuse_circle(state_table: StateTable, pipeline: Pipeline) -> None:
    """Refuse a pipeline that comes after itself: each would wait for the other."""
    paths = [[name] for name in pipeline.after]
    visited: set[str] = set()
    while paths:
        path = paths.pop()
        name = path[-1]
        if name == pipeline.name:
            raise InvalidPipeline(
                f"{pipeline.name}: it comes after itself.",
                f"It is after {' after '.join(map(repr, path))}.",
                "Remove one of these from after. Nothing was written.",
                code="upstream-circle",
            )
        if name in visited:
            continue
        visited.add(name)
        latest = state_table.view(name).latest
        if latest:
            for before in latest.definition.upstreams:
                paths.append([*path, before])


def refuse_shared(pipeline: Pipeline, upstreams: Iterable[Tables]) -> None:
    """Refuse a table with two writers among them: a version of the one may have rows of any checkpoint of the other."""
    writers: dict[str, list[str]] = {}
    for upstream in upstreams:
        for topic in upstream.sink_by_topic:
            writers.setdefault(topic, []).append(upstream.name)
    for topic, names in writers.items():
        if len(names) > 1:
            raise InvalidPipeline(
                f"{pipeline.name}: it cannot be after {names} at once.",
                f"All of them write table '{topic}', and their checkpoints end at different places in it.",
                "Name one of them, or none. Nothing was written.",
                code="upstreams-share-table",
            )


def unknown_pipeline_error(state_table: StateTable, reader: Pipeline, name: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{reader.name}: it is after '{name}', which is not known.",
        f"The pipelines of the state table at {state_table.uri} are {state_table.pipelines()}.",
        f"Run '{name}' first, with the same state table: onceonly run OTHER_FILE.py:NAME. Or correct "
        "Pipeline(after=…). Nothing was "
        "written.",
        code="upstream-missing",
    )


def unrelated_error(reader: Pipeline, name: str, sinks: Iterable[SinkConfig]) -> InvalidPipeline:
    written: set[str] = set()
    for sink in sinks:
        written.update(sink.asset_uris())
    written_names = ", ".join(sorted(written)) or "none"
    return InvalidPipeline(
        f"{reader.name}: it is after '{name}', and reads none of its tables.",
        f"It reads {', '.join(sorted(reader.tables.values()))}; '{name}' writes {written_names}.",
        "Read a table that it writes, by the same path, or remove it from after. Nothing was written.",
        code="upstream-unrelated",
    )

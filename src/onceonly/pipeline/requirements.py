"""What a pipeline requires around it: connections, tables that catalogs name, ids, and a commit that comes in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onceonly.pipeline.catalogs import CatalogTable
from onceonly.pipeline.definition import Pipeline

BROKERS = "kafka"  # the kind of sources and sinks whose connection is one to brokers


def list_connection_ids(pipeline: Pipeline) -> set[str]:
    """Return the ids of the Airflow connections of its sources and sinks."""
    return _values_of(pipeline, "connection") | list_registry_ids(pipeline)


def list_broker_ids(pipeline: Pipeline) -> set[str]:
    """Return the ids of those connections that are of brokers. A sink of another package knows what its own is."""
    ids = set()
    for part in (*pipeline.sources, *pipeline.sinks):
        connection = getattr(part, "connection", None)
        if part.kind == BROKERS and connection:
            ids.add(connection)
    return ids


def list_registry_ids(pipeline: Pipeline) -> set[str]:
    """Return the ids of those connections that are of schema registries."""
    return _values_of(pipeline, "registry")


def list_named_tables(pipeline: Pipeline) -> set[str]:
    """Return the names that a catalog has to be asked for."""
    names = set()
    for part in (*pipeline.sources, *pipeline.sinks):
        name = find_named_table(part)
        if name:
            names.add(name)
    return names


def find_named_table(part: Any) -> str | None:
    """Return the name by which a source or sink is to be found in a Spark catalog; None: it has none.

    What a sink of another package calls a table is its own: only ours keep the id of the one that was found.
    """
    if not hasattr(part, "table_id"):
        return None
    name: str | None = part.table
    return name


def place_tables(pipeline: Pipeline, tables: Mapping[str, CatalogTable]) -> Pipeline:
    """Return the same pipeline on the tables that were found by their names: all of `list_named_tables`."""

    def place(part: Any) -> Any:
        table = tables.get(find_named_table(part) or "")
        if not table:
            return part
        return replace(part, path=table.path, table_id=table.table_id)

    sources = tuple(map(place, pipeline.sources))
    source = sources if isinstance(pipeline.source, tuple) else sources[0]
    return replace(pipeline, source=source, sinks=list(map(place, pipeline.sinks)))


def count_slots(pipeline: Pipeline) -> int | None:
    """Return for how many attempts its pools of transactional ids have slots; None if it has no pool."""
    sizes: list[int] = []
    for sink in pipeline.sinks:
        slots = sink.slots()
        if slots is not None:
            sizes.append(slots)
    return min(sizes, default=None)


def check_commits(pipeline: Pipeline, within: float) -> None:
    """Refuse sinks whose staged rows would expire before a commit that follows within that many seconds."""
    for sink in pipeline.sinks:
        sink.check_commits(within, pipeline.mode)


def _values_of(pipeline: Pipeline, field: str) -> set[str]:
    """Return what sources and sinks have in that field, without those that have nothing in it."""
    values: set[str] = set()
    for part in (*pipeline.sources, *pipeline.sinks):
        value = getattr(part, field, None)
        if value:
            values.add(value)
    return values

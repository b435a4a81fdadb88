"""The datasets that a checkpoint reads and writes, named as catalogs of lineage know them.

Source: OpenLineage's spec, "Naming Conventions". Spark's own events name tables and topics the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import TopicRange
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.pipeline.sinks import KafkaSink
from onceonly.pipeline.tables import Stored

if TYPE_CHECKING:
    from onceonly.runtime.factory import LiveParts

FILES, BELOW_HOME, BUCKETS = "file", "onceonly://", {"s3": "s3", "s3a": "s3", "gs": "gs"}
Fields = tuple[tuple[str, str], ...]  # (name, type), as far as they are known


@dataclass(frozen=True)
class Dataset:
    namespace: str
    name: str


@dataclass(frozen=True)
class Read(Dataset):
    """What was read of it."""

    range: TopicRange


@dataclass(frozen=True)
class Written(Dataset):
    """What was published there; None where the sink does not count it, or not for this part of its output."""

    sink: str
    rows: int | None = None
    bytes: int | None = None
    files: int | None = None
    fields: Fields = ()


def read(parts: LiveParts, checkpoint: Checkpoint) -> Iterator[Read]:
    """By topic, table and folder."""
    pipeline = Pipeline.from_json(checkpoint.definition)
    for range_ in checkpoint.ranges:
        source = pipeline.source_of(range_.topic)
        if isinstance(source, Stored):
            yield Read(*_place(parts.settings.locate(source.path)), range_)
        elif source:
            yield Read(_brokers(parts, source), range_.topic, range_)


def written(parts: LiveParts, checkpoint: Checkpoint) -> Iterator[Written]:
    """What it has published, sink by sink; no application state, and nothing of a sink that was given up."""
    pipeline = Pipeline.from_json(checkpoint.definition)
    for name in checkpoint.published:
        config, handle = pipeline.sink(name), checkpoint.handles[name]
        if "topics" in handle:
            yield from _topics(parts, config, handle)
        elif uris := _uris(config, handle):
            counted = _counted(handle, len(uris))
            places = _places(parts, uris)
            yield from (Written(*place, name, *counted, _columns(handle)) for place in places)


def aimed_at(parts: LiveParts, checkpoint: Checkpoint) -> Iterator[Written]:
    """What it would publish or would have published, by the same names; nothing is read, so nothing is counted."""
    for config in Pipeline.from_json(checkpoint.definition).sinks:
        handle = checkpoint.handles.get(config.name, {})
        if topics := handle.get("topics") or (config.allowed if isinstance(config, KafkaSink) else ()):
            yield from (Written(_brokers(parts, config), topic, config.name) for topic in topics)
        else:
            yield from (Written(*place, config.name) for place in _places(parts, _uris(config, handle)))


def _topics(parts: LiveParts, config: SinkConfig, handle: Mapping[str, Any]) -> Iterator[Written]:
    topics = list(handle["topics"])
    counted = _counted(handle, len(topics))
    fields = _avro_fields(parts, config)
    yield from (Written(_brokers(parts, config), topic, config.name, *counted, fields) for topic in topics)


def _uris(config: SinkConfig, handle: Mapping[str, Any]) -> tuple[str, ...]:
    place = handle.get("uri") or handle.get("target")
    return config.asset_uris() and ((str(place),) if place else config.asset_uris())


def _places(parts: LiveParts, uris: Iterable[str]) -> Iterator[tuple[str, str]]:
    return (_place(parts.settings.locate(uri.removeprefix(BELOW_HOME))) for uri in uris)


def _counted(handle: Mapping[str, Any], among: int) -> tuple[int | None, int | None, int | None]:
    """Rows, bytes and files; of several places it is not known how many went to which."""
    files = handle.get("files")
    number = files if isinstance(files, int) else None if files is None else len(files)
    return (handle.get("rows"), handle.get("bytes"), number) if among == 1 else (None, None, None)


def _brokers(parts: LiveParts, config: Any) -> str:
    """The first address stands for the cluster."""
    return f"kafka://{parts.kafka(config.connection, config.bootstrap).bootstrap.split(',')[0].strip()}"


def _place(uri: str) -> tuple[str, str]:
    found = urlsplit(uri)
    if found.scheme in ("", FILES):
        return FILES, found.path.rstrip("/")
    user, _, host = found.netloc.rpartition("@")
    where = host if ":" in user else found.netloc  # without a password; a container of Azure stays
    if found.scheme in BUCKETS:
        return f"{BUCKETS[found.scheme]}://{where}", found.path.strip("/")
    return f"{found.scheme}://{where}", found.path.rstrip("/")


def _columns(handle: Mapping[str, Any]) -> Fields:
    """Of a Delta table, as it is now; none where they cannot be read."""
    from deltalake import DeltaTable

    if handle.get("kind") != "delta":
        return ()
    with suppress(Exception):
        fields = json.loads(DeltaTable(str(handle["uri"])).schema().to_json())["fields"]
        return tuple((each["name"], _type(each["type"])) for each in fields)
    return ()


def _avro_fields(parts: LiveParts, config: SinkConfig) -> Fields:
    file = str(getattr(config, "schema", None) or "")
    if not file.endswith(".avsc"):
        return ()
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((parts.settings.project / file).read_text())
        return tuple((str(each["name"]), _type(each["type"])) for each in found["fields"])
    return ()


def _type(found: Any) -> str:
    return found if isinstance(found, str) else json.dumps(found)

"""The datasets that a checkpoint reads and writes, named as catalogs of lineage know them.

Source: OpenLineage's spec, "Naming Conventions". Spark's own events name tables and topics the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import TopicRange
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.pipeline.sinks import KafkaSink
from onceonly.pipeline.sources import Stored

if TYPE_CHECKING:
    from onceonly.runtime.live_services import LiveServices


FILES, BELOW_HOME, BUCKETS = "file", "onceonly://", {"s3": "s3", "s3a": "s3", "gs": "gs"}
Fields = tuple[tuple[str, str], ...]  # (name, type), as far as they are known


@dataclass(frozen=True)
class Dataset:
    """A topic, table or folder."""

    namespace: str
    name: str


@dataclass(frozen=True)
class InputDataset(Dataset):
    """A dataset that was read, and the range that was read of it."""

    range: TopicRange


@dataclass(frozen=True)
class OutputDataset(Dataset):
    """A dataset with what was published there; None where the sink does not count it for this part of its output."""

    sink: str
    rows: int | None = None
    bytes: int | None = None
    files: int | None = None
    fields: Fields = ()


def list_inputs(services: LiveServices, checkpoint: Checkpoint) -> Iterator[InputDataset]:
    """Yield what the checkpoint reads: topics, tables and folders, with the range of each."""
    pipeline = Pipeline.from_json(checkpoint.definition)
    for range_ in checkpoint.ranges:
        source = pipeline.source_of(range_.topic)
        if isinstance(source, Stored):
            yield InputDataset(*_split_uri(services.settings.locate(source.path)), range_)
        elif source:
            yield InputDataset(_brokers_namespace(services, source), range_.topic, range_)


def list_outputs(services: LiveServices, checkpoint: Checkpoint) -> Iterator[OutputDataset]:
    """Yield what it has published, sink by sink; no application state, and nothing of a sink that was given up."""
    pipeline = Pipeline.from_json(checkpoint.definition)
    for name in checkpoint.published:
        config, handle = pipeline.sink(name), checkpoint.handles[name]
        if "topics" in handle:
            yield from _written_topics(services, config, handle)
        else:
            yield from _written_places(services, config, handle)


def list_intended_outputs(services: LiveServices, checkpoint: Checkpoint) -> Iterator[OutputDataset]:
    """Yield what it would publish or would have published, by the same names.

    Nothing is read, so nothing is counted.
    """
    for config in Pipeline.from_json(checkpoint.definition).sinks:
        handle = checkpoint.handles.get(config.name, {})
        allowed_topics = config.allowed_topics if isinstance(config, KafkaSink) else ()
        topics = handle.get("topics") or allowed_topics
        if topics:
            for topic in topics:
                yield OutputDataset(_brokers_namespace(services, config), topic, config.name)
        else:
            for uri in _uris(config, handle):
                yield OutputDataset(*_name_place(services, uri), config.name)


def _written_topics(services: LiveServices, config: SinkConfig, handle: Mapping[str, Any]) -> Iterator[OutputDataset]:
    topics = list(handle["topics"])
    counts = _counts(handle, len(topics))
    fields = _avro_fields(services, config)
    for topic in topics:
        yield OutputDataset(_brokers_namespace(services, config), topic, config.name, *counts, fields)


def _written_places(services: LiveServices, config: SinkConfig, handle: Mapping[str, Any]) -> Iterator[OutputDataset]:
    uris = _uris(config, handle)
    counts = _counts(handle, len(uris))
    for uri in uris:
        yield OutputDataset(*_name_place(services, uri), config.name, *counts, _delta_fields(handle))


def _uris(config: SinkConfig, handle: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where a sink's tables and folders are: as staged, if it was; none of a sink without assets."""
    uris = config.asset_uris()
    staged_uri = handle.get("uri") or handle.get("target")
    if uris and staged_uri:
        return (str(staged_uri),)
    return uris


def _name_place(services: LiveServices, uri: str) -> tuple[str, str]:
    return _split_uri(services.settings.locate(uri.removeprefix(BELOW_HOME)))


def _counts(handle: Mapping[str, Any], place_count: int) -> tuple[int | None, int | None, int | None]:
    """Return rows, bytes and files; of several places it is not known how many went to which."""
    if place_count != 1:
        return None, None, None
    files = handle.get("files")
    if files is not None and not isinstance(files, int):
        files = len(files)
    return handle.get("rows"), handle.get("bytes"), files


def _brokers_namespace(services: LiveServices, config: Any) -> str:
    """Return kafka://host:port: the first address stands for the cluster."""
    return f"kafka://{services.kafka(config.connection, config.bootstrap).bootstrap.split(',')[0].strip()}"


def _split_uri(uri: str) -> tuple[str, str]:
    """Return the namespace and the name of the dataset at a path or URI."""
    parts = urlsplit(uri)
    if parts.scheme in ("", FILES):
        return FILES, parts.path.rstrip("/")
    user, _, host = parts.netloc.rpartition("@")
    authority = host if ":" in user else parts.netloc  # without a password; a container of Azure stays
    if parts.scheme in BUCKETS:
        return f"{BUCKETS[parts.scheme]}://{authority}", parts.path.strip("/")
    return f"{parts.scheme}://{authority}", parts.path.rstrip("/")


def _delta_fields(handle: Mapping[str, Any]) -> Fields:
    """Return the columns of a Delta table, as it is now; none where they cannot be read."""
    from deltalake import DeltaTable

    if handle.get("kind") != "delta":
        return ()
    with suppress(Exception):
        fields = json.loads(DeltaTable(str(handle["uri"])).schema().to_json())["fields"]
        return tuple((field["name"], _type_name(field["type"])) for field in fields)
    return ()


def _avro_fields(services: LiveServices, config: SinkConfig) -> Fields:
    """Return the fields of a sink's Avro schema file; none where there is none, or it cannot be read."""
    file = str(getattr(config, "schema", None) or "")
    if not file.endswith(".avsc"):
        return ()
    with suppress(OSError, ValueError, KeyError, TypeError):
        schema = json.loads((services.settings.project / file).read_text())
        return tuple((str(field["name"]), _type_name(field["type"])) for field in schema["fields"])
    return ()


def _type_name(type_: Any) -> str:
    """Return a type's name, or the JSON of one that has parts."""
    return type_ if isinstance(type_, str) else json.dumps(type_)

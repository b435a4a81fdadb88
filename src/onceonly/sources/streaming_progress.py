"""How far a Structured Streaming query has come, by the logs in its checkpoint folder. Nothing is changed there.

`offsets/N` is written before batch N runs: up to where it reads each source. `commits/N` is written once its sink has
returned. So there is at most one batch that is planned and not recorded as committed, and only the sink's target can
tell what became of it. `sources/S/0` has the offsets at which source S begins.
Source: Spark 4.2, `MicroBatchExecution`, `OffsetSeqLog`, `CommitLog`, `KafkaSourceInitialOffsetWriter`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from onceonly.checkpoint.earlier_job import OffsetsByTopic, PlannedBatch, StreamingProgress
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.storage.interface import FileSystem

OFFSETS, COMMITS, SOURCES = "offsets", "commits", "sources"
VERSION = "v1"  # of the offset log. v2 names its sources, and only queries that ask for it have it
COMMIT_VERSIONS = ("v1", "v2")
NO_OFFSET = "-"  # of a source that has none yet


class _Damaged(Exception):
    """A file is not what Structured Streaming writes."""


def read_progress(files: FileSystem, folder: str) -> StreamingProgress:
    """Read how far the query has come whose checkpoint folder this is.

    Args:
        folder: an absolute path or URI on these files.
    Raises:
        InvalidPipeline: it is not such a folder, or not whole; or the query has not read anything, or has planned
            more than one batch that is not recorded as committed.
        NotCommitted: it cannot be read.
    """
    try:
        return _read_progress(files, folder)
    except _Damaged as error:
        raise InvalidPipeline(
            f"{folder} is not the checkpoint folder of a Structured Streaming query.",
            f"{error}.",
            "Pass the folder that the query names as checkpointLocation. Nothing was written.",
            code="not-a-streaming-checkpoint",
        ) from error
    except OSError as error:
        raise NotCommitted(
            f"the checkpoint folder {folder} cannot be read.",
            f"{error}.",
            "Grant this user to read it, or work on a machine where it can be read. Nothing was written.",
            code="source-inaccessible",
        ) from error


def _read_progress(files: FileSystem, folder: str) -> StreamingProgress:
    query_id = _read_query_id(files, folder)
    committed = max(_list_batches(files, f"{folder}/{COMMITS}"), default=None)
    planned = max(_list_batches(files, f"{folder}/{OFFSETS}"), default=None)
    if planned is None:
        if committed is not None:
            raise _Damaged(f"{COMMITS}/{committed} is there, and {OFFSETS} is empty")
        raise _nothing_planned_error(folder)
    if committed is not None:
        _check_commit(files, folder, committed)
    if planned == committed:
        ends, other_sources = _read_offsets(files, folder, planned)
        return StreamingProgress(folder, query_id, committed, ends, None, other_sources)
    before = -1 if committed is None else committed
    if planned != before + 1:
        raise _unordered_error(folder, committed, planned)
    batch_ends, other_sources = _read_offsets(files, folder, planned)
    ends = _read_starts(files, folder) if committed is None else _read_offsets(files, folder, committed)[0]
    return StreamingProgress(folder, query_id, committed, ends, PlannedBatch(planned, batch_ends), other_sources)


def _read_query_id(files: FileSystem, folder: str) -> str:
    try:
        return str(json.loads(_read(files, folder, "metadata"))["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise _Damaged("Its file 'metadata' does not name a query") from error


def _list_batches(files: FileSystem, folder: str) -> list[int]:
    """List the numbers of the batches in a log. Files that are still being written have other names."""
    return [int(name) for name in files.list_names(folder) if name.isdecimal()]


def _check_commit(files: FileSystem, folder: str, batch: int) -> None:
    """Refuse an entry without content, which a power cut may leave: nobody knows whether the batch was committed."""
    name = f"{COMMITS}/{batch}"
    if _read(files, folder, name).split("\n")[0] not in COMMIT_VERSIONS:
        raise _Damaged(f"{name} is not an entry of a commit log")


def _read_offsets(files: FileSystem, folder: str, batch: int) -> tuple[OffsetsByTopic, int]:
    """Read up to where a batch reads: by topic and partition; and how many sources are no topics."""
    name = f"{OFFSETS}/{batch}"
    version, *rest = _read(files, folder, name).rstrip("\n").split("\n")
    if version != VERSION or len(rest) < 2:
        raise _Damaged(f"{name} is not an entry of an offset log of version {VERSION}")
    sources = [line for line in rest[1:] if line != NO_OFFSET]  # the first line is about the batch itself
    return _merge_topics(name, sources)


def _read_starts(files: FileSystem, folder: str) -> OffsetsByTopic:
    """Read the offsets at which the query begins, by topic and partition."""
    lines = []
    for source in sorted(files.list_names(f"{folder}/{SOURCES}")):
        if files.exists(f"{folder}/{SOURCES}/{source}/0"):
            text = _read(files, folder, f"{SOURCES}/{source}/0").lstrip("\0")  # Spark 2.1 wants the zero byte
            lines.append(text.rstrip("\n").split("\n")[-1])
    return _merge_topics(SOURCES, lines)[0]


def _merge_topics(name: str, lines: Iterable[str]) -> tuple[OffsetsByTopic, int]:
    topics: dict[str, dict[int, int]] = {}
    other_sources = 0
    for line in lines:
        offsets_by_topic = _parse_topics(line)
        if offsets_by_topic is None:
            other_sources += 1
            continue
        for topic, offsets in offsets_by_topic.items():
            if topics.setdefault(topic, offsets) != offsets:
                raise _Damaged(f"By {name} it reads topic '{topic}' twice, up to different offsets")
    return topics, other_sources


def _parse_topics(line: str) -> dict[str, dict[int, int]] | None:
    """Return the offsets of a source by topic and partition; None: it is no topic of Kafka."""
    try:
        data: Any = json.loads(line)
        topics = {}
        for topic, partitions in data.items():
            topics[str(topic)] = {int(partition): int(offset) for partition, offset in partitions.items()}
        return topics
    except (ValueError, TypeError, AttributeError):
        return None


def _read(files: FileSystem, folder: str, name: str) -> str:
    try:
        return files.read(f"{folder}/{name}")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError) as error:
        raise _Damaged(f"It has no file '{name}'") from error


def _nothing_planned_error(folder: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"the query with the checkpoint folder {folder} has nothing to take over.",
        "It has not planned any batch, so it has read nothing.",
        "Begin as it would have begun: start=… of the source. Nothing was written.",
        code="nothing-to-adopt",
    )


def _unordered_error(folder: str, committed: int | None, planned: int) -> InvalidPipeline:
    last = "no batch" if committed is None else f"batch {committed}"
    return InvalidPipeline(
        f"it is not known what the query with the checkpoint folder {folder} has published.",
        f"It has planned batch {planned}, and recorded {last} as committed: files are missing, or it records its "
        "progress only now and then (asyncProgressTrackingEnabled).",
        "Restore the folder; or let the query process one more batch without asynchronous progress tracking, with "
        "trigger(availableNow=True), and stop it. Nothing was written.",
        code="streaming-batch-unknown",
    )

"""What keeps a staged Delta table from being published, found before the decision.

Everything that a commit does is done up to its log entry: the table is opened, the merge or the replacement is computed
from that snapshot, and every staged file is looked at. What Spark would do is tried on an empty table of the same
metadata. The commit continues from the same snapshot, if it is still the newest.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from onceonly.checkpoint.commands import PIPELINE_FILE
from onceonly.counts import count
from onceonly.delta import log_files, table_files, table_snapshot
from onceonly.error_codes import without_rows
from onceonly.errors import ActionNeeded, CannotPublish, StageAgain
from onceonly.sinks.delta import changes, replacement, schema, spark_append, staged_table
from onceonly.sinks.delta.handle import DeltaHandle
from onceonly.sinks.delta.row_cache import RowCache

if TYPE_CHECKING:
    from onceonly.sinks.delta import merge

RETENTION = "delta.deletedFileRetentionDuration"
DEFAULT_RETENTION = timedelta(days=7)
ONE_DAY = timedelta(days=1)
UNITS = {"millisecond": 1e-3, "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
DURATION = re.compile(r"(\d+)\s+(milli)?(second|minute|hour|day|week)s?")
CHUNK_BYTES = 1 << 22  # of a file in memory while it is copied


@dataclass(frozen=True)
class Snapshot:
    """The target as a rehearsal has opened it, for the commit that follows.

    Args:
        identity: the version and the digest of its log entry, by which the commit recognises the same table.
        cache: what the merge has computed.
    """

    folder: str
    target: DeltaTable
    identity: dict[str, Any] | None
    cache: merge.MergeCache | None

    def is_of(self, handle: DeltaHandle) -> bool:
        """Return whether the table at that place still has the log entry that this snapshot ends with."""
        if self.folder != handle.folder or self.identity is None:
            return False
        files = table_files.open_folder(self.target.table_uri)
        return table_files.identify_version(files, self.identity["version"]) == self.identity


def snapshot(target: DeltaTable, handle: DeltaHandle, cache: merge.MergeCache | None) -> Snapshot:
    identity = table_files.identify_version(table_files.open_folder(target.table_uri), target.version())
    return Snapshot(handle.folder, target, identity, cache)


def missing_table_error(sink: str, uri: str, handle: DeltaHandle) -> ActionNeeded:
    return ActionNeeded(
        f"sink '{sink}': there is no table at {uri}.",
        f"The rows were staged for the table with the id {handle.table_id}. It was dropped, or its volume is not "
        "mounted.",
        "Bring the table back. If it is dropped permanently, abort the checkpoint: onceonly abort PIPELINE EPOCH "
        f"--reason …, and run it again: onceonly run {PIPELINE_FILE}. The stage makes a new table.",
        code="target-missing",
    )


def recreated_table_error(sink: str, uri: str, handle: DeltaHandle, table_id: str) -> StageAgain:
    return StageAgain(
        f"sink '{sink}': {uri} is another table now.",
        f"The rows were staged for the table with the id {handle.table_id}. The one that is there has the id "
        f"{table_id}: it was dropped and created again.",
        code="target-recreated",
    )


def go_through(
    sink: str,
    uri: str,
    handle: DeltaHandle,
    target: DeltaTable,
    cache: merge.MergeCache | None,
    row_cache: RowCache,
    spark: Callable[[], Any],
) -> None:
    """Do what the commit will do with this snapshot, up to its log entry.

    Raises:
        StageAgain, ActionNeeded, CannotPublish: see `Sink.rehearse`.
    """
    folder = handle.rows_folder
    adds = staged_table.read_adds(uri, folder, 1)
    missing = staged_table.list_missing_files(uri, folder, adds)
    if missing or len(adds) != handle.files:
        raise missing_files_error(sink, uri, handle, len(missing) + handle.files - len(adds), missing)
    altered = schema.is_altered(target, handle)
    if cache is not None:
        _refuse_altered(sink, uri, handle, altered)
        changes.refuse(sink, target, handle, altered)
        _merge(sink, uri, handle, target, adds, cache)
        return
    replacement.prepare(sink, target, handle, adds, altered, row_cache)
    if handle.publish == "spark" or altered:
        _try_spark(sink, uri, handle, target, altered, spark)


def missing_files_error(sink: str, uri: str, handle: DeltaHandle, number: int, paths: list[str]) -> StageAgain:
    """Describe staged files that are missing: `number` of them, and `paths` of those whose names are known."""
    example = f", such as {paths[0]}" if paths else ""
    return StageAgain(
        f"sink '{sink}': staged files are missing in {uri}.",
        f"{number:,} of {count(handle.files, 'file')} of {handle.folder} are missing, or have another "
        f"size{example}. A VACUUM deletes files that were not published within its retention.",
        code="staged-files-missing",
    )


# ---- what is computed


def make_merge_cache(handle: DeltaHandle) -> merge.MergeCache | None:
    """Return what a publication of changes keeps from try to try; None: these are no changes."""
    if handle.merge is None:
        return None
    from onceonly.sinks.delta import merge  # with pandas, which takes a second

    return merge.MergeCache()


def _refuse_altered(sink: str, uri: str, handle: DeltaHandle, altered: bool) -> None:
    if altered:
        raise StageAgain(
            f"sink '{sink}': {uri} was altered since its changes were staged.",
            "Changes are merged only into a table with the columns, constraints and features for which they were "
            "staged.",
            code="target-altered",
        )


def _merge(
    sink: str, uri: str, handle: DeltaHandle, target: DeltaTable, adds: list[dict[str, Any]], cache: merge.MergeCache
) -> None:
    from onceonly.sinks.delta import merge  # with pandas, which takes a second

    try:
        merge.compute(target, uri, handle, adds, cache)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError, ArithmeticError) as error:
        raise ActionNeeded(
            f"sink '{sink}': the changes cannot be merged into {uri}.",
            f"A value of the table or of the changes cannot be read: {type(error).__name__}: {str(error)[:500]}",
            "Correct the value in the table; or correct it in the transform, and: onceonly abort PIPELINE EPOCH "
            "--reason …",
            code="merge-impossible",
        ) from error


def _try_spark(
    sink: str, uri: str, handle: DeltaHandle, target: DeltaTable, altered: bool, spark: Callable[[], Any]
) -> None:
    """Append through Spark to an empty table like the target: the rows only if the target has been altered since."""
    try:
        spark_append.try_append(spark, sink, uri, handle, target, altered)
    except CannotPublish as error:
        if altered:
            recorded = without_rows(error)  # as the reason for which the attempt ends
            raise StageAgain(recorded.what, recorded.why, code="target-altered") from error
        raise


# ---- copies of files that a VACUUM may have on its list


def files_are_old(uri: str, handle: DeltaHandle, target: DeltaTable) -> bool:
    """Return whether a VACUUM that is running now may have the staged files on its list.

    It lists what no version refers to and what is older than the table's retention. It may have begun up to a day ago,
    or up to half of a retention of less than two days.
    """
    staged = table_files.list_folder(uri, handle.rows_folder, recursive=True)
    changed = []
    for info in staged:
        if info.mtime and info.extension == "parquet":
            changed.append(info.mtime.timestamp())
    return are_old(target, changed)


def are_old(target: table_snapshot.Table, changed: Iterable[float]) -> bool:
    """Return whether a VACUUM may have one of these files on its list.

    Args:
        changed: when each staged file was written, in seconds since 1970.
    """
    safe_age = _safe_age(target.metadata().configuration.get(RETENTION)).total_seconds()
    return any(time.time() - moment > safe_age for moment in changed)


def copy_rows(sink: str, uri: str, handle: DeltaHandle) -> DeltaHandle:
    """Copy the staged table to a new folder inside its own, durably; returns a handle that names the copy.

    Raises:
        StageAgain: a file has vanished.
    """
    source_folder, copy_name = handle.rows_folder, f"{staged_table.COPY_PREFIX}{uuid.uuid4().hex[:12]}"
    copy_folder, files = f"{handle.folder}/{copy_name}", table_files.open_folder(uri)
    adds = staged_table.read_adds(uri, source_folder, 1)
    paths = [unquote(add["path"]) for add in adds]
    paths += [log_files.entry_path(0), log_files.entry_path(1)]  # the log last: without it there is no table
    try:
        for path in paths:
            _copy(files, f"{source_folder}/{path}", f"{copy_folder}/{path}")
    except FileNotFoundError as error:
        raise missing_files_error(sink, uri, handle, 1, [str(error)]) from error
    table_files.sync_to_disk(uri, copy_folder)
    return handle.with_copy(copy_name)


def _safe_age(retention: str | None) -> timedelta:
    """Return the age below which no VACUUM that is running now can have a file on its list."""
    duration = _parse_duration(retention)
    return duration - ONE_DAY if duration >= 2 * ONE_DAY else duration / 2


def _parse_duration(text: str | None) -> timedelta:
    """Parse Delta's interval, such as "interval 1 week"; what is not understood counts as the default."""
    parts = DURATION.findall(text or "")
    if not parts:
        return DEFAULT_RETENTION
    seconds = sum(int(number) * UNITS[f"{milli}{unit}"] for number, milli, unit in parts)
    return timedelta(seconds=seconds)


def _copy(files: Any, source: str, destination: str) -> None:
    files.create_dir(destination.rpartition("/")[0], recursive=True)
    with files.open_input_stream(source) as reader, files.open_output_stream(destination) as writer:
        while chunk := reader.read(CHUNK_BYTES):
            writer.write(chunk)

"""Rules that a Delta table has to follow to be read as a source, and the errors of a table that does not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import chain

from deltalake import DeltaTable

from onceonly.checkpoint.offsets import START_OVER, TopicLog, TopicRange
from onceonly.counts import count
from onceonly.delta import table_features, txn_identifiers
from onceonly.delta.versions import File, Version
from onceonly.errors import InvalidPipeline, SourceLost
from onceonly.pipeline.sources import DeltaSource

DELETE = "DELETE"  # as delta-rs, Spark and Databricks call the operation that only takes rows out
IGNORE = "To pass over deletions from now on: DeltaSource(ignore_deletes=True). Or only this one: "
RESTORE = f"Restore the table, or {START_OVER}. Nothing was written."
FEED = "delta.enableChangeDataFeed"
MAPPING = "delta.columnMapping.mode"


class NoTable(InvalidPipeline):
    """There is no table at that place."""


def check_table(config: DeltaSource, table: DeltaTable) -> None:
    """Refuse features of a table that are not read right, or not known.

    Raises:
        InvalidPipeline
    """
    settings = table.metadata().configuration
    unsupported = sorted(set(table.protocol().reader_features or []) - table_features.SOURCE_READABLE)
    if settings.get(MAPPING, "none") != "none":
        unsupported.append(f"column mapping ({MAPPING})")
    binary_column = _find_binary_partition_column(table)
    if binary_column:
        unsupported.append(f"a partition column of bytes ('{binary_column}')")
    if unsupported:
        raise InvalidPipeline(
            f"table '{config.topic}' cannot be a source.",
            f"It has {', '.join(unsupported)}, which is not supported for reading a range of versions.",
            "Read a copy of the table without that. Nothing was written.",
            code="source-unsupported",
        )
    if config.changes and settings.get(FEED) != "true":
        raise _missing_feed_error(config, table.version())


def other_table_id_error(config: DeltaSource, uri: str, table_id: str) -> SourceLost:
    return SourceLost(
        f"the table '{config.table}' is not at {uri} any more.",
        f"The plan found the table with the id {config.table_id} there, and now there is {table_id}.",
        "Was it dropped and created again? Restore it; the next plan looks its name up again. Nothing was written.",
        code="named-table-replaced",
    )


def _find_binary_partition_column(table: DeltaTable) -> str | None:
    partition_columns = table.metadata().partition_columns
    for field in table.schema().fields:
        if field.name in partition_columns and "binary" in str(field.type):
            return str(field.name)
    return None


def _missing_feed_error(config: DeltaSource, version: int) -> InvalidPipeline:
    return InvalidPipeline(
        f"table '{config.topic}' has no Change Data Feed at version {version}.",
        f"DeltaSource(changes=True) reads it, and {FEED} is not 'true' there.",
        f"ALTER TABLE … SET TBLPROPERTIES ('{FEED}' = 'true'); versions before that cannot be read by their "
        "changes: give the pipeline a new name and new targets to start with the whole table. Nothing was written.",
        code="change-feed-missing",
    )


def check_inside(config: DeltaSource, version: int, files: list[File]) -> None:
    """Refuse a table of which a file is another table's: a shallow clone. Raises InvalidPipeline."""
    for file in files:
        if file.is_outside:
            raise InvalidPipeline(
                f"table '{config.topic}' cannot be a source.",
                f"At version {version} it has files that are outside of its folder, such as {file.path}: it is a "
                "shallow clone.",
                "Read the table that it is a clone of, or a deep copy. Nothing was written.",
                code="source-unsupported",
            )


def list_added(config: DeltaSource, range_: TopicRange, versions: Sequence[Version]) -> list[File]:
    """Return the files that these versions of a range add.

    Where a repair has replaced rows, they are no news; unless those that it replaces are in the same range, in whose
    place its own are then read. Nor is a deletion, where the definition says so: the files that it writes again hold
    rows that the table had before.

    Raises:
        InvalidPipeline: another version removes or restores rows as well, or one hides rows of the files.
    """
    replaced_versions, passed_over = dict(range_.rewrites), range_.passed_over
    files_by_version: dict[int, tuple[File, ...]] = {}
    for version in versions:
        if version.number in passed_over or (config.ignore_deletes and _is_deletion(version)):
            continue
        unread_count = version.number - versions[0].number
        added = version.added
        if version.number in replaced_versions:
            files_by_version.pop(replaced_versions[version.number])
            added = _list_own_files(version)
        elif version.removed or version.operation.upper() == "RESTORE":
            raise _removed_rows_error(config, version, unread_count)
        if version.hides or any(file.is_outside for file in version.added):
            raise _added_files_error(config, version, unread_count)
        files_by_version[version.number] = added
    return list(chain.from_iterable(files_by_version.values()))


def _is_deletion(version: Version) -> bool:
    """Return whether a version only takes rows out, by what its writer says. One that adds files alone is none."""
    return version.operation.upper() == DELETE and (bool(version.removed) or not version.added)


def _list_own_files(version: Version) -> tuple[File, ...]:
    """List the files that a version adds, without copies of rows that the table had before."""
    own_files = []
    for file in version.added:
        if not txn_identifiers.is_kept_copy(file.path):
            own_files.append(file)
    return tuple(own_files)


def _removed_rows_error(config: DeltaSource, version: Version, unread_count: int) -> InvalidPipeline:
    return InvalidPipeline(
        f"table '{config.topic}': version {version.number} does not only add rows.",
        f"Its operation is {version.operation}, which removes {count(len(version.removed), 'file')} with rows.",
        f"{IGNORE if _is_deletion(version) else ''}{_describe_skip(config, version, unread_count)}",
        code="not-append-only",
    )


def _describe_skip(config: DeltaSource, version: Version, unread_count: int) -> str:
    """Tell how to continue behind a version. A skip leaves out all that is unread: what comes before is read first.

    Args:
        unread_count: number of versions of the range before that one.
    """
    next_version = version.number + 1
    if unread_count:
        first_step = f"Read what comes before it: DeltaSource(max_versions={unread_count}). Then leave it out"
    else:
        first_step = f"Leave it out (if the pipeline has not run yet, by DeltaSource(start={next_version}))"
    return (
        f"{first_step} on purpose: onceonly skip PIPELINE --topic {config.topic} --partition 0 --to {next_version} "
        "--reason … (not in a pipeline with after). Or read the table's changes by a pipeline with a new name and new "
        "targets: DeltaSource(changes=True). Nothing was written."
    )


def _added_files_error(config: DeltaSource, version: Version, unread_count: int) -> InvalidPipeline:
    why = "deletion vectors hide rows of the files" if version.hides else "the files are outside of the table's folder"
    return InvalidPipeline(
        f"table '{config.topic}': version {version.number} cannot be read by the files that it adds.",
        f"Its operation is {version.operation}, and {why}.",
        _describe_skip(config, version, unread_count),
        code="not-append-only",
    )


# --- what is lost


def check_table_id(range_: TopicRange, table_id: str) -> None:
    """Refuse another table than the pinned one. Raises SourceLost."""
    if table_id != range_.topic_id:
        raise SourceLost(
            f"{range_.label} is not the one that was pinned.",
            f"Its id was {range_.topic_id} and is now {table_id}: it was replaced.",
            RESTORE,
            code="source-replaced",
        )


def shorter_log_error(range_: TopicRange, log: TopicLog) -> SourceLost:
    newest = log.partitions[0][1] - 1
    return SourceLost(
        f"{range_.label} ends before what is pinned.",
        f"Version {range_.ends[0] - 1} is pinned, and the newest one is {newest}: the table was restored from a copy.",
        RESTORE,
        code="source-replaced",
    )


def other_history_error(range_: TopicRange) -> SourceLost:
    return SourceLost(
        f"{range_.label} has another history than the one that was pinned.",
        f"Version {range_.ends[0] - 1} is not the same commit any more: the table was restored from a copy, and others "
        "have written to it since.",
        RESTORE,
        code="source-replaced",
    )


def expired_log_error(range_: TopicRange, version: int, why: str) -> SourceLost:
    versions = _format_versions(range_)
    return SourceLost(
        f"{range_.label}: version {version} can no longer be read.",
        f"The versions {versions} have to be read, and the log does not hold all of them any more ({why[:160]}).",
        f"A table that is read has to keep its log for longer (delta.logRetentionDuration). {RESTORE}",
        code="source-log-expired",
    )


def missing_files_error(range_: TopicRange, paths: Sequence[str]) -> SourceLost:
    return SourceLost(
        f"{range_.label}: files of the versions {_format_versions(range_)} no longer exist.",
        f"{count(len(paths), 'file')} of them, such as {paths[0]}: a VACUUM removed them after the table was "
        "rewritten, or somebody else did.",
        RESTORE,
        code="source-files-missing",
    )


def early_time_error(config: DeltaSource, time: datetime, oldest_version: int) -> SourceLost:
    return SourceLost(
        f"table '{config.topic}': its version at {time:%Y-%m-%dT%H:%M:%SZ} is no longer known.",
        f"The log's first entry is that of version {oldest_version}, which is later: what came before was cleaned up.",
        "Run a later interval: onceonly run FILE.py:NAME --interval START END. Or set a later DeltaSource(start=…). "
        "Nothing was written.",
        code="source-time-expired",
    )


def _format_versions(range_: TopicRange) -> str:
    start, end = range_.partitions[0]
    return f"{start} to {end - 1}"


# --- what is not there


def missing_table_error(config: DeltaSource, uri: str) -> NoTable:
    return NoTable(
        f"table '{config.topic}' does not exist.",
        f"There is no Delta table at {uri}.",
        "Correct DeltaSource(path=…): a relative path is below ONCEONLY_HOME. Or first run the pipeline that "
        "writes it: onceonly run OTHER_FILE.py:NAME. Nothing was written.",
        code="source-missing",
    )


def unreadable_table_error(config: DeltaSource, uri: str, error: Exception) -> InvalidPipeline:
    return InvalidPipeline(
        f"table '{config.topic}' cannot be read.",
        f"{uri}: {error}",
        "Repair the table, or read a copy of it without the unsupported features. Nothing was written.",
        code="table-unreadable",
    )

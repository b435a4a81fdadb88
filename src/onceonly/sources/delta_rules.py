"""What a Delta table has to be, to be read as a source, and how it is said that it is not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from deltalake import DeltaTable

from onceonly.checkpoint.offsets import START_OVER, TopicLog, TopicRange
from onceonly.counts import count
from onceonly.errors import InvalidPipeline, SourceLost
from onceonly.pipeline.tables import DeltaSource
from onceonly.sources.delta_log import File, Version

RESTORE = f"Restore the table, or {START_OVER}. Nothing was written."
FEED = "delta.enableChangeDataFeed"
MAPPING = "delta.columnMapping.mode"
# Reader features that do not change what a data file means.
READABLE = {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}


class NoTable(InvalidPipeline):
    """There is no table at that place."""


def check_table(config: DeltaSource, table: DeltaTable) -> None:
    """Refuse features of a table that are not read right, or not known.

    Raises:
        InvalidPipeline
    """
    settings = table.metadata().configuration
    unknown = sorted(set(table.protocol().reader_features or []) - READABLE)
    if settings.get(MAPPING, "none") != "none":
        unknown.append(f"column mapping ({MAPPING})")
    if binary := _binary(table):
        unknown.append(f"a partition column of bytes ('{binary}')")
    if unknown:
        raise InvalidPipeline(
            f"table '{config.topic}' cannot be a source.",
            f"It has {', '.join(unknown)}, which is not supported for reading a range of versions.",
            "Read a copy of the table without that. Nothing was written.",
        )
    if config.changes and settings.get(FEED) != "true":
        raise _no_feed(config, table.version())


def another_by_name(config: DeltaSource, uri: str, found: str) -> SourceLost:
    return SourceLost(
        f"the table '{config.table}' is not at {uri} any more.",
        f"The plan found the table with the id {config.table_id} there, and now there is {found}.",
        "Was it dropped and created again? Restore it; the next plan looks its name up again. Nothing was written.",
    )


def _binary(table: DeltaTable) -> str | None:
    partitioned = table.metadata().partition_columns
    found = (field.name for field in table.schema().fields if field.name in partitioned)
    types = {field.name: str(field.type) for field in table.schema().fields}
    return next((name for name in found if "binary" in types[name]), None)


def _no_feed(config: DeltaSource, version: int) -> InvalidPipeline:
    return InvalidPipeline(
        f"table '{config.topic}' has no Change Data Feed at version {version}.",
        f"DeltaSource(changes=True) reads it, and {FEED} is not 'true' there.",
        f"ALTER TABLE … SET TBLPROPERTIES ('{FEED}' = 'true'); versions before that cannot be read by their "
        "changes: give the pipeline a new name and new targets to start with the whole table. Nothing was written.",
    )


def inside(config: DeltaSource, version: int, files: list[File]) -> list[File]:
    """The files of the whole table. Raises InvalidPipeline if one of them is another table's: of a shallow clone."""
    if away := next((file.path for file in files if file.elsewhere), None):
        raise InvalidPipeline(
            f"table '{config.topic}' cannot be a source.",
            f"At version {version} it has files that are outside of its folder, such as {away}: it is a shallow clone.",
            "Read the table that it is a clone of, or a deep copy. Nothing was written.",
        )
    return files


def added(config: DeltaSource, versions: Sequence[Version]) -> list[File]:
    """The files that these versions add.

    Raises:
        InvalidPipeline: one of them also removes or restores rows, or hides rows of the files.
    """
    for version in versions:
        if version.removed or version.operation.upper() == "RESTORE":
            raise _not_appended(config, version, version.number - versions[0].number)
        if version.hides or any(file.elsewhere for file in version.added):
            raise _unsupported(config, version, version.number - versions[0].number)
    return [file for version in versions for file in version.added]


def _not_appended(config: DeltaSource, version: Version, unread: int) -> InvalidPipeline:
    return InvalidPipeline(
        f"table '{config.topic}': version {version.number} does not only add rows.",
        f"Its operation is {version.operation}, which removes {count(len(version.removed), 'file')} with rows.",
        _behind(config, version, unread),
    )


def _behind(config: DeltaSource, version: Version, unread: int) -> str:
    """How to continue behind a version. What comes before it is read first: a skip leaves out all that is unread.

    Args:
        unread: number of versions of the range before that one.
    """
    place, to = f"--topic {config.topic} --partition 0", version.number + 1
    if unread:
        first = f"Read what comes before it: DeltaSource(max_versions={unread}). Then leave it out"
    else:
        first = f"Leave it out (if the pipeline has not run yet, by DeltaSource(start={to}))"
    return (
        f"{first} on purpose: onceonly skip PIPELINE {place} --to {to} --reason … (not in a pipeline with after). Or "
        "read the table's changes by a pipeline with a new name and new targets: DeltaSource(changes=True). Nothing "
        "was written."
    )


def _unsupported(config: DeltaSource, version: Version, unread: int) -> InvalidPipeline:
    what = "deletion vectors hide rows of the files" if version.hides else "the files are outside of the table's folder"
    return InvalidPipeline(
        f"table '{config.topic}': version {version.number} cannot be read by the files that it adds.",
        f"Its operation is {version.operation}, and {what}.",
        _behind(config, version, unread),
    )


# --- what is lost


def check_same(range_: TopicRange, table_id: str) -> None:
    if table_id != range_.topic_id:
        raise SourceLost(
            f"{range_.called} is not the one that was pinned.",
            f"Its id was {range_.topic_id} and is now {table_id}: it was replaced.",
            RESTORE,
        )


def shorter(range_: TopicRange, log: TopicLog) -> SourceLost:
    newest = log.partitions[0][1] - 1
    return SourceLost(
        f"{range_.called} ends before what is pinned.",
        f"Version {range_.ends[0] - 1} is pinned, and the newest one is {newest}: the table was restored from a copy.",
        RESTORE,
    )


def replaced(range_: TopicRange) -> SourceLost:
    return SourceLost(
        f"{range_.called} has another history than the one that was pinned.",
        f"Version {range_.ends[0] - 1} is not the same commit any more: the table was restored from a copy, and others "
        "have written to it since.",
        RESTORE,
    )


def cleaned_up(range_: TopicRange, version: int, why: str) -> SourceLost:
    return SourceLost(
        f"{range_.called}: version {version} can no longer be read.",
        f"The versions {_span(range_)} have to be read, and the log does not hold all of them any more ({why[:160]}).",
        f"A table that is read has to keep its log for longer (delta.logRetentionDuration). {RESTORE}",
    )


def vacuumed(range_: TopicRange, missing: Sequence[str]) -> SourceLost:
    return SourceLost(
        f"{range_.called}: files of the versions {_span(range_)} no longer exist.",
        f"{count(len(missing), 'file')} of them, such as {missing[0]}: a VACUUM removed them after the table was "
        "rewritten, or somebody else did.",
        RESTORE,
    )


def too_early(config: DeltaSource, time: datetime, first: int) -> SourceLost:
    return SourceLost(
        f"table '{config.topic}': its version at {time:%Y-%m-%dT%H:%M:%SZ} is no longer known.",
        f"The log's first entry is that of version {first}, which is later: what came before was cleaned up.",
        "Run a later interval, or choose a later start. Nothing was written.",
    )


def _span(range_: TopicRange) -> str:
    start, end = range_.partitions[0]
    return f"{start} to {end - 1}"


# --- what is not there


def no_table(config: DeltaSource, uri: str) -> NoTable:
    return NoTable(
        f"table '{config.topic}' does not exist.",
        f"There is no Delta table at {uri}.",
        "Correct DeltaSource(path=…): a relative path is below ONCEONLY_HOME. Or first run the pipeline that "
        "writes it. Nothing was written.",
    )


def unreadable(config: DeltaSource, uri: str, error: Exception) -> InvalidPipeline:
    return InvalidPipeline(
        f"table '{config.topic}' cannot be read.",
        f"{uri}: {error}",
        "Repair the table, or read a copy of it without the unsupported features. Nothing was written.",
    )

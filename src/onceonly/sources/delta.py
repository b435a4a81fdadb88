"""A Delta table as a source: its versions are the offsets of one partition.

What a range of versions means is fixed by the log, whose entries never change: a range that begins at version 0 is the
table as of its last version; any other one is what its versions have added, or their Change Data Feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from onceonly.checkpoint import offsets
from onceonly.checkpoint.boundary_search import FirstRecord, search
from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.offsets import DELTA, NO_OFFSETS, Offsets, TopicLog, TopicRange
from onceonly.counts import count
from onceonly.delta import txn_identifiers
from onceonly.delta.versions import NO_DATE, File, Version, VersionLog, list_table_files
from onceonly.errors import NotCommitted, SourceLost
from onceonly.pipeline.sources import DeltaSource
from onceonly.sources import StoredSource, delta_rules
from onceonly.storage.paths import spark_uri

IN_COMMIT_TIMES = "delta.enableInCommitTimestamps"


class DeltaReader(StoredSource):
    """The `Source` of a `DeltaSource`; plans by the table's log, reads with Spark.

    Args:
        uri: the table's absolute path or URI.
    """

    def __init__(self, config: DeltaSource, uri: str) -> None:
        self._config, self._uri, self._log = config, uri, VersionLog(uri)

    def check(self) -> list[str]:
        """Check that the table can be read, and return a note of where it is and how."""
        log = self.log()
        newest = log.partitions[0][1] - 1
        with self._translate_errors():
            table = self._log.table(newest)
        delta_rules.check_table(self._config, table)
        how = "by its Change Data Feed" if self._config.changes else "by the files that are added to it"
        if self._config.ignore_deletes:
            how += ", and deletions are passed over"
        return [f"{log.label} is there, at version {newest}: {self._uri}, read {how}"]

    def log(self) -> TopicLog:
        """Return the log from version 0, which stands for all that the table had when first read, to the newest one."""
        with self._translate_errors():
            newest = max(self._log.times())
            table_id = str(self._log.table(newest).metadata().id)
        if self._config.table_id not in (None, table_id):
            raise delta_rules.other_table_id_error(self._config, self._uri, table_id)
        return TopicLog(self._config.topic, table_id, {0: (0, newest + 1)}, DELTA)

    def offsets_at(
        self, time: datetime, latest: datetime | None = None, floor: Offsets = NO_OFFSETS
    ) -> Mapping[int, FirstRecord]:
        """Find the first version at or after `time`, by the order of the log.

        Times are in-commit timestamps, or those of the log's entries, as Delta's own time travel has them.

        Raises:
            SourceLost: log entries that may be of that time were cleaned up.
        """
        with self._translate_errors():
            times = self._read_times()
        first = search(times.items(), time, latest, max(times) + 1, floor.get(0, 0))
        oldest = min(times)
        if first.lowest == oldest > floor.get(0, 0):
            raise delta_rules.early_time_error(self._config, time, oldest)
        return {0: first}

    def _read_times(self) -> dict[int, datetime]:
        """Read the time of each version in the log, as Delta's own time travel has it."""
        times = self._log.times()
        table = self._log.table(max(times))
        if table.metadata().configuration.get(IN_COMMIT_TIMES) == "true":
            commit_times = self._log.commit_times(times)
            for number, commit_time in commit_times.items():
                times[number] = commit_time or times[number]
        return times

    # --- what was pinned

    def add_mark(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """See `Source`. The mark is a hash of the range's last log entry."""
        with self._translate_errors():
            self._check_mark(previous)
            self._list_files(range_)  # refuses what cannot be read
            return self.mark_left_out(range_, previous)

    def mark_left_out(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """See `Source`. `previous` is compared last: a table that is exchanged meanwhile has one wrong mark."""
        with self._translate_errors():
            range_with_mark = replace(range_, mark=self._log.mark(range_.ends[0] - 1))
            self._check_mark(previous)
            return range_with_mark

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        """Check that everything that was pinned is still there. Raises SourceLost if not."""
        log = self._read_pinned_log()
        for range_ in ranges:
            offsets.require_same_topic(range_.topic_id, log, "this range")
            if log.partitions[0][1] < range_.ends[0]:
                raise delta_rules.shorter_log_error(range_, log)
            with self._translate_errors():
                self._check_mark(range_)
                missing_paths = self._log.list_missing_files(self._list_files(range_))
                if missing_paths:
                    raise delta_rules.missing_files_error(range_, missing_paths)

    def _read_pinned_log(self) -> TopicLog:
        """Read the log. Raises SourceLost where there is no table any more."""
        try:
            return self.log()
        except delta_rules.NoTable as error:
            why = "A checkpoint has pinned a range of it, and it was deleted since."
            raise SourceLost(error.what, why, delta_rules.RESTORE, code=error.code) from error

    def _check_mark(self, range_: TopicRange | None) -> None:
        """Refuse a log whose entry has another mark. An entry that was cleaned up cannot be compared any more."""
        if range_ is None or range_.mark is None:
            return
        mark = self._log.mark(range_.ends[0] - 1)
        if mark is not None and mark != range_.mark:
            raise delta_rules.other_history_error(range_)

    def _list_files(self, range_: TopicRange) -> list[File]:
        """Return the files that have to be read for the range.

        Raises:
            InvalidPipeline: they cannot be read as the definition says.
            SourceLost: a part of the log is not there any more.
        """
        start, end = range_.partitions[0]
        if start == end:
            return []
        if range_.folders:
            delta_rules.check_table(self._config, self._load_newest_table())
            return self._list_published_files(range_)
        table = self._load_table(range_, end - 1)  # whose columns are those of the range
        if start == 0:
            files = list_table_files(table)
            delta_rules.check_inside(self._config, table.version(), files)
            return files
        versions = self._read_versions(range_)
        self._check_redefinitions(range_, versions)
        if self._config.changes:
            return _list_changed_files(versions)
        return delta_rules.list_added(self._config, range_, versions)

    def _load_table(self, range_: TopicRange, version: int) -> DeltaTable:
        """Load the table as of that version of the range, and check it. Raises as `_list_files`."""
        try:
            table = self._log.table(version)
        except DeltaError as error:
            raise delta_rules.expired_log_error(range_, version, str(error)) from error
        delta_rules.check_table_id(range_, str(table.metadata().id))
        delta_rules.check_table(self._config, table)
        return table

    def _check_redefinitions(self, range_: TopicRange, versions: list[Version]) -> None:
        """Check the table at each version that redefines it: its files mean what the table said when they were written,
        and it may say something else at the range's end.
        """
        redefined = {version.number for version in versions if version.redefines}
        if redefined or self._config.changes:
            for version in sorted({range_.starts[0], *redefined}):
                self._load_table(range_, version)

    def _read_versions(self, range_: TopicRange) -> list[Version]:
        start, end = range_.partitions[0]
        try:
            return self._log.versions(range(start, end))
        except FileNotFoundError as error:
            raise delta_rules.expired_log_error(range_, start, str(error)) from error

    # --- what single checkpoints of the pipeline that writes the table have published

    def _list_published_files(self, range_: TopicRange) -> list[File]:
        """Return the files of the checkpoints that a range names.

        The version that published a checkpoint adds its rows, and nothing else but copies of rows that the table had
        before; it is recognised by the number of its transaction. Where the log no longer has its entry, the files that
        were staged for it are recognised by their folder, as long as the table still refers to all of them.

        Raises:
            SourceLost: it can no longer be told which they are.
        """
        files: list[File] = []
        for number, (folder, file_count) in enumerate(range_.folders):
            version, _ = range_.partitions[number]
            added = self._find_added_files(version, folder) if version else None
            if added is None:
                added = _list_folder_files(self._load_newest_table(), range_, folder, file_count)
            files += added
        return files

    def _load_newest_table(self) -> DeltaTable:
        return self._log.table(max(self._log.times()))

    def _find_added_files(self, number: int, folder: str) -> list[File] | None:
        """Return the files that the version adds; None if the log does not show that it published `folder`."""
        try:
            (version,) = self._log.versions([number])
        except FileNotFoundError:  # its entry has expired
            return None
        if not _is_publication_of(version, folder):  # in a copy, that number may be another version
            return None
        return [file for file in version.added if not txn_identifiers.is_kept_copy(file.path)]

    # --- reading

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """Return the rows of the range as a lazy DataFrame, with the columns that the table had at its end."""
        from onceonly.spark import tables

        (range_,) = ranges
        start, end = range_.partitions[0]
        with self._translate_errors():
            table = self._load_newest_table() if range_.folders else self._log.table(max(end - 1, 0))
            schema = tables.parse_schema(table.schema().to_json())
            uri = spark_uri(self._uri)
            if start == end:
                rows = spark.createDataFrame([], schema)
            elif start == 0 and not range_.folders:
                rows = tables.read_snapshot(spark, uri, end - 1, schema)
            elif self._config.changes:
                return tables.read_changes(spark, uri, start, end, schema)
            else:
                files = [(file.path, file.values) for file in self._list_files(range_)]
                return tables.read_files(spark, uri, schema, table.metadata().partition_columns, files)
            if self._config.changes:
                return tables.add_insert_columns(rows, max(end - 1, 0), self._read_times().get(end - 1, NO_DATE))
            return rows

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn errors of the table and its storage into the project's.

        Raises:
            InvalidPipeline: there is no table, or delta-rs does not know one of its features.
            NotCommitted: the storage does not answer.
        """
        try:
            yield
        except TableNotFoundError as error:
            raise delta_rules.missing_table_error(self._config, self._uri) from error
        except DeltaError as error:
            raise delta_rules.unreadable_table_error(self._config, self._uri, error) from error
        except OSError as error:
            raise NotCommitted(
                f"table '{self._config.topic}' cannot be read.",
                f"{type(error).__name__}: {error}",
                f"Fix the storage of {self._uri}, then retry. Nothing was written.",
                code="store-unreachable",
            ) from error


def _list_changed_files(versions: list[Version]) -> list[File]:
    """Return the files of the versions' Change Data Feed: a version without any has only added or removed rows."""
    files: list[File] = []
    for version in versions:
        files += version.changed or (*version.added, *version.removed)
    return files


def _is_publication_of(version: Version, folder: str) -> bool:
    """Return whether the version published the transaction that was staged in `folder`."""
    txn = Transaction.parse(folder.removeprefix(txn_identifiers.STAGED_PREFIX))
    number = version.transactions.get(txn.app_id) if txn else None
    return number is not None and txn_identifiers.is_version_of(number, folder)


def _list_folder_files(table: DeltaTable, range_: TopicRange, folder: str, file_count: int) -> list[File]:
    """Return the files that were staged in `folder`. Raises SourceLost: the table does not refer to all of them."""
    adds = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    files = [_to_file(add) for add in adds if txn_identifiers.is_in_staged_folder(unquote(add["path"]), folder)]
    if len(files) != file_count:
        raise SourceLost(
            f"{range_.label}: rows that were published from {folder} can no longer be told from others.",
            f"The log no longer has that entry, and the table has {len(files):,} of {count(file_count, 'file')}: they "
            "were rewritten (OPTIMIZE, UPDATE, DELETE), or replaced.",
            "Process the interval again in the pipeline that writes the table, then here. Nothing was written.",
            code="published-rows-rewritten",
        )
    return files


def _to_file(add: dict[str, Any]) -> File:
    """Convert a flattened add action, with its partition values as text."""
    values: dict[str, str | None] = {}
    for name, value in add.items():
        if name.startswith("partition."):
            values[name.removeprefix("partition.")] = None if value is None else str(value)
    return File(unquote(add["path"]), add["size_bytes"], values)

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

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from onceonly.checkpoint import offsets
from onceonly.checkpoint.boundary_search import FirstRecord, search
from onceonly.checkpoint.offsets import DELTA, NO_OFFSETS, Offsets, TopicLog, TopicRange
from onceonly.errors import NotCommitted, SourceLost
from onceonly.filesystems.paths import spark_uri
from onceonly.pipeline.tables import DeltaSource
from onceonly.sources import delta_folders
from onceonly.sources import delta_rules as rules
from onceonly.sources.at_rest import AtRest
from onceonly.sources.delta_log import NO_DATE, File, TableLog, Version, active

OWN_TIMES = "delta.enableInCommitTimestamps"


class DeltaReader(AtRest):
    """The `Source` of a `DeltaSource`; plans by the table's log, reads with Spark.

    Args:
        uri: the table's absolute path or URI.
    """

    def __init__(self, config: DeltaSource, uri: str) -> None:
        self._config, self._uri, self._log = config, uri, TableLog(uri)

    def check(self) -> list[str]:
        log = self.log()
        newest = log.partitions[0][1] - 1
        with self._reading():
            table = self._log.table(newest)
        rules.check_table(self._config, table)
        how = "by its Change Data Feed" if self._config.changes else "by the files that are added to it"
        return [f"{log.called} is there, at version {newest}: {self._uri}, read {how}"]

    def log(self) -> TopicLog:
        """From version 0, which stands for all that the table had when it was first read, to the newest one."""
        with self._reading():
            newest = max(self._log.times())
            table_id = str(self._log.table(newest).metadata().id)
        if self._config.table_id not in (None, table_id):
            raise rules.another_by_name(self._config, self._uri, table_id)
        return TopicLog(self._config.topic, table_id, {0: (0, newest + 1)}, DELTA)

    def offsets_at(
        self, time: datetime, latest: datetime | None = None, floor: Offsets = NO_OFFSETS
    ) -> Mapping[int, FirstRecord]:
        """The first version at or after `time`, by the order of the log.

        Times are in-commit timestamps, or those of the log's entries, as Delta's own time travel has them.

        Raises:
            SourceLost: log entries that may be of that time were cleaned up.
        """
        with self._reading():
            times = self._times()
        first, oldest = search(times.items(), time, latest, max(times) + 1, floor.get(0, 0)), min(times)
        if first.lowest == oldest > floor.get(0, 0):
            raise rules.too_early(self._config, time, oldest)
        return {0: first}

    def _times(self) -> dict[int, datetime]:
        times = self._log.times()
        if self._log.table(max(times)).metadata().configuration.get(OWN_TIMES) == "true":
            own = self._log.commit_times(times)
            times = {number: own[number] or at for number, at in times.items()}
        return times

    # --- what was pinned

    def marked(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """See `ChecksRanges`. The mark is a hash of the range's last log entry."""
        with self._reading():
            self._check_mark(previous)
            self._files(range_)
            return self.recognised(range_, previous)

    def recognised(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """See `Recognises`. What was there before is looked at last: a table exchanged meanwhile has one wrong mark."""
        with self._reading():
            marked = replace(range_, mark=self._log.mark(range_.ends[0] - 1))
            self._check_mark(previous)
            return marked

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        log = self._log_of_pinned()
        for range_ in ranges:
            offsets.same_topic(range_.topic_id, log, "this range")
            if log.partitions[0][1] < range_.ends[0]:
                raise rules.shorter(range_, log)
            with self._reading():
                self._check_mark(range_)
                if missing := self._log.missing(self._files(range_)):
                    raise rules.vacuumed(range_, missing)

    def _log_of_pinned(self) -> TopicLog:
        try:
            return self.log()
        except rules.NoTable as error:
            why = "A checkpoint has pinned a range of it, and it was deleted since."
            raise SourceLost(error.what, why, rules.RESTORE) from error

    def _check_mark(self, range_: TopicRange | None) -> None:
        """An entry that was cleaned up cannot be told from another one any more."""
        if range_ is None or range_.mark is None:
            return
        found = self._log.mark(range_.ends[0] - 1)
        if found is not None and found != range_.mark:
            raise rules.replaced(range_)

    def _files(self, range_: TopicRange) -> list[File]:
        """The files that have to be read for the range.

        Raises:
            InvalidPipeline: they cannot be read as the definition says.
            SourceLost: a part of the log is not there any more.
        """
        start, end = range_.partitions[0]
        if start == end:
            return []
        if range_.folders:
            rules.check_table(self._config, delta_folders.newest(self._log))
            return delta_folders.published(self._log, range_)
        table = self._table(range_, end - 1)  # whose columns are those of the range
        if start == 0:
            return rules.inside(self._config, table.version(), active(table))
        versions = self._versions(range_)
        self._check_between(range_, versions)
        if not self._config.changes:
            return rules.added(self._config, versions)
        return [file for version in versions for file in version.changed or (*version.added, *version.removed)]

    def _table(self, range_: TopicRange, version: int) -> DeltaTable:
        """As of that version of the range. Raises as `_files`."""
        try:
            table = self._log.table(version)
        except DeltaError as error:
            raise rules.cleaned_up(range_, version, str(error)) from error
        rules.check_same(range_, str(table.metadata().id))
        rules.check_table(self._config, table)
        return table

    def _check_between(self, range_: TopicRange, versions: list[Version]) -> None:
        """Files mean what the table said when they were written, and it may say something else at the range's end."""
        redefined = {version.number for version in versions if version.redefines}
        if redefined or self._config.changes:
            for version in sorted({range_.starts[0], *redefined}):
                self._table(range_, version)

    def _versions(self, range_: TopicRange) -> list[Version]:
        start, end = range_.partitions[0]
        try:
            return self._log.versions(range(start, end))
        except FileNotFoundError as error:
            raise rules.cleaned_up(range_, start, str(error)) from error

    # --- reading

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """The rows of the range as a lazy DataFrame, with the columns that the table had at its end."""
        from onceonly.spark import tables

        (range_,) = ranges
        start, end = range_.partitions[0]
        with self._reading():
            table = delta_folders.newest(self._log) if range_.folders else self._log.table(max(end - 1, 0))
            schema, where = tables.schema_of(table.schema().to_json()), spark_uri(self._uri)
            if start == end:
                rows = spark.createDataFrame([], schema)
            elif start == 0 and not range_.folders:
                rows = tables.snapshot(spark, where, end - 1, schema)
            elif self._config.changes:
                return tables.changed(spark, where, start, end, schema)
            else:
                files = [(file.path, file.values) for file in self._files(range_)]
                return tables.appended(spark, where, schema, table.metadata().partition_columns, files)
            if self._config.changes:
                return tables.inserted(rows, max(end - 1, 0), self._times().get(end - 1, NO_DATE))
            return rows

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Errors of the table and its storage as ours.

        Raises:
            InvalidPipeline: there is no table, or delta-rs does not know one of its features.
            NotCommitted: the storage does not answer.
        """
        try:
            yield
        except TableNotFoundError as error:
            raise rules.no_table(self._config, self._uri) from error
        except DeltaError as error:
            raise rules.unreadable(self._config, self._uri, error) from error
        except OSError as error:
            raise NotCommitted(
                f"table '{self._config.topic}' cannot be read.",
                f"{type(error).__name__}: {error}",
                f"Fix the storage of {self._uri}, then retry. Nothing was written.",
            ) from error

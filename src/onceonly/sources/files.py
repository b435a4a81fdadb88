"""A folder of files as a source: the decisions of the FileSink that publishes to it are the offsets of one partition.

A sink publishes its decisions in order, so where one is seen, all before it are. The manifest of a decision never
changes; it is removed only when a later one replaces it. So what a range of decisions means is fixed: the files of
those manifests in it that are in force, by the types that they say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

from onceonly.checkpoint.boundary_search import FirstRecord, search
from onceonly.checkpoint.offsets import FILES, NO_OFFSETS, Offsets, TopicLog, TopicRange
from onceonly.errors import NotCommitted
from onceonly.filesystems import places
from onceonly.filesystems.interface import FileSystem
from onceonly.filesystems.paths import spark_uri
from onceonly.pipeline.tables import FileSource
from onceonly.sources import file_manifests
from onceonly.sources import file_rules as rules
from onceonly.sources.at_rest import AtRest
from onceonly.sources.file_manifests import Manifest
from onceonly.spark.file_formats import Schema


class FileReader(AtRest):
    """The `Source` of a `FileSource`; plans by the manifests in the folder, reads with Spark.

    Args:
        uri: the folder's absolute path, file://, hdfs:// or s3:// URI.
        webhdfs: HTTP address of the NameNode, for a folder on HDFS.
    """

    def __init__(self, config: FileSource, uri: str, webhdfs: str | None = None) -> None:
        self._config, self._uri, self._webhdfs = config, uri, webhdfs

    def check(self) -> list[str]:
        log = self.log()
        newest = self._manifests()[-1]
        rules.check(self._config, self._range(log, newest), [], [newest])
        written = f"written by sink '{newest.txn.sink}' of '{newest.txn.pipeline}'"
        return [f"{log.called} is there, at decision {newest.decision}: {self._uri}, {written}, read by its manifests"]

    def log(self) -> TopicLog:
        """From 0, which comes before every decision, to the newest one."""
        found = self._manifests()
        stream = rules.one_writer(self._config, found)
        return TopicLog(self._config.topic, stream, {0: (0, found[-1].decision + 1)}, FILES)

    def offsets_at(
        self, time: datetime, latest: datetime | None = None, floor: Offsets = NO_OFFSETS
    ) -> Mapping[int, FirstRecord]:
        """The first decision that was published at or after `time`, by the order of the decisions."""
        manifests = self._manifests()
        return {0: search(self._dated(manifests), time, latest, manifests[-1].decision + 1, floor.get(0, 0))}

    def _dated(self, manifests: list[Manifest]) -> Iterator[tuple[int, datetime]]:
        for manifest in manifests:
            if manifest.at is None:
                raise rules.untimed(self._config, manifest)
            yield manifest.decision, manifest.at

    # --- what was pinned

    def marked(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """See `ChecksRanges`. The mark is a digest of the range's manifests, and of all up to its end."""
        mine = self._written_by(range_)
        covered = file_manifests.within(file_manifests.in_force(mine), range_)
        rules.check(self._config, range_, file_manifests.within(mine, range_), covered)
        return self._marked(range_, previous, mine)

    def recognised(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """See `Recognises`."""
        return self._marked(range_, previous, self._written_by(range_))

    def _marked(self, range_: TopicRange, previous: TopicRange | None, mine: list[Manifest]) -> TopicRange:
        if previous:
            _check_same(mine, previous)
        return replace(range_, mark=file_manifests.mark(mine, range_))

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        for range_ in ranges:
            files = [file for manifest in self._pinned(range_) for file in manifest.files]
            with self._reading():
                if missing := file_manifests.missing(*self._place, files):
                    raise rules.gone(range_, missing)

    def _pinned(self, range_: TopicRange) -> list[Manifest]:
        """The manifests in force that the range covers, if they are those that were pinned."""
        mine = self._written_by(range_)
        if range_.mark is not None and _part(range_.mark, 0) != _part(file_manifests.mark(mine, range_), 0):
            raise rules.changed(range_, _taking_back(mine, range_))
        return file_manifests.within(file_manifests.in_force(mine), range_)

    def _written_by(self, range_: TopicRange) -> list[Manifest]:
        """The manifests of the writer that was pinned: others that have come since are no part of the range."""
        try:
            found = self._manifests()
        except rules.NoFiles as error:
            raise rules.not_the_one(range_) from error
        mine = [manifest for manifest in found if manifest.stream == range_.topic_id]
        if not mine:
            raise rules.not_the_one(range_)
        return mine

    # --- reading

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """The rows of the range as a lazy DataFrame, with the columns that any checkpoint in it has written."""
        from onceonly.spark import files

        (range_,) = ranges
        alike: dict[str, list[Manifest]] = {}
        for manifest in self._pinned(range_):
            if manifest.files:
                alike.setdefault(_how_to_read(manifest), []).append(manifest)
        if not alike:
            return files.none(spark, *self._columns(range_))
        groups = [files.Group(each[0].format, each[0].schema or {}, _paths(each)) for each in alike.values()]
        return files.rows(spark, _spark_uri(self._place[1]), groups)

    def _columns(self, range_: TopicRange) -> tuple[str, Schema]:
        """Of what was written last before the range's end; else of what was written first."""
        known = [(each.decision, each.format, each.schema) for each in self._written_by(range_) if each.schema]
        if not known:
            raise rules.unknown_columns(self._config)
        before = [each for each in known if each[0] < max(range_.ends.values())]
        return (before or known[:1])[-1][1:]

    @cached_property
    def _place(self) -> tuple[FileSystem, str]:
        found = places.of(self._uri, self._webhdfs)
        if found is None:
            raise rules.no_place(self._config, self._uri)
        return found

    def _manifests(self) -> list[Manifest]:
        """All, in the order of their decisions.

        Raises:
            NoFiles: there is none.
            SourceLost: one of them is damaged.
        """
        on, folder = self._place
        try:
            with self._reading():
                found = file_manifests.read(on, folder)
        except file_manifests.Damaged as error:
            raise rules.damaged(self._config, folder, error) from error
        if not found:
            raise rules.no_files(self._config, self._uri)
        return found

    def _range(self, log: TopicLog, manifest: Manifest) -> TopicRange:
        at = manifest.decision
        return TopicRange(log.topic, log.topic_id, {0: (at, at + 1)}, FILES)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Errors of the storage as ours. Raises NotCommitted: it does not answer."""
        try:
            yield
        except OSError as error:
            raise NotCommitted(
                f"folder '{self._config.topic}' cannot be read.",
                f"{type(error).__name__}: {error}",
                f"Fix the storage of {self._uri}, then retry. Nothing was written.",
            ) from error


def _check_same(mine: Sequence[Manifest], previous: TopicRange) -> None:
    """Refuse a folder in which something has changed below what was read, or has come there late.

    What was taken back since cannot be told from that: its manifest is removed. Whether the manifest that did it can be
    passed over is asked where a range contains it.
    """
    if previous.mark is None or _taking_back(mine, previous):
        return
    if _part(previous.mark, 1) != _part(file_manifests.mark(mine, previous), 1):
        raise rules.rewritten(previous)


def _taking_back(mine: Sequence[Manifest], range_: TopicRange) -> list[Manifest]:
    return [manifest for manifest in mine if manifest.decision >= max(range_.ends.values()) and manifest.replaces]


def _part(mark: str, number: int) -> str:
    return mark.split("-")[number]


def _how_to_read(manifest: Manifest) -> str:
    """The same for files that Spark can read at once: of one format and schema, in folders of the same columns."""
    return json.dumps([manifest.format, manifest.schema, manifest.files[0].partitions], sort_keys=True)


def _paths(manifests: Sequence[Manifest]) -> list[str]:
    return [file.path for manifest in manifests for file in manifest.files]


def _spark_uri(folder: str) -> str:
    return f"file://{folder}" if folder.startswith("/") else spark_uri(folder)

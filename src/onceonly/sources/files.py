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
from onceonly.pipeline.sources import FileSource
from onceonly.sources import StoredSource, file_manifests
from onceonly.sources.file_manifests import Manifest, ManifestFile
from onceonly.spark.row_files import Schema
from onceonly.storage.file_systems import open_file_system
from onceonly.storage.interface import FileSystem
from onceonly.storage.paths import spark_uri


class FileReader(StoredSource):
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
        file_manifests.check_range(self._config, _range_of_decision(log, newest.decision), [], [newest])
        written = f"written by sink '{newest.txn.sink}' of '{newest.txn.pipeline}'"
        return [f"{log.label} is there, at decision {newest.decision}: {self._uri}, {written}, read by its manifests"]

    def log(self) -> TopicLog:
        """Return the log from 0, which comes before every decision, to the newest one."""
        manifests = self._manifests()
        stream = file_manifests.require_one_writer(self._config, manifests)
        return TopicLog(self._config.topic, stream, {0: (0, manifests[-1].decision + 1)}, FILES)

    def offsets_at(
        self, time: datetime, latest: datetime | None = None, floor: Offsets = NO_OFFSETS
    ) -> Mapping[int, FirstRecord]:
        """Find the first decision that was published at or after `time`, by the order of the decisions."""
        manifests = self._manifests()
        times = self._iterate_times(manifests)
        return {0: search(times, time, latest, manifests[-1].decision + 1, floor.get(0, 0))}

    def _iterate_times(self, manifests: list[Manifest]) -> Iterator[tuple[int, datetime]]:
        """Yield each decision and its time, lazily: only a manifest that the search reaches needs a time."""
        for manifest in manifests:
            if manifest.at is None:
                raise file_manifests.missing_time_error(self._config, manifest)
            yield manifest.decision, manifest.at

    # --- what was pinned

    def add_mark(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """Return the range with its mark: a digest of its manifests in force, and of all up to its end.

        Raises:
            InvalidPipeline: the range cannot be read as what was added to the folder.
            SourceLost: the folder is not the one of `previous`, or what was read of it has changed.
        """
        manifests = self._read_pinned_stream(range_)
        new = file_manifests.select_new(manifests, range_)
        file_manifests.check_range(self._config, range_, file_manifests.select_range(manifests, range_), new)
        return _add_mark(range_, previous, manifests)

    def mark_left_out(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """Return the range with its mark, whether it can be read or not."""
        return _add_mark(range_, previous, self._read_pinned_stream(range_))

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        """Check that every pinned file is still there. Raises SourceLost if not."""
        for range_ in ranges:
            files: list[ManifestFile] = []
            for manifest in self._read_pinned_manifests(range_):
                files += manifest.files
            with self._translate_storage_errors():
                missing_paths = file_manifests.list_missing_files(*self._place, files)
                if missing_paths:
                    raise file_manifests.missing_files_error(range_, missing_paths)

    def _read_pinned_manifests(self, range_: TopicRange) -> list[Manifest]:
        """Read the manifests that are new in the range. Raises SourceLost: they are not those that were pinned."""
        manifests = self._read_pinned_stream(range_)
        if range_.mark is not None:
            mark = file_manifests.compute_mark(manifests, range_)
            if _digest_of_range(range_.mark) != _digest_of_range(mark):
                raise file_manifests.changed_manifests_error(range_, _list_later_replacements(manifests, range_))
        return file_manifests.select_new(manifests, range_)

    def _read_pinned_stream(self, range_: TopicRange) -> list[Manifest]:
        """Read the manifests of the writer that was pinned: others that have come since are no part of the range.

        Raises:
            SourceLost: there is none.
        """
        try:
            manifests = self._manifests()
        except file_manifests.NothingPublished as error:
            raise file_manifests.other_writer_error(range_) from error
        stream = [manifest for manifest in manifests if manifest.stream == range_.topic_id]
        if not stream:
            raise file_manifests.other_writer_error(range_)
        return stream

    # --- reading

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        """Return the rows of the range as a lazy DataFrame, with the columns that any checkpoint in it has written."""
        from onceonly.spark import row_files

        (range_,) = ranges
        manifests_by_reader: dict[str, list[Manifest]] = {}
        for manifest in self._read_pinned_manifests(range_):
            if manifest.files:
                manifests_by_reader.setdefault(_reader_key(manifest), []).append(manifest)
        if not manifests_by_reader:
            return row_files.make_empty_rows(spark, *self._find_columns(range_))
        groups = []
        for manifests in manifests_by_reader.values():
            first = manifests[0]  # all have its format and schema
            groups.append(row_files.FileGroup(first.format, first.schema or {}, _list_paths(manifests)))
        return row_files.read_file_groups(spark, _spark_uri(self._place[1]), groups)

    def _find_columns(self, range_: TopicRange) -> tuple[str, Schema]:
        """Return the format and schema that were written last before the range's end; else those written first.

        Raises:
            InvalidPipeline: no manifest has a schema.
        """
        range_end = max(range_.ends.values())
        columns: tuple[str, Schema] | None = None
        for manifest in self._read_pinned_stream(range_):  # in the order of their decisions
            if manifest.schema and (columns is None or manifest.decision < range_end):
                columns = manifest.format, manifest.schema
        if columns is None:
            raise file_manifests.unknown_columns_error(self._config)
        return columns

    @cached_property
    def _place(self) -> tuple[FileSystem, str]:
        place = open_file_system(self._uri, self._webhdfs)
        if place is None:
            raise file_manifests.unsupported_storage_error(self._config, self._uri)
        return place

    def _manifests(self) -> list[Manifest]:
        """Read all manifests, in the order of their decisions.

        Raises:
            NoFiles: there is none.
            SourceLost: one of them is damaged.
        """
        file_system, folder = self._place
        try:
            with self._translate_storage_errors():
                manifests = file_manifests.read_manifests(file_system, folder)
        except file_manifests.DamagedManifest as error:
            raise file_manifests.damaged_manifest_error(self._config, folder, error) from error
        if not manifests:
            raise file_manifests.empty_folder_error(self._config, self._uri)
        return manifests

    @contextmanager
    def _translate_storage_errors(self) -> Iterator[None]:
        """Turn errors of the storage into the project's. Raises NotCommitted: it does not answer."""
        try:
            yield
        except OSError as error:
            raise NotCommitted(
                f"folder '{self._config.topic}' cannot be read.",
                f"{type(error).__name__}: {error}",
                f"Fix the storage of {self._uri}, then retry. Nothing was written.",
                code="store-unreachable",
            ) from error


def _range_of_decision(log: TopicLog, decision: int) -> TopicRange:
    return TopicRange(log.topic, log.topic_id, {0: (decision, decision + 1)}, FILES)


def _add_mark(range_: TopicRange, previous: TopicRange | None, manifests: list[Manifest]) -> TopicRange:
    if previous:
        _check_history(manifests, previous)
    return replace(range_, mark=file_manifests.compute_mark(manifests, range_))


def _check_history(manifests: Sequence[Manifest], previous: TopicRange) -> None:
    """Refuse a folder in which something has changed below what was read, or has come there late.

    What was retracted since cannot be told from that: its manifest is removed. Whether the manifest that did it can be
    passed over is asked where a range contains it.

    Raises:
        SourceLost
    """
    if previous.mark is None or _list_later_replacements(manifests, previous):
        return
    mark = file_manifests.compute_mark(manifests, previous)
    if _digest_of_history(previous.mark) != _digest_of_history(mark):
        raise file_manifests.rewritten_history_error(previous)


def _list_later_replacements(manifests: Sequence[Manifest], range_: TopicRange) -> list[Manifest]:
    """Return the manifests behind the range that retract others."""
    range_end = max(range_.ends.values())
    return [manifest for manifest in manifests if manifest.decision >= range_end and manifest.replaces]


def _digest_of_range(mark: str) -> str:
    return mark.split("-")[0]


def _digest_of_history(mark: str) -> str:
    return mark.split("-")[1]


def _reader_key(manifest: Manifest) -> str:
    """Return the same text for files that Spark can read at once: of one format, schema and partition columns."""
    return json.dumps([manifest.format, manifest.schema, manifest.files[0].partitions], sort_keys=True)


def _list_paths(manifests: Sequence[Manifest]) -> list[str]:
    paths = []
    for manifest in manifests:
        paths += [file.path for file in manifest.files]
    return paths


def _spark_uri(folder: str) -> str:
    return f"file://{folder}" if folder.startswith("/") else spark_uri(folder)

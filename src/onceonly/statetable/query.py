"""Finding rows of a pipeline in the files of its table, by delta-rs's own query engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from onceonly.checkpoint.model import Row
from onceonly.checkpoint.offsets import Interval
from onceonly.delta import log_files
from onceonly.errors import OnceonlyError
from onceonly.statetable import row_format
from onceonly.statetable.log import Damaged, damage_error, read_error
from onceonly.storage.objects import WRITTEN, Objects
from onceonly.storage.paths import local_path
from onceonly.waits import wait_for

MAX_ATTEMPTS = 3  # of one question
MAX_COPIED_BYTES = 32 << 20  # of files that are copied from an object store
IN_ORDER = "OVER (ORDER BY interval_start, interval_end)"
T = TypeVar("T")


class Query:
    """Queries of one pipeline's table. They are bounded by numbers of rows, so that any later version has the same.

    Args:
        version: by which all rows up to the one with the id `last` were merged.
    """

    def __init__(self, pipeline: str, uri: str, version: int | None = None, last: str | None = None) -> None:
        self.pipeline, self.uri = pipeline, uri
        self._table: DeltaTable | None = None
        self._version, self._last = version, last

    def find(self, where: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows that the SQL condition chooses, unsorted, as records of these columns."""
        sql = f"SELECT {', '.join(columns)} FROM state WHERE {where}"
        rows: pa.Table = self._ask(lambda table: run(table, sql))
        schema = pa.schema([row_format.arrow_schema().field(name) for name in columns])
        records: list[dict[str, Any]] = rows.cast(schema).to_pylist()
        return records

    def covered_intervals(self, where: str) -> list[Interval]:
        """Return the time that the intervals of the chosen rows cover, as intervals that do not meet."""
        # Each row that starts after the end of the one before it (b) begins an interval, and b ends the one before.
        pinned = f"SELECT interval_start AS s, lag(interval_end) {IN_ORDER} AS b FROM state WHERE {where}"
        first_rows = self._ask(
            lambda table: run(table, f"SELECT * FROM ({pinned}) WHERE b IS NULL OR b < s ORDER BY s")
        )
        last = self._ask(lambda table: run(table, f"SELECT max(interval_end) AS e FROM state WHERE {where}"))
        starts = first_rows["s"].to_pylist()
        if not starts:
            return []
        ends = [*first_rows["b"].to_pylist()[1:], last["e"][0].as_py()]
        return [Interval(start, end) for start, end in zip(starts, ends, strict=True)]

    def last(self) -> Row | None:
        """Return the last row, which has to have the number that the log names last.

        Raises:
            OutcomeUnknown: it has not, so the table is damaged; or the table cannot be read.
        """
        number = self._ask(lambda table: table.transaction_version(self.pipeline) or 0)
        records = self.find(f"seq = {number}", tuple(row_format.COLUMNS))
        if number and not records:
            raise damage_error(
                self.pipeline, self.uri, f"According to its log the last row is number {number}, which is missing."
            )
        return row_format.from_record(records[0]) if records else None

    def check_complete(self) -> None:
        """Check that no row is missing or doubled, where another program has written to the table.

        Raises:
            Damaged: rows were deleted, or others added.
        """
        number = self._ask(lambda table: table.transaction_version(self.pipeline) or 0)
        sql = "SELECT count(*) AS n, count(DISTINCT seq) AS kinds, max(seq) AS last FROM state"
        (counts,) = self._ask(lambda table: run(table, sql)).to_pylist()
        if [counts["n"], counts["kinds"], counts["last"] or 0] != [number] * 3:
            raise Damaged(
                f"Another program has changed it: according to its log it has {number} rows, but it has {counts['n']}."
            )

    def _ask(self, question: Callable[[DeltaTable], T]) -> T:
        """Return the answer, from a newer version if files of this one were removed.

        Raises:
            OutcomeUnknown: the newer version cannot be read either.
        """
        last_error: Exception = OSError("not tried")
        for _ in range(MAX_ATTEMPTS):
            try:
                with wait_for(f"the state table at {self.uri}, which is searched"):
                    self._table = self._table or self._copy_table() or DeltaTable(self.uri)
                    return question(self._table)
            except OnceonlyError:
                raise
            except Exception as error:  # also of the query engine, whose errors have no class of their own
                last_error, self._table, self._version = error, None, None
        raise read_error(self.pipeline, self.uri, last_error)

    def _copy_table(self) -> DeltaTable | None:
        """Copy the files that a log checkpoint names from an object store to this machine, unless they are large.

        Each is one request, while delta-rs reads a file by many parts.

        Returns:
            The copy, which lives as long as this query; None: there is no such log checkpoint, the files are large, or
            the table is on a disk.
        """
        if self._version is None or local_path(self.uri):
            return None
        files, path = Objects(self.uri), log_files.checkpoint_path(self._version)
        scratch = TemporaryDirectory(prefix="onceonly-", ignore_cleanup_errors=True)
        weakref.finalize(self, scratch.cleanup)
        copy = Path(scratch.name)
        (copy / log_files.LOG_FOLDER).mkdir()
        tag = None
        if self._last:
            tag = rows_up_to(self._last)
        try:
            (copy / path).write_bytes(files.read(path, tag))
        except FileNotFoundError:
            return None
        table = DeltaTable(str(copy))
        adds = table.get_add_actions()
        if sum(adds["size_bytes"].to_pylist()) > MAX_COPIED_BYTES:
            return None
        for name in adds["path"].to_pylist():
            (copy / name).write_bytes(files.read(name, WRITTEN))
        return table


@lru_cache(1)
def query_up_to(id: str, pipeline: str, uri: str, version: int) -> Query:
    """Return a query for the row with that id and those before it. They never change, so the table is opened once."""
    return Query(pipeline, uri, version, id)


def rows_up_to(id: str) -> str:
    """Return what stands in place of the tag of a log checkpoint whose rows are those up to the one with that id."""
    return f"rows up to {id}"


def run(table: DeltaTable, sql: str) -> pa.Table:
    """Return the result of a query of the table `state`.

    It is run by delta-rs's own engine: with pyarrow's, some processes abort when they exit.
    """
    stream = QueryBuilder().register("state", table).execute(sql).read_all()
    return pa.RecordBatchReader.from_stream(stream).read_all()  # pa.table would import pandas

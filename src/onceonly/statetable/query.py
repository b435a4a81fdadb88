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
from onceonly.errors import OnceonlyError
from onceonly.filesystems import delta_names
from onceonly.filesystems.objects import WRITTEN, Objects
from onceonly.filesystems.paths import local_path
from onceonly.statetable import row_format
from onceonly.statetable.arrow_format import SCHEMA
from onceonly.statetable.log import Damaged
from onceonly.statetable.trouble import damaged, unreadable

TRIES = 3
MOST = 32 << 20  # bytes of files that are copied from an object store
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
        """The chosen rows, unsorted, as records of these columns."""
        sql = f"SELECT {', '.join(columns)} FROM state WHERE {where}"
        found: pa.Table = self._ask(lambda table: run(table, sql))
        records: list[dict[str, Any]] = found.cast(pa.schema([SCHEMA.field(name) for name in columns])).to_pylist()
        return records

    def covered(self, where: str) -> list[Interval]:
        """The time that the intervals of those rows cover, as intervals that do not meet."""
        pinned = f"SELECT interval_start AS s, lag(interval_end) {IN_ORDER} AS b FROM state WHERE {where}"
        found = self._ask(lambda table: run(table, f"SELECT * FROM ({pinned}) WHERE b IS NULL OR b < s ORDER BY s"))
        last = self._ask(lambda table: run(table, f"SELECT max(interval_end) AS e FROM state WHERE {where}"))
        starts = found["s"].to_pylist()
        ends = [*found["b"].to_pylist()[1:], last["e"][0].as_py()]
        return [Interval(start, end) for start, end in zip(starts, ends, strict=True)] if starts else []

    def last(self) -> Row | None:
        """The last row, which has to have the number that the log names last."""
        number = self._ask(lambda table: table.transaction_version(self.pipeline) or 0)
        found = self.find(f"seq = {number}", tuple(row_format.COLUMNS))
        if number and not found:
            raise damaged(
                self.pipeline, self.uri, f"According to its log the last row is number {number}, which is missing."
            )
        return row_format.from_record(found[0]) if found else None

    def check_complete(self) -> None:
        """Check that no row is missing or doubled, where another program has written to the table.

        Raises:
            Damaged: rows were deleted, or others added.
        """
        number = self._ask(lambda table: table.transaction_version(self.pipeline) or 0)
        count = "SELECT count(*) AS n, count(DISTINCT seq) AS kinds, max(seq) AS last FROM state"
        (found,) = self._ask(lambda table: run(table, count)).to_pylist()
        if [found["n"], found["kinds"], found["last"] or 0] != [number] * 3:
            raise Damaged(
                f"Another program has changed it: according to its log it has {number} rows, but it has {found['n']}."
            )

    def _ask(self, question: Callable[[DeltaTable], T]) -> T:
        """The result, from a newer version if files of this one were removed.

        Raises:
            OutcomeUnknown: the newer version cannot be read either.
        """
        trouble: Exception = OSError("not tried")
        for _ in range(TRIES):
            try:
                self._table = self._table or self._copied() or DeltaTable(self.uri)
                return question(self._table)
            except OnceonlyError:
                raise
            except Exception as error:  # also of the query engine, whose errors have no class of their own
                trouble, self._table, self._version = error, None, None
        raise unreadable(self.pipeline, self.uri, trouble)

    def _copied(self) -> DeltaTable | None:
        """Of a table on an object store, a copy of the files that a log checkpoint names, unless they are large.

        Each is one request, while delta-rs reads a file by many parts.
        """
        if self._version is None or local_path(self.uri):
            return None
        files, path = Objects(self.uri), delta_names.checkpoint(self._version)
        scratch = TemporaryDirectory(prefix="onceonly-", ignore_cleanup_errors=True)
        weakref.finalize(self, scratch.cleanup)
        copy = Path(scratch.name)
        (copy / delta_names.LOG).mkdir()
        try:
            (copy / path).write_bytes(files.read(path, rows_up_to(self._last) if self._last else None))
        except FileNotFoundError:
            return None
        table = DeltaTable(str(copy))
        adds = table.get_add_actions()
        if sum(adds["size_bytes"].to_pylist()) > MOST:
            return None
        for name in adds["path"].to_pylist():
            (copy / name).write_bytes(files.read(name, WRITTEN))
        return table


@lru_cache(1)
def of_rows_up_to(id: str, pipeline: str, uri: str, version: int) -> Query:
    """For questions about the row with that id and those before it: they never change, so the table is opened once."""
    return Query(pipeline, uri, version, id)


def rows_up_to(id: str) -> str:
    """In place of a tag: of a log checkpoint of which all rows are those up to the one with that id, merged."""
    return f"rows up to {id}"


def run(table: DeltaTable, sql: str) -> pa.Table:
    """By delta-rs's own engine: with pyarrow's, some processes abort when they exit."""
    stream = QueryBuilder().register("state", table).execute(sql).read_all()
    return pa.RecordBatchReader.from_stream(stream).read_all()  # pa.table would import pandas

"""Reading rows of the state table at one version.

Rows never change. So if files or log entries of that version were cleaned up meanwhile, a newer version is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from onceonly.checkpoint.model import Row
from onceonly.errors import OnceonlyError, OutcomeUnknown
from onceonly.statetable import row_format

TRIES = 3
T = TypeVar("T")


class Reading:
    """The table as of `delta`. A query that is bounded by sequence numbers has the same result in any later version."""

    def __init__(self, reopen: Callable[[], DeltaTable], delta: DeltaTable | None = None, behind: bool = False) -> None:
        self._reopen = reopen
        self.delta = delta or reopen()
        self._behind = behind  # it does not show yet what was written from it; updated only when it is read

    def ask(self, question: Callable[[DeltaTable], T]) -> T:
        """The result of the query, from a newer version if this one can no longer be read.

        Raises:
            OutcomeUnknown: the newer version cannot be read either.
        """
        for _ in range(TRIES):
            try:
                if self._behind:
                    self.delta.update_incremental()
                    self._behind = False
                return question(self.delta)
            except OnceonlyError:
                raise
            except Exception as error:  # also of the query engine, whose errors have no class of their own
                trouble = error
            self.delta, self._behind = self._reopen(), False
        raise OutcomeUnknown(
            f"the state table at {self.delta.table_uri} cannot be read.",
            f"{type(trouble).__name__}: {trouble}",
            "Nothing was written. Check its storage. If files are missing, restore them, then: onceonly recover",
        )

    def version(self, pipeline: str) -> int:
        """The number of the pipeline's last row; 0 if it has none."""
        return self.ask(lambda table: table.transaction_version(pipeline) or 0)

    def pipelines(self) -> list[str]:
        return self.ask(lambda table: sorted(p["pipeline"] for p in table.partitions()))

    def scan(self, chosen: Mapping[str, str], columns: Sequence[str]) -> pa.Table:
        """The chosen rows of each pipeline, by an SQL condition."""
        found = self.ask(lambda table: _scan(table, chosen, columns))
        return found.cast(pa.schema([row_format.SCHEMA.field(name) for name in columns]))

    def rows(self, chosen: Mapping[str, str]) -> list[Row]:
        """The chosen rows of each pipeline, in order of their numbers."""
        if not chosen:
            return []
        found = self.ask(lambda table: _scan(table, chosen, row_format.SCHEMA.names))
        return sorted(row_format.from_arrow(found), key=lambda row: row.seq)


def _scan(table: DeltaTable, chosen: Mapping[str, str], columns: Sequence[str]) -> pa.Table:
    """Scan by delta-rs's own engine: with pyarrow's, some processes abort when they exit.

    Text may come as string views. Casting them needs pyarrow.compute, which is slow to import.
    """
    where = " OR ".join(f"(pipeline = {sql_text(name)} AND {which})" for name, which in chosen.items())
    query = f"SELECT {', '.join(columns)} FROM state WHERE {where}"
    stream = QueryBuilder().register("state", table).execute(query).read_all()
    return pa.RecordBatchReader.from_stream(stream).read_all()  # pa.table would import pandas


def sql_text(value: str) -> str:
    """The value as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def sql_time(value: datetime) -> str:
    return f"arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"

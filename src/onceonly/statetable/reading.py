"""Reading rows of the state table, at one version of it.

Rows never change, so what was cleaned up meanwhile (merged files, old log entries) is read from a newer version.
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
    """The table as of `delta`; what bounds a question by sequence numbers gets one answer, from whatever version."""

    def __init__(self, reopen: Callable[[], DeltaTable], delta: DeltaTable | None = None, behind: bool = False) -> None:
        self._reopen = reopen
        self.delta = delta or reopen()
        self._behind = behind  # does not show yet what was written from it; often nobody asks

    def ask(self, question: Callable[[DeltaTable], T]) -> T:
        """Its answer, of a newer version where this one cannot be read any more.

        Raises:
            OutcomeUnknown: nor can that one.
        """
        for _ in range(TRIES):
            try:
                if self._behind:
                    self.delta.update_incremental()
                    self._behind = False
                return question(self.delta)
            except OnceonlyError:
                raise
            except Exception as error:  # of the query engine too, whose errors have no class of their own
                trouble = error
            self.delta, self._behind = self._reopen(), False
        raise OutcomeUnknown(
            f"the state table at {self.delta.table_uri} cannot be read.",
            f"{type(trouble).__name__}: {trouble}",
            "Nothing was written. Check its storage; if files of it are gone, restore them, then recover.",
        )

    def version(self, pipeline: str) -> int:
        """Number of the pipeline's last row; 0 where it has none."""
        return self.ask(lambda table: table.transaction_version(pipeline) or 0)

    def pipelines(self) -> list[str]:
        return self.ask(lambda table: sorted(p["pipeline"] for p in table.partitions()))

    def scan(self, chosen: Mapping[str, str], columns: Sequence[str]) -> pa.Table:
        """By pipeline: which of its rows."""
        found = self.ask(lambda table: _scan(table, chosen, columns))
        return found.cast(pa.schema([row_format.SCHEMA.field(name) for name in columns]))

    def rows(self, chosen: Mapping[str, str]) -> list[Row]:
        """In order."""
        if not chosen:
            return []
        found = self.ask(lambda table: _scan(table, chosen, row_format.SCHEMA.names))
        return sorted(row_format.from_arrow(found), key=lambda row: row.seq)


def _scan(table: DeltaTable, chosen: Mapping[str, str], columns: Sequence[str]) -> pa.Table:
    """As delta-rs has it: text may be string views. To cast them takes pyarrow.compute, which is slow to import.

    By delta-rs's own engine: pyarrow's, reading through its file system, aborts some processes at their exit.
    """
    where = " OR ".join(f"(pipeline = {sql_text(name)} AND {which})" for name, which in chosen.items())
    query = f"SELECT {', '.join(columns)} FROM state WHERE {where}"
    stream = QueryBuilder().register("state", table).execute(query).read_all()
    return pa.RecordBatchReader.from_stream(stream).read_all()  # pa.table would import pandas, and look for its frames


def sql_text(value: str) -> str:
    """As a question has it; so has `sql_time`."""
    return "'" + value.replace("'", "''") + "'"


def sql_time(value: datetime) -> str:
    return f"arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"

"""Rows without Spark, for sinks that take the rows of a DataFrame one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class FakeRow(dict[str, Any]):
    """A row with a method of Spark's `Row`."""

    def asDict(self, recursive: bool = False) -> dict[str, Any]:
        return dict(self)


class FakeRows(list[FakeRow]):
    """Rows with those methods of Spark's `DataFrame` that hand them out."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        super().__init__(map(FakeRow, rows))

    def collect(self) -> list[FakeRow]:
        return list(self)

    def toLocalIterator(self) -> Iterator[FakeRow]:
        return iter(self)

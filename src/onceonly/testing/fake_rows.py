"""Rows without Spark, for sinks that take the rows of a DataFrame one by one, or as an Arrow table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TYPE_NAMES: Mapping[type, str] = {bool: "boolean", bytes: "binary", float: "double", int: "long", str: "string"}
ARROW_NAMES = {"boolean": "bool", "binary": "binary", "double": "double", "long": "int64", "string": "string"}


class FakeRow(dict[str, Any]):
    """A row with a method of Spark's `Row`."""

    def asDict(self, recursive: bool = False) -> dict[str, Any]:
        return dict(self)


@dataclass(frozen=True)
class FakeSchema:
    """Columns with those members of Spark's `StructType` that name them.

    Args:
        types: Spark's name of each column's type.
    """

    types: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        return list(self.types)

    def json(self) -> str:
        fields = []
        for name, kind in self.types.items():
            fields.append({"name": name, "type": kind, "nullable": True, "metadata": {}})
        return json.dumps({"type": "struct", "fields": fields})


class FakeRows(list[FakeRow]):
    """Rows with those members of Spark's `DataFrame` that hand them out, and that name their columns.

    Args:
        types: of the columns, by Spark's names; None: those of the first row's values.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = (), types: Mapping[str, str] | None = None) -> None:
        super().__init__(map(FakeRow, rows))
        self._types = types

    @property
    def schema(self) -> FakeSchema:
        types = self._types
        if types is None:
            first_row = self[0] if self else {}
            types = {name: TYPE_NAMES.get(type(value), "string") for name, value in first_row.items()}
        return FakeSchema(types)

    @property
    def columns(self) -> list[str]:
        return self.schema.names

    def collect(self) -> list[FakeRow]:
        return list(self)

    def toLocalIterator(self) -> Iterator[FakeRow]:
        return iter(self)

    def toArrow(self) -> Any:
        """Return a pyarrow.Table."""
        import pyarrow as pa

        fields = [(name, pa.type_for_alias(ARROW_NAMES[kind])) for name, kind in self.schema.types.items()]
        return pa.Table.from_pylist(list(self), pa.schema(fields))

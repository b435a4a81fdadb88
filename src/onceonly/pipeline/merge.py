"""How changes are merged into a table, as users declare it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onceonly.pipeline.checks import invalid

# Begins the error of a Spark job that a transform fails because a record says nothing that can be merged.
REFUSED_RECORD = "onceonly: this record is refused: "


@dataclass(frozen=True)
class Merge:
    """Rows are changes: the newest row of each key is the one in the table, in whatever order changes arrive.

    Args:
        keys: columns that identify a row; never null. With the partition columns among them, only the partitions of
            the changes are searched.
        order_by: columns that order the changes of a key, such as a log position; never null. They stay in the table.
            A change that is not above the row in the table has no effect.
        deletes: a boolean column, never null, that is true in a row that says its key was deleted. Such a row stays in
            the table and keeps older changes out, so readers filter on this column. By default nothing is deleted.
    """

    keys: Sequence[str]
    order_by: Sequence[str]
    deletes: str | None = None

    def __post_init__(self) -> None:
        for name in ("keys", "order_by"):
            columns = getattr(self, name)
            if isinstance(columns, str) or not columns:
                raise invalid(f"Merge({name}={columns!r})", "names no columns", "Give a list of column names.")
            object.__setattr__(self, name, tuple(columns))
        if len(set(self.columns)) != len(self.columns):
            raise invalid(f"Merge with {list(self.columns)}", "names a column twice", "Name each one once.")

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it names."""
        deletes = [] if self.deletes is None else [self.deletes]
        return (*self.keys, *self.order_by, *deletes)

    @property
    def by(self) -> dict[str, list[str]]:
        """What a handle stores of it."""
        return {"keys": list(self.keys), "order_by": list(self.order_by)}

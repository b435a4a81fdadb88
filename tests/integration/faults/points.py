"""Named points of a process, before and after what it does, for scripts that die at one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onceonly.checkpoint.model import Row
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View

Reach = Callable[[str], None]


def around(kind: type, method: str, name: str, reach: Reach) -> None:
    """Points 'before NAME' and 'after NAME' around a method."""
    inner = getattr(kind, method)

    def outer(*arguments: Any, **more: Any) -> Any:
        reach(f"before {name}")
        result = inner(*arguments, **more)
        reach(f"after {name}")
        return result

    setattr(kind, method, outer)


def around_rows(reach: Reach) -> None:
    """Points 'before EVENT row' and 'after EVENT row' around each write of the state table."""
    inner = StateTable.append

    def outer(table: StateTable, view: View, row: Row) -> View:
        reach(f"before {row.event.value} row")
        result = inner(table, view, row)
        reach(f"after {row.event.value} row")
        return result

    StateTable.append = outer  # type: ignore[method-assign]

"""What the tries of one replacement keep from each other, see `checkpoint_rows`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Holder:
    """What a file holds.

    Args:
        matches: by transaction that is looked for, how many rows.
        rows: how many there are, without those that a deletion vector hides.
    """

    matches: Mapping[str, int]
    rows: int

    @property
    def is_whole(self) -> bool:
        """Return whether it holds rows of these transactions only."""
        return sum(self.matches.values()) == self.rows


@dataclass
class RowCache:
    """What several tries of one publication have to find out only once: a file never changes.

    Args:
        names: what is looked for, by column.
        holders: by path. A file with a deletion vector is read again, because that does change.
        copies: by what they are copies of, the add actions of files in the table's folder.
    """

    names: Mapping[str, Any] = field(default_factory=dict)
    holders: dict[str, Holder] = field(default_factory=dict)
    copies: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def use_for(self, names: Mapping[str, Any]) -> None:
        """Forget what was found out about others."""
        if self.names != names:
            self.names, self.holders, self.copies = names, {}, {}

"""What sinks write to, in memory: a table, a folder, a topic, and the runs of an application's state.

A target only does and shows; who may do what when is up to the sink, and what must never happen is told to `watch`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

Rows = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """One publication: the rows of the transaction of that name, and the names that they take the place of."""

    name: str
    decision: int
    instead: tuple[str, ...] = ()
    column: str = ""


@dataclass
class Target:
    """Common to all: what is staged by name, what was published in order, and how it is broken (None: it is not).

    Args:
        identity: tells it from another one in the same place; empty: there is none.
        versions: what has changed it, in order: a name and its decision. An older copy has fewer of them.
        removed: names whose rows a person has deleted on purpose.
        ever: all names that were published here, also to a copy that was replaced since.
        rehearsed: transactions whose rehearsal has passed since the target was changed by somebody else.
        passed: rehearsals that have ever passed: of which transaction, for which decision, after which publication.
    """

    staged: dict[str, Rows] = field(default_factory=dict)
    log: tuple[Entry, ...] = ()
    broken: str | None = None
    identity: str = "1"
    versions: tuple[tuple[str, int], ...] = ()
    removed: frozenset[str] = frozenset()
    ever: frozenset[str] = frozenset()
    rehearsed: frozenset[str] = frozenset()
    passed: frozenset[tuple[str, int, int]] = frozenset()

    def copy(self) -> Target:
        return replace(self, **{name: dict(each) for name, each in vars(self).items() if isinstance(each, dict)})

    def become(self, other: Target) -> None:
        """Be what another one is: an older copy, an empty place, or the one that was here before."""
        ever, removed, passed = self.ever | self.published | set(getattr(self, "done", ())), self.removed, self.passed
        vars(self).update(vars(other.copy()))
        self.ever, self.removed, self.passed = ever, removed, passed
        self.is_changed()

    def is_changed(self) -> None:
        """Note that somebody has changed it, so what was rehearsed need not hold."""
        self.rehearsed = frozenset()

    def has_version(self, number: int, version: tuple[str, int]) -> bool:
        """Whether that change of it, counted from 1, is the one that is recorded."""
        return len(self.versions) >= number and self.versions[number - 1] == version

    def key(self) -> Hashable:
        return repr(sorted((name, sorted(v.items()) if isinstance(v, dict) else v) for name, v in vars(self).items()))

    @property
    def shown(self) -> list[Entry]:
        """What readers see, in order."""
        gone = {name for entry in self.log for name in entry.instead}
        return [entry for entry in self.log if entry.name not in gone]

    def rows(self, name: str) -> Rows | None:
        """Of a publication that is shown; None: they are gone, although it says that they are there."""
        return self.staged.get(name)

    def visible(self) -> list[int]:
        return [row for entry in self.shown for row in self.rows(entry.name) or ()]

    @property
    def published(self) -> set[str]:
        return {entry.name for entry in self.log}

    def remove(self, names: set[str]) -> None:
        """A person deletes the rows of these publications."""
        self.removed |= names
        self.is_changed()
        self.log = tuple(entry for entry in self.log if entry.name not in names)
        self.staged = {name: rows for name, rows in self.staged.items() if name not in names}

    def left(self) -> set[str]:
        """Names of what is staged and not published."""
        return set(self.staged) - self.published


@dataclass
class Lake(Target):
    """A Delta table: files of a staged folder become part of it; the log keeps each application's last decision.

    Args:
        last: app id -> (decision, name); the name is empty where the decision was fenced.
        column: type of the column that the next publication adds; empty: none has added it yet; None: none adds one.
    """

    last: dict[str, tuple[int, str]] = field(default_factory=dict)
    column: str | None = None

    def publish(self, app_id: str, seen: tuple[int, str] | None, entry: Entry | None, decision: int) -> bool:
        """One log entry; False: another of this application came since `seen`."""
        if self.last.get(app_id) != seen:
            return False
        self.last[app_id] = (decision, entry.name if entry else "")
        self.log += (entry,) if entry else ()
        self.versions += ((entry.name if entry else "fence", decision),)
        self.identity = self.identity or f"made by {entry.name if entry else 'a fence'}"
        if entry and self.column is not None:
            self.column = self.column or entry.column
        return True


@dataclass
class Days(Lake):
    """Whole partitions are replaced: here there is one, so each publication takes out what is shown."""

    def publish(self, app_id: str, seen: tuple[int, str] | None, entry: Entry | None, decision: int) -> bool:
        if entry:
            entry = replace(entry, instead=tuple(other.name for other in self.shown))
        return super().publish(app_id, seen, entry, decision)


@dataclass
class Ledger(Lake):
    """Takes nothing back, and what is staged for it is elsewhere, as in a spool: it stays when the target goes back."""

    def become(self, other: Target) -> None:
        spooled = {name: rows for name, rows in self.staged.items() if name not in self.published}
        super().become(other)
        self.staged = {**self.staged, **spooled}


@dataclass
class Folder(Target):
    """Files: moved one after the other, then listed by a manifest of the checkpoint's, which is never overwritten.

    Args:
        moved: names whose files have their final place.
        manifests: its name -> the transaction that it lists; the empty one lists nothing.
        kept: names whose staged files were moved out of the reach of who publishes.
    """

    moved: dict[str, Rows] = field(default_factory=dict)
    manifests: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Rows] = field(default_factory=dict)

    def rows(self, name: str) -> Rows | None:
        return self.moved.get(name)

    def visible(self) -> list[int]:
        """To a reader who goes by what lies in the folder."""
        return [row for name in self.moved for row in self.moved[name]]

    def left(self) -> set[str]:
        return set(self.staged) | (set(self.moved) - self.published)


@dataclass(frozen=True)
class Tx:
    """A transaction at the broker: of which name, with which rows, and how it stands: open, committed, aborted."""

    name: str
    rows: Rows
    stands: str = "open"


@dataclass
class Topic(Target):
    """A Kafka topic: `staged` is the spool, `txs` are by id and producer; what is committed stays.

    Args:
        slots: id of a pool -> the producer that has it.
        cut: ids of those whose markers are in a part of the log that is gone.
    """

    txs: dict[str, Tx] = field(default_factory=dict)
    committed: tuple[str, ...] = ()  # in order
    slots: dict[str, str] = field(default_factory=dict)
    cut: tuple[str, ...] = ()

    def open(self, id: str, name: str, rows: Rows, pooled: str | None = None) -> None:
        if pooled:
            self.end(self.slots.get(pooled), "aborted")  # the same id in other hands: the one before is fenced
            self.slots[pooled] = id
        self.txs[id] = Tx(name, rows)

    def end(self, id: str | None, stands: str) -> bool:
        """False: it is not open any more."""
        if id is None or id not in self.txs or self.txs[id].stands != "open":
            return False
        self.txs[id] = replace(self.txs[id], stands=stands)
        self.committed += (id,) if stands == "committed" else ()
        return True

    def of(self, name: str) -> list[str]:
        """Ids of what is open under that name, other than those of a pool."""
        return [id for id, tx in self.txs.items() if tx.name == name and tx.stands == "open" and id not in self.pooled]

    @property
    def pooled(self) -> set[str]:
        return set(self.slots.values())

    def rows(self, name: str) -> Rows | None:
        return tuple(row for tx in self.txs.values() if tx.name == name and tx.stands == "committed" for row in tx.rows)

    def visible(self) -> list[int]:
        return [row for id in self.committed for row in self.txs[id].rows]

    def left(self) -> set[str]:
        return set(self.staged) | {tx.name for tx in self.txs.values() if tx.stands == "open"}


@dataclass
class Runs(Target):
    """Runs of an application's state: `staged` holds each by name, `done` marks those that were published."""

    done: dict[str, int] = field(default_factory=dict)
    fenced: dict[str, int] = field(default_factory=dict)

    def left(self) -> set[str]:
        return set(self.staged) - set(self.done)

    def visible(self) -> list[int]:
        return []  # which runs count is up to the handle

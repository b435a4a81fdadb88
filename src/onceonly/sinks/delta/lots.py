"""What became of each published file, by the whole log: a lot is the rows of one file, as it was published.

A commit that takes out a file of a lot has moved its rows (OPTIMIZE, or a replacement that copies what it leaves),
merged them with newer ones, taken them out on purpose, or is somebody else's. Which files may hold a lot is followed
from commit to commit. So the last state of which every file is in the table is the one that counts, also after a
RESTORE; and two such states without a common file mean that the rows are in the table twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum

from onceonly.delta.table_history import LogEntry, TableFile, TableHistory
from onceonly.delta.txn_identifiers import is_kept_copy
from onceonly.sinks.delta.handle import DeltaHandle
from onceonly.sinks.delta.staged_table import COPY_PREFIX

OWN_APP = "onceonly/"  # how the application ids of all sinks begin
# Operations that put the rows of a file that they leave as they are into another file; others take files out, or back.
ROW_OPERATIONS = ("DELETE", "UPDATE", "MERGE", "TRUNCATE")


class StepKind(Enum):
    MOVED = "moved"  # by a rewrite that changes no data
    LOST = "lost"  # by such a rewrite, which has fewer or more rows now
    KEPT = "kept"  # copied by a replacement of other rows
    MERGED = "merged"  # with newer rows of the same keys
    TAKEN_OUT = "taken out"  # by the publication that replaces or retracts it
    OVERWRITTEN = "overwritten"  # by a publication that replaces whole partitions
    CHANGED = "changed"  # by somebody else


@dataclass(frozen=True)
class Step:
    """One commit that took out a file of a lot.

    Args:
        publication: number of the publication that this commit is; None: it is none of this sink.
        is_certain: CHANGED: the file had rows of this lot's publication alone. So some of those were changed.
        is_among_own: CHANGED: the file had rows of this sink alone.
        difference: LOST: rows after it, less those before.
    """

    kind: StepKind
    entry: LogEntry
    publication: int | None = None
    is_certain: bool = True
    is_among_own: bool = True
    difference: int = 0


@dataclass(frozen=True)
class LotState:
    """Which files may hold the lot's rows (identities), after these steps."""

    files: frozenset[str]
    steps: tuple[Step, ...] = ()


@dataclass
class Lot:
    """The rows of one published file.

    Args:
        publication: its number among those of the sink.
        states: oldest first.
    """

    publication: int
    file: TableFile
    states: list[LotState] = field(default_factory=list)

    def find_present(self, files: Set[str]) -> list[LotState]:
        """Return the states of which every file is in the table, newest first, without a common file."""
        present: list[LotState] = []
        for state in reversed(self.states):
            if not state.files or not state.files <= files:
                continue
            if all(state.files.isdisjoint(other.files) for other in present):
                present.append(state)
        return present


@dataclass
class LotTracker:
    """Follows the lots of all publications through the log.

    Args:
        handles: of the publications; their place is their number.
        entries: by publication, the entry that published it; those that are not found are left out.
        lots: by publication.
    """

    history: TableHistory
    handles: Sequence[DeltaHandle]
    entries: dict[int, LogEntry] = field(default_factory=dict)
    lots: dict[int, list[Lot]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.files_ever: dict[str, TableFile] = {}
        self.entries_by_file: dict[str, LogEntry] = {}  # identity -> the last one that added it
        self._holders: dict[str, set[int]] = defaultdict(set)  # identity -> ids of the lots
        self._lots_ever: dict[str, set[int]] = defaultdict(set)  # the same, of every state of every lot
        self._lots_by_id: dict[int, Lot] = {}
        self._mixed: set[str] = set()  # files that may hold rows of others than this sink

    def follow(self, numbers: Mapping[tuple[str, int], int]) -> None:
        """Follow all lots from the first entry to the last.

        Args:
            numbers: (app id, transaction number) -> publication.
        """
        if self.history.base < self.history.first:
            self._add_base_lots()
        for entry in self.history.entries:
            self.files_ever |= entry.adds
            self.entries_by_file |= dict.fromkeys(entry.adds, entry)
            publication = None
            for txn in entry.txns.items():
                publication = numbers.get(txn, publication)
            added_again = entry.adds.keys() & self._lots_ever.keys()
            self._follow(entry, publication)
            for identity in sorted(added_again):
                self._go_back(identity)
            if publication is not None:
                self.entries[publication] = entry
                self._add_lots(publication, list_published_files(self.handles[publication], entry))
            if entry.version == self.history.base:
                self._add_base_lots()

    def list_publications_in(self, identity: str) -> set[int]:
        """Return the publications of which a file holds rows, or may hold some."""
        publications = set()
        for number in self._holders.get(identity, ()):
            publications.add(self._lots_by_id[number].publication)
        return publications

    def has_held(self, identity: str) -> bool:
        """Return whether a file holds rows of a publication, or has at any time."""
        return identity in self._lots_ever

    def _go_back(self, identity: str) -> None:
        """Let the lots that a file once held be in it again: a RESTORE, or somebody, has added it again."""
        for number in self._lots_ever[identity]:
            lot = self._lots_by_id[number]
            for state in reversed(lot.states):
                if identity in state.files:
                    self._set_state(number, state)
                    break

    def _set_state(self, number: int, state: LotState) -> None:
        lot = self._lots_by_id[number]
        for identity in lot.states[-1].files:
            self._holders[identity].discard(number)
        for identity in state.files:
            self._holders[identity].add(number)
            self._lots_ever[identity].add(number)
        if lot.states[-1] is not state:
            lot.states.append(state)

    def _add_base_lots(self) -> None:
        """Add the files that were published before the log's first entry, of those that were never moved."""
        self.files_ever |= self.history.base_files
        folders = {}
        for publication, handle in enumerate(self.handles):
            if publication not in self.entries:
                folders[handle.folder] = publication
        files_by_publication: dict[int, list[TableFile]] = defaultdict(list)
        for file in self.history.base_files.values():
            publication_or_none = folders.get(file.path.partition("/")[0])
            if publication_or_none is not None and not is_kept_copy(file.path):
                files_by_publication[publication_or_none].append(file)
        for publication, files in files_by_publication.items():
            self._add_lots(publication, files)

    def _add_lots(self, publication: int, files: Iterable[TableFile]) -> None:
        for file in files:
            lot = Lot(publication, file, [LotState(frozenset({file.identity}))])
            self._lots_by_id[id(lot)] = lot
            self.lots[publication].append(lot)
            self._holders[file.identity].add(id(lot))
            self._lots_ever[file.identity].add(id(lot))

    def _follow(self, entry: LogEntry, publication: int | None) -> None:
        removed = self._holders.keys() & entry.removes.keys()
        if not removed:
            return
        changes_data = any(file.changes_data for file in entry.adds.values())
        changes_data = changes_data or any(entry.removes[identity] for identity in removed)
        lots = set[int]()
        for identity in removed:
            lots |= self._holders[identity]
        steps: dict[int, tuple[Step, frozenset[str]]] = {}
        targets, losses = self._find_move(entry, removed) if not changes_data else ({}, {})
        for number in lots:
            lot = self._lots_by_id[number]
            own_removed = lot.states[-1].files & removed
            if not changes_data:
                files, difference = frozenset[str](), 0
                for identity in own_removed:
                    partition = self.files_ever[identity].partition
                    files |= targets.get(partition, frozenset())
                    difference = losses.get(partition, 0)
                kind = StepKind.LOST if difference else StepKind.MOVED
                steps[number] = Step(kind, entry, difference=difference), files
            elif publication is not None:
                steps[number] = self._step_of_publication(entry, publication, lot)
            else:
                steps[number] = self._step_of_others(entry, lot, own_removed)
        for number, (step, files) in steps.items():
            self._apply(number, step, files, removed)

    def _find_move(
        self, entry: LogEntry, removed: Collection[str]
    ) -> tuple[dict[str | None, frozenset[str]], dict[str | None, int]]:
        """Return by partition the files that a rewrite has put the rows into, and how many rows more they have."""
        targets: dict[str | None, frozenset[str]] = defaultdict(frozenset)
        counts: dict[str | None, list[int | None]] = defaultdict(list)
        sources: dict[str | None, set[str]] = defaultdict(set)
        for identity, file in entry.adds.items():
            targets[file.partition] |= {identity}
            counts[file.partition].append(file.rows)
        for identity in entry.removes:
            source = self.files_ever.get(identity)
            if source is None:
                continue  # of a table whose early log is gone: its number of rows is not known either
            sources[source.partition].add(identity)
            counts[source.partition].append(-source.rows if source.rows is not None else None)
        losses = {}
        for partition, numbers in counts.items():
            if len(sources[partition]) and None not in numbers:
                losses[partition] = sum(number for number in numbers if number is not None)
            if any(self._is_mixed(identity) for identity in sources[partition]):
                self._mixed |= targets[partition]
        return targets, losses

    def _is_mixed(self, identity: str) -> bool:
        return identity in self._mixed or not self._holders.get(identity)

    def _step_of_publication(self, entry: LogEntry, publication: int, lot: Lot) -> tuple[Step, frozenset[str]]:
        """Return what a publication of this sink does to a lot of which it takes out a file."""
        handle = self.handles[publication]
        for rows in handle.replaced:
            if rows.folder == self.handles[lot.publication].folder:
                return Step(StepKind.TAKEN_OUT, entry, publication), frozenset()
        if handle.where is not None:
            return Step(StepKind.OVERWRITTEN, entry, publication), frozenset()
        if handle.merge:
            return Step(StepKind.MERGED, entry, publication), frozenset(entry.adds)
        return Step(StepKind.KEPT, entry, publication), _list_kept_copies(entry)

    def _step_of_others(self, entry: LogEntry, lot: Lot, removed: Collection[str]) -> tuple[Step, frozenset[str]]:
        """Return what another writer has done to a lot: another pipeline of this project, or anybody."""
        if any(app_id.startswith(OWN_APP) for app_id in entry.txns):
            kept_copies = _list_kept_copies(entry)
            if kept_copies:
                return Step(StepKind.KEPT, entry), kept_copies
            if any(f"/{COPY_PREFIX}" in file.path for file in entry.adds.values()):
                return Step(StepKind.MERGED, entry), frozenset(entry.adds)
        if not entry.operation.upper().startswith(ROW_OPERATIONS):
            return Step(StepKind.CHANGED, entry), frozenset()
        is_certain = any(self.list_publications_in(identity) == {lot.publication} for identity in removed)
        is_unmixed = self._mixed.isdisjoint(removed)
        step = Step(StepKind.CHANGED, entry, is_certain=is_certain and is_unmixed, is_among_own=is_unmixed)
        return step, frozenset(entry.adds)

    def _apply(self, number: int, step: Step, files: frozenset[str], removed: Set[str]) -> None:
        lot = self._lots_by_id[number]
        state = lot.states[-1]
        taken_out = step.kind in (StepKind.TAKEN_OUT, StepKind.OVERWRITTEN)
        files_left = frozenset[str]() if step.kind is StepKind.TAKEN_OUT else state.files - removed
        self._set_state(number, LotState(files_left | files, (*state.steps, step)))
        if not taken_out and step.kind is StepKind.CHANGED:
            self._mixed |= files  # the other rows may be anybody's


def list_published_files(handle: DeltaHandle, entry: LogEntry) -> list[TableFile]:
    """Return the files that a publication has added: those that were staged, or else what Spark has written."""
    staged, written_files = list[TableFile](), list[TableFile]()
    for file in entry.adds.values():
        if is_kept_copy(file.path):
            continue
        (staged if file.path.startswith(f"{handle.folder}/") else written_files).append(file)
    return staged or written_files


def _list_kept_copies(entry: LogEntry) -> frozenset[str]:
    copies = set()
    for identity, file in entry.adds.items():
        if is_kept_copy(file.path):
            copies.add(identity)
    return frozenset(copies)

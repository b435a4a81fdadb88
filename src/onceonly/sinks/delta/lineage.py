"""Which files hold the rows of some transactions, by the log: those that published them, and what became of these.

A rewrite that changes no data (OPTIMIZE) moves rows within their partition. So as long as it takes nothing but files of
these transactions from a partition, the files that it adds there hold their rows and no others. Equal numbers of rows
would prove nothing. Source: Delta protocol, "Add File and Remove File", "Transaction Identifiers".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from onceonly.checkpoint.model import Transaction
from onceonly.delta import log_files, log_summary, table_files, txn_identifiers

MAX_ENTRIES = 10_000  # log entries that are searched for a publication
DELETIONS = ("DELETE", "TRUNCATE")  # operations that leave the other rows of a file as they are
MARKERS = tuple(f'"{name}"'.encode() for name in ("add", "remove", "txn", "commitInfo"))


@dataclass(frozen=True)
class Change:
    """A commit that did more to files with these rows than to move them.

    Args:
        leaves_values: the rows that are left are as they were; so their number tells whether some are gone.
    """

    version: int
    operation: str
    leaves_values: bool


@dataclass
class Lineage:
    """What became of the rows. Paths are decoded, and may be of files that were removed since.

    Args:
        whole_files: those that hold rows of these transactions, and no others.
        shared_files: those that may hold rows of others, too.
        other_files: those that somebody has added since, and that are in neither. Only a copy of the rows can be there.
        changes: what was done to files with these rows, other than to move them; the last one last.
    """

    whole_files: set[str] = field(default_factory=set)
    shared_files: set[str] = field(default_factory=set)
    other_files: set[str] = field(default_factory=set)
    changes: list[Change] = field(default_factory=list)

    def find_edit(self) -> Change | None:
        """Return the last change by which rows may have got other values."""
        for change in reversed(self.changes):
            if not change.leaves_values:
                return change
        return None


@dataclass(frozen=True)
class _Entry:
    """A log entry: its adds and removes by decoded path, and the transactions that it published."""

    version: int
    adds: Mapping[str, Mapping[str, Any]]
    removes: Mapping[str, Mapping[str, Any]]
    txns: Mapping[str, int]
    operation: str

    def is_publication_of(self, folder: str) -> bool:
        """Return whether this entry published the files of that staged folder.

        The number has 32 bits of the nonce only; another transaction with the same ones has files in another folder.
        """
        txn = Transaction.parse(folder.removeprefix(txn_identifiers.STAGED_PREFIX))
        number = self.txns.get(txn.app_id) if txn else None
        is_named = number is not None and txn_identifiers.is_version_of(number, folder)
        return is_named and bool(self.published_files(folder))

    def published_files(self, folder: str) -> set[str]:
        return {path for path in self.adds if txn_identifiers.is_in_staged_folder(path, folder)}

    @property
    def is_of_onceonly(self) -> bool:
        return any(app_id.startswith("onceonly/") for app_id in self.txns)

    @property
    def kept_copies(self) -> set[str]:
        """Return the copies of rows that the commit has left in the table: see `txn_identifiers.KEPT_PREFIX`."""
        return {path for path in self.adds if txn_identifiers.is_kept_copy(path)}

    def moves_only(self, paths: Collection[str]) -> bool:
        """Return whether nothing of this entry, and of the removals of these files, changes data."""
        changed = [add for add in self.adds.values() if add.get("dataChange", True)]
        return not changed and not any(self.removes[path].get("dataChange", True) for path in paths)


def trace(uri: str, version: int, folders: Collection[str]) -> Lineage | None:
    """Follow the rows of the transactions with these staged folders, up to that version of the table.

    None: the log no longer has the entry of each publication, or too many since.

    Raises:
        OSError: the log cannot be read.
    """
    entries = _read_back(uri, version, folders)
    if entries is None:
        return None
    lineage, partitions = Lineage(), dict[str, str | None]()
    for entry in reversed(entries):
        _follow(lineage, partitions, entry, folders)
    return lineage


def _follow(lineage: Lineage, partitions: dict[str, str | None], entry: _Entry, folders: Collection[str]) -> None:
    """Take one more entry into account.

    Args:
        partitions: of every file with rows of the transactions, as text.
    """
    own = set[str]()
    for folder in folders:
        if entry.is_publication_of(folder):
            own |= entry.published_files(folder)
    removed = (lineage.whole_files | lineage.shared_files) & entry.removes.keys()
    holders: set[str] = set()
    if removed and entry.moves_only(removed):
        holders = _follow_move(lineage, partitions, entry, removed)
    elif removed:
        # A replacement by this project copies what it leaves; anybody else may have put the rows into any file.
        is_copied = entry.is_of_onceonly and bool(entry.kept_copies)
        holders = entry.kept_copies if is_copied else set(entry.adds) - own
        leaves_values = is_copied or entry.operation.upper().startswith(DELETIONS)
        lineage.changes.append(Change(entry.version, entry.operation, leaves_values))
        lineage.whole_files -= removed
        lineage.shared_files = lineage.shared_files - removed | holders
    lineage.whole_files |= own
    for path in (*own, *holders):
        partitions[path] = _partition(entry.adds[path])
    if entry.removes or not entry.is_of_onceonly:  # else it has only added rows of another transaction
        lineage.other_files |= entry.adds.keys() - lineage.whole_files - lineage.shared_files


def _follow_move(lineage: Lineage, partitions: Mapping[str, str | None], entry: _Entry, removed: set[str]) -> set[str]:
    """Follow rows that were rewritten within their partitions; returns the files that hold them now."""
    holders: set[str] = set()
    whole_before = set(lineage.whole_files)
    lineage.whole_files -= removed
    lineage.shared_files -= removed
    for partition in {partitions[path] for path in removed}:
        sources = set[str]()
        for path, remove in entry.removes.items():
            known_partition = partitions.get(path, _partition(remove))
            if known_partition in (partition, None):  # which partition it was in need not be in the log
                sources.add(path)
        added = {path for path, add in entry.adds.items() if _partition(add) == partition}
        if sources <= whole_before:
            lineage.whole_files |= added
        else:
            lineage.shared_files |= added
        holders |= added
    return holders


def _partition(action: Mapping[str, Any]) -> str | None:
    """Return the partition of a file as one text; None: the action does not tell."""
    values = action.get("partitionValues")
    if values is None:
        return None
    return json.dumps({name: value or None for name, value in values.items()}, sort_keys=True)  # "" is null


# ---- entries


def _read_back(uri: str, version: int, folders: Collection[str]) -> list[_Entry] | None:
    """Read entries, the newest first, until each publication is among them; None: they end before."""
    files, entries, missing, size = table_files.open_folder(uri), list[_Entry](), set(folders), 1
    last = version
    with ThreadPoolExecutor(log_summary.MAX_PARALLEL_READS) as pool:
        while missing:
            numbers = range(last, max(last - size, -1), -1)
            if not numbers or len(entries) >= MAX_ENTRIES:
                return None
            for entry in pool.map(lambda number: _read_entry(files, number), numbers):
                if entry is None:
                    return None
                entries.append(entry)
                missing = {folder for folder in missing if not entry.is_publication_of(folder)}
                if not missing:
                    break
            last, size = numbers[-1] - 1, min(4 * size, 256)
    return entries


def _read_entry(files: pafs.FileSystem, version: int) -> _Entry | None:
    """Read a log entry; None: it is no longer there."""
    adds, removes, txns, operation = {}, {}, {}, "?"
    try:
        for action in _read_actions(files, version):
            if add := action.get("add"):
                adds[unquote(add["path"])] = add
            if remove := action.get("remove"):
                removes[unquote(remove["path"])] = remove
            if txn := action.get("txn"):
                txns[txn["appId"]] = txn["version"]
            if info := action.get("commitInfo"):
                operation = str(info.get("operation", "?"))
    except FileNotFoundError:
        return None
    return _Entry(version, adds, removes, txns, operation)


def _read_actions(files: pafs.FileSystem, version: int) -> Iterator[Mapping[str, Any]]:
    for line in table_files.read_lines(files, log_files.entry_path(version)):
        if any(marker in line for marker in MARKERS):
            yield json.loads(line)

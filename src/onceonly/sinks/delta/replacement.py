"""Published rows that are retracted, in the log entry that publishes others or none.

Exactly the rows of the handles go out, wherever they lie now. Files that are where they were published are removed
whole. Of rows that somebody has moved since, the column that names their transaction tells where they are; without it,
the log has to prove that a file holds them and no others (`lineage.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import no_retraction_error
from onceonly.counts import count
from onceonly.delta import active_adds, commits, statistics, table_files, table_snapshot, txn_identifiers
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.pipeline.sinks import PARTITIONS, DeltaSink
from onceonly.sinks.delta import changes, lineage, staged_table, target_table
from onceonly.sinks.delta.handle import DeltaHandle, StagedRows
from onceonly.sinks.delta.row_cache import RowCache
from onceonly.storage.paths import local_path

if TYPE_CHECKING:
    from onceonly.sinks.delta import checkpoint_rows

NO_TABLE = "The table no longer exists, or is another one."
COLUMN_HINT = "With DeltaSink(checkpoint_column=…), rows that are published from then on can be told from others."
# A property of the table, with the name of a transaction: what others did to its rows may be lost with them.
CONSENT = "onceonly.replaceEdited"
Files = dict[str, int]  # path (as in the log) -> size
UNREADABLE_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError, ArithmeticError)


@dataclass(frozen=True)
class Removal:
    """What a commit removes, and what it adds of the files that also hold rows of others.

    Args:
        files: to be removed.
        copies: add actions of the copies that stay in their place, with paths in the table's folder.
        vectors: by path, the add actions of removed files of which a deletion vector hides rows.
    """

    files: Files = field(default_factory=dict)
    copies: Sequence[dict[str, Any]] = ()
    vectors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class _Irreplaceable(Exception):
    """The rows cannot be told from others, or something would be lost with them."""

    def __init__(self, why: str, edited: StagedRows | None = None) -> None:
        super().__init__(why)
        self.why, self.edited = why, edited


@dataclass(frozen=True)
class _Located:
    """Where the rows are.

    Args:
        whole_files: those that hold nothing else.
        shared_files: those that hold rows of others, too.
        finder: tells them apart in those.
    """

    whole_files: Files = field(default_factory=dict)
    shared_files: Files = field(default_factory=dict)
    finder: checkpoint_rows.RowFinder | None = None


def check(config: DeltaSink, uri: str, olds: Sequence[DeltaHandle]) -> None:
    """Refuse to replace rows that cannot be told from others, or which somebody has edited since.

    Raises:
        InvalidPipeline: nothing was written.
    """
    try:
        for old in olds:
            if why := changes.why_irreplaceable(config, old):
                raise _Irreplaceable(why)
        target = table_files.open_table(uri)
        if target is None:
            raise _Irreplaceable(NO_TABLE)
        files = table_files.list_active_files(target)
        covered: Collection[str] = ()
        if config.replace == PARTITIONS:
            covered = files  # which partitions, the new rows will show
        elif config.replace:
            covered = table_files.select_in_partitions(files, target, [[tuple(part) for part in config.replace]])
        _locate(target, files, olds, covered, RowCache())
    except _Irreplaceable as error:
        code, todo = "published-rows-fixed", "Process the records again by a pipeline with a new name and new targets."
        if error.edited:
            code = "published-rows-edited"
            todo = (
                f"To keep the rows as they are: onceonly run … --reprocess --keep {config.name} --reason …. "
                f"To write them as the records have them now: {_consent_command(error.edited)}, and repeat the request."
            )
        raise InvalidPipeline(
            f"sink '{config.name}': the rows that are published in {uri} cannot be replaced.",
            error.why,
            f"{todo} Nothing was written.",
            code=code,
        ) from None


def make_retraction(config: DeltaSink, uri: str, txn: Transaction, olds: Sequence[DeltaHandle]) -> Handle:
    """Return a handle whose publication retracts the rows of others, see `ReplaceableRows`."""
    for old in olds:
        if old.where is not None or changes.why_irreplaceable(config, old):
            raise no_retraction_error(config.name)  # what they have replaced no longer exists
    check(config, uri, olds)
    target = table_files.open_table(uri)
    assert target is not None
    return {
        "kind": "delta",
        "uri": uri,
        "table_id": target.metadata().id,
        "fingerprint": table_snapshot.fingerprint(target),
        "added": [],
        "app_id": txn.app_id,
        "folder": txn_identifiers.STAGED_PREFIX + txn.name,
        "publish": "delta-rs",
        **{"files": 0, "rows": 0, "bytes": 0},
        "retracts": [old.retracted_json() for old in olds],
    }


def prepare(
    sink: str, target: DeltaTable, handle: DeltaHandle, adds: list[dict[str, Any]], altered: bool, cache: RowCache
) -> Removal:
    """Find what the publication removes from that snapshot of the table, and copy the rows of others, durably.

    Args:
        adds: the add actions of the staged rows.
        cache: of earlier tries of the same publication by this process.
    Raises:
        CannotPublish: the rows to be replaced are not what they were.
    """
    if not handle.replaced and handle.where is None:
        return Removal()
    try:
        return _prepare(target, handle, adds, altered, cache)
    except _Irreplaceable as error:
        consent = ""
        if error.edited:
            command = _consent_command(error.edited)
            consent = f"To write them as the records have them: {command}, then: onceonly recover PIPELINE. "
        raise CannotPublish(
            f"sink '{sink}': the rows to be replaced in {handle.uri} were changed.",
            error.why,
            f"{consent}To keep them: onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …. "
            f"The new rows are kept in {handle.folder}.",
            code="replaced-rows-changed",
        ) from None


def _prepare(
    target: DeltaTable, handle: DeltaHandle, adds: list[dict[str, Any]], altered: bool, cache: RowCache
) -> Removal:
    if altered:
        raise _Irreplaceable("The table was altered.")
    files = table_files.list_active_files(target)
    covered = _select_covered(target, files, handle, adds)
    located = _locate(target, files, handle.replaced, covered, cache)
    removed, rewritten = covered | located.whole_files, dict(located.shared_files)
    for path in removed:
        rewritten.pop(path, None)
    removed |= rewritten
    vectors = table_files.select_partly_deleted(target, removed)
    if vectors and not (local_path(target.table_uri) or target_table.has_conditional_puts()):
        raise _Irreplaceable(
            f"Deletion vectors hide rows of {count(len(vectors), 'file')} to be removed, such as {vectors[0]}. "
            "delta-rs cannot remove such a file, and nobody else may write to this table without its lock."
        )
    raw = active_adds.read(target.table_uri, target.version(), set(map(unquote, (*rewritten, *vectors))))
    copies: Sequence[dict[str, Any]] = ()
    if rewritten:
        assert located.finder is not None
        try:
            copies = located.finder.copy_others(handle.folder, [raw[unquote(path)] for path in sorted(rewritten)])
        except UNREADABLE_ERRORS as error:
            why = f"Rows of others lie in the same files, and cannot be copied: {type(error).__name__}: {error}"
            raise _Irreplaceable(why[:500]) from error
    return Removal(removed, copies, {path: raw[unquote(path)] for path in vectors})


def _select_covered(target: DeltaTable, files: Files, handle: DeltaHandle, adds: list[dict[str, Any]]) -> Files:
    """Select the files of the partitions, or of the condition, that the sink replaces whoever wrote them."""
    if handle.where is None:
        return {}
    if why := target_table.why_append_only(target):
        raise _Irreplaceable(why)
    if handle.where == PARTITIONS:
        return table_files.select_in_partitions(files, target, table_files.partition_condition(adds))
    return table_files.select_in_partitions(files, target, [[tuple(part) for part in handle.where]])


def list_overwritten(uri: str, handle: DeltaHandle) -> list[Transaction]:
    """List whose rows are in the partitions that it replaces; of rows that somebody has moved since it is not known."""
    target = table_files.open_table(uri) if handle.where is not None else None
    if target is None:
        return []
    adds = staged_table.read_adds(uri, handle.rows_folder, 1)
    try:
        covered = _select_covered(target, table_files.list_active_files(target), handle, adds)
    except _Irreplaceable:
        return []  # it replaces nothing, and its rehearsal says why
    folders = set()
    for path in covered:
        if txn_identifiers.is_of_one_transaction(path):
            folders.add(path.partition("/")[0].removeprefix(txn_identifiers.STAGED_PREFIX))
    return [txn for txn in map(Transaction.parse, sorted(folders)) if txn]


# ---- where the rows are


def _locate(
    target: DeltaTable, files: Files, olds: Sequence[StagedRows], covered: Collection[str], cache: RowCache
) -> _Located:
    """Find the rows of these handles in that snapshot.

    Args:
        files: all that it has.
        covered: those of which every row goes out, whoever wrote it.
    Raises:
        _Irreplaceable: it cannot be told where they are, or somebody has edited them.
    """
    why = target_table.why_append_only(target)
    if why is None and any(old.table_id != str(target.metadata().id) for old in olds):
        why = NO_TABLE
    if why:
        raise _Irreplaceable(why)
    whole_files, moved = Files(), []
    for old in olds:
        staged = table_files.select_staged_in(files, old.folder)
        if len(staged) == old.files and not table_files.select_partly_deleted(target, staged):
            whole_files |= staged
        else:
            moved.append(old)
    if not moved:
        return _Located(whole_files)
    trace = lineage.trace(target.table_uri, target.version(), [old.folder for old in olds])
    for old in moved:
        if old.checkpoint_column is None:
            whole_files |= _select_proven(target, files, old, trace, covered)
    named_rows = [old for old in moved if old.checkpoint_column]
    return _find_named(target, files, named_rows, trace, whole_files, cache) if named_rows else _Located(whole_files)


def _select_proven(
    target: DeltaTable, files: Files, old: StagedRows, trace: lineage.Lineage | None, covered: Collection[str]
) -> Files:
    """Select the files that hold the rows and nothing else, as the log proves."""
    staged = table_files.select_staged_in(files, old.folder)
    moved_files = f"{old.files - len(staged):,} of their {count(old.files, 'file')}"
    if trace is None:
        raise _Irreplaceable(
            f"OPTIMIZE, UPDATE or DELETE rewrote {moved_files}, and the table's log no longer reaches back to their "
            f"publication, so nothing proves where they are. {COLUMN_HINT}"
        )
    if trace.changes:
        change = trace.changes[-1]
        raise _Irreplaceable(
            f"{change.operation} changed data in the files with these rows (version {change.version}), so it cannot be "
            f"told which rows are theirs. {COLUMN_HINT}"
        )
    whole_files, shared_paths = Files(), []
    for decoded, path in table_files.find_by_decoded(files, trace.whole_files | trace.shared_files).items():
        if decoded in trace.whole_files:
            whole_files[path] = files[path]
        elif path not in covered:
            shared_paths.append(path)
    if shared_paths:
        raise _Irreplaceable(
            f"OPTIMIZE rewrote {moved_files} together with rows of others, into {count(len(shared_paths), 'file')} "
            f"such as {shared_paths[0]}. {COLUMN_HINT}"
        )
    return whole_files


def _find_named(
    target: DeltaTable,
    files: Files,
    olds: Sequence[StagedRows],
    trace: lineage.Lineage | None,
    whole_files: Files,
    cache: RowCache,
) -> _Located:
    """Find the rows by the column that names their transaction.

    Args:
        trace: None: every file is searched that may hold some.
        whole_files: those that go out anyway.
    """
    from onceonly.sinks.delta import checkpoint_rows  # with pandas, which takes a second

    names = _names(olds)
    finder = checkpoint_rows.RowFinder(target, names, cache)
    if missing := finder.missing_columns:
        raise _Irreplaceable(f"The table no longer has the column '{missing[0]}', which names their transaction.")
    if trace is None:
        candidates = _without_files_of_others(checkpoint_rows.list_possible(target, names), olds)
    else:
        candidates = trace.whole_files | trace.shared_files | trace.other_files
    paths = table_files.find_by_decoded(files, candidates)
    try:
        holders = finder.find(paths)
    except checkpoint_rows.OutsideFile as error:
        raise _Irreplaceable(f"A file of the table is outside of its folder: {error}.") from error
    except UNREADABLE_ERRORS as error:
        raise _Irreplaceable(f"A file of the table cannot be read: {type(error).__name__}: {error}"[:500]) from error
    matches = Counter[str]()
    for holder in holders.values():
        matches.update(holder.matches)
    for old in olds:
        if target.metadata().configuration.get(CONSENT) != old.transaction.name:
            _require_unedited(old, matches[old.transaction.name], trace)
    shared_files = Files()
    for path, holder in holders.items():
        (whole_files if holder.is_whole else shared_files)[paths[path]] = files[paths[path]]
    return _Located(whole_files, shared_files, finder)


def _without_files_of_others(paths: set[str], olds: Sequence[StagedRows]) -> set[str]:
    """Leave out the files that lie where another transaction has staged them."""
    folders = tuple(f"{old.folder}/" for old in olds)
    return {path for path in paths if path.startswith(folders) or not txn_identifiers.is_of_one_transaction(path)}


def _names(olds: Sequence[StagedRows]) -> dict[str, frozenset[str]]:
    """Return by column the transactions that it names."""
    names = defaultdict[str, set[str]](set)
    for old in olds:
        if old.checkpoint_column:
            names[old.checkpoint_column].add(old.transaction.name)
    return {column: frozenset(transactions) for column, transactions in names.items()}


def _require_unedited(old: StagedRows, row_count: int, trace: lineage.Lineage | None) -> None:
    """Refuse rows of which somebody has deleted or changed some: what was done would be undone, and nobody told."""
    published, name = old.rows or 0, old.transaction.name
    if row_count < published:
        why = (
            f"{published - row_count:,} of {count(published, 'row')} of {name} are no longer in the table: somebody "
            "has deleted them, and they would come back."
        )
    elif row_count > published:
        why = f"{row_count:,} rows name {name}, which has published {published:,}: somebody has copied rows."
    else:
        edit = trace.find_edit() if trace else None
        if edit is None:
            return
        why = (
            f"{edit.operation} changed data in files with rows of {name} (version {edit.version}), and what it changed "
            "in them would be undone."
        )
    raise _Irreplaceable(why, old)


def _consent_command(old: StagedRows) -> str:
    return f"ALTER TABLE … SET TBLPROPERTIES ('{CONSENT}' = '{old.transaction.name}')"


# ---- the commit


def commit(target: DeltaTable, handle: DeltaHandle, adds: list[dict[str, Any]], removal: Removal, version: int) -> None:
    """Write the log entry that publishes the staged rows and removes others.

    Args:
        adds: the add actions of the staged rows.
        version: the evidence.
    Raises:
        CommitFailedError: another commit came first.
    """
    staged = staged_table.with_folder(adds, handle.rows_folder)
    if not removal.vectors:
        actions = staged_table.to_actions([*staged, *removal.copies], target)
        commits.commit_entry(target, actions, table_files.to_removes(removal.files), handle.app_id, version)
        return
    removes = []
    for path, size in sorted(removal.files.items()):
        removes.append(removal.vectors.get(path, {"path": path, "size": size}))
    settled = statistics.with_settled_statistics([*staged, *removal.copies], target)
    commits.put_entry(target, settled, removes, handle.app_id, version)

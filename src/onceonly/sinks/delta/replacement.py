"""Published rows that are retracted, in the log entry that publishes others or none: only whole files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltalake import DeltaTable

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import no_retraction_error
from onceonly.counts import count
from onceonly.delta import table_files, table_snapshot, txn_identifiers
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.pipeline.sinks import PARTITIONS, DeltaSink
from onceonly.sinks.delta import changes, target_table
from onceonly.sinks.delta.handle import DeltaHandle, StagedRows


def check(config: DeltaSink, uri: str, old: DeltaHandle) -> None:
    """Refuse to replace rows unless each file with old rows has no other rows: only whole files can be removed."""
    target = table_files.open_table(uri)
    if why := changes.why_irreplaceable(config, old) or _why_irreplaceable(target, old):
        raise InvalidPipeline(
            f"sink '{config.name}': the rows that are published in {uri} cannot be replaced.",
            why,
            "Process the records again by a pipeline with a new name and new targets. Nothing was written.",
            code="published-rows-fixed",
        )


def make_retraction(config: DeltaSink, uri: str, txn: Transaction, olds: Sequence[DeltaHandle]) -> Handle:
    """Return a handle whose publication retracts the rows of others, see `ReplaceableRows`."""
    for old in olds:
        if old.where is not None or changes.why_irreplaceable(config, old):
            raise no_retraction_error(config.name)  # what they have replaced no longer exists
    for old in olds:
        check(config, uri, old)
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


def find_replaced_files(
    sink: str, target: DeltaTable, handle: DeltaHandle, adds: list[dict[str, Any]], altered: bool
) -> dict[str, int]:
    """Return path -> size of the files whose rows the new ones replace.

    Raises:
        CannotPublish: they are not what they were.
    """
    olds = handle.replaced
    if not olds and handle.where is None:
        return {}
    replaced: dict[str, int] = {}
    why = "The table was altered." if altered else _why_not_removable(target, olds)
    if not why:
        replaced = _replaced_files(target, handle, adds)
        why = _why_in_part(target, replaced)
    if why:
        raise CannotPublish(
            f"sink '{sink}': the rows to be replaced in {handle.uri} were changed.",
            why,
            f"To keep them: onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …. "
            f"The new rows are kept in {handle.folder}.",
            code="replaced-rows-changed",
        )
    return replaced


def _why_not_removable(target: DeltaTable, olds: Sequence[StagedRows]) -> str | None:
    """Say why files of these handles cannot be removed from the table; None if they can."""
    why = target_table.why_append_only(target)
    for old in olds:
        why = why or _why_irreplaceable(target, old)
    return why


def _why_irreplaceable(target: DeltaTable | None, old: StagedRows) -> str | None:
    if target is None or str(target.metadata().id) != old.table_id:
        return "The table no longer exists, or is another one."
    if why := target_table.why_append_only(target):
        return why
    files = table_files.select_in_folder(table_files.list_active_files(target), old.folder)
    rewritten = old.files - len(files)
    if rewritten:
        return f"OPTIMIZE, UPDATE or DELETE rewrote {rewritten:,} of their {count(old.files, 'file')}."
    return _why_in_part(target, files)


def _why_in_part(target: DeltaTable, files: Mapping[str, int]) -> str | None:
    """Say why these files cannot be removed, if so: delta-rs cannot remove a file that has a deletion vector."""
    paths = table_files.select_partly_deleted(target, files)
    if not paths:
        return None
    return (
        f"Deletion vectors have deleted rows from {count(len(paths), 'file')} to be removed, such as {paths[0]}, and "
        "delta-rs only removes whole files."
    )


def _replaced_files(target: DeltaTable, handle: DeltaHandle, adds: list[dict[str, Any]]) -> dict[str, int]:
    """Return path -> size of the files of replaced handles, and of the partitions or the condition to replace."""
    files = table_files.list_active_files(target)
    replaced: dict[str, int] = {}
    for old in handle.replaced:
        replaced |= table_files.select_in_folder(files, old.folder)
    where = handle.where
    if where is not None:
        if where == PARTITIONS:
            alternatives = table_files.partition_condition(adds)
        else:
            alternatives = [[tuple(part) for part in where]]
        replaced |= table_files.select_in_partitions(files, target, alternatives)
    return replaced

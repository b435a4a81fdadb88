"""Published rows that are taken out of the table, in the log entry that publishes others or none: only whole files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltalake import DeltaTable

from onceonly.checkpoint import model
from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import cannot_take_back
from onceonly.counts import count
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.pipeline.sinks import PARTITIONS, DeltaSink
from onceonly.sinks.delta import changes, log, stage

KEPT = ("folder", "files", "table_id")  # of a handle whose rows are taken back


def check(config: DeltaSink, uri: str, old: Handle) -> None:
    """Refuse it unless each file with old rows has no other rows: only whole files can be removed."""
    target = log.open_table(uri)
    if why := changes.irreplaceable(config, old) or _irreplaceable(target, old):
        raise InvalidPipeline(
            f"sink '{config.name}': the rows that are published in {uri} cannot be replaced.",
            why,
            "Process the records again by a pipeline with a new name and new targets. Nothing was written.",
        )


def retraction(config: DeltaSink, uri: str, txn: Transaction, olds: Sequence[Handle]) -> Handle:
    """See `Replaceable`."""
    if any("where" in old or changes.irreplaceable(config, old) for old in olds):
        raise cannot_take_back(config.name)  # what they have replaced no longer exists
    for old in olds:
        check(config, uri, old)
    target = log.open_table(uri)
    assert target is not None
    return {
        "kind": "delta",
        "uri": uri,
        "table_id": target.metadata().id,
        "fingerprint": log.fingerprint(target),
        "added": [],
        "app_id": txn.app_id,
        "folder": log.STAGED + txn.name,
        "publish": "delta-rs",
        **{"files": 0, "rows": 0, "bytes": 0},
        "retracts": [{name: old[name] for name in KEPT} for old in olds],
    }


def taken_out(
    sink: str, target: DeltaTable, handle: Handle, adds: list[dict[str, Any]], altered: bool
) -> dict[str, int]:
    """Path -> size of the files whose rows the new ones take the place of.

    Raises:
        CannotPublish: they are not what they were.
    """
    olds = model.taken_out(handle)
    if not olds and "where" not in handle:
        return {}
    why = "The table was altered." if altered else _against(target, olds)
    out = {} if why else _files_out(target, handle, adds)
    if why := why or _deleted_in_part(target, out):
        raise CannotPublish(
            f"sink '{sink}': the rows to be replaced in {handle['uri']} were changed.",
            why,
            f"To keep them: onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …. "
            f"The new rows are kept in {handle['folder']}.",
        )
    return out


def _against(target: DeltaTable, olds: list[Handle]) -> str | None:
    each = (_irreplaceable(target, old) for old in olds)
    return stage.only_appends(target) or next((why for why in each if why), None)


def _irreplaceable(target: DeltaTable | None, old: Handle) -> str | None:
    if target is None or target.metadata().id != old["table_id"]:
        return "The table no longer exists, or is another one."
    if why := stage.only_appends(target):
        return why
    found = log.in_folder(log.active_files(target), old["folder"])
    if lost := old["files"] - len(found):
        return f"OPTIMIZE, UPDATE or DELETE rewrote {lost:,} of their {count(old['files'], 'file')}."
    return _deleted_in_part(target, found)


def _deleted_in_part(target: DeltaTable, files: Mapping[str, int]) -> str | None:
    """Why these files cannot be removed, if so: delta-rs cannot remove a file that has a deletion vector."""
    if not (marked := log.deleted_in_part(target, files)):
        return None
    return (
        f"Deletion vectors have deleted rows from {count(len(marked), 'file')} to be removed, such as {marked[0]}, and "
        "delta-rs only removes whole files."
    )


def _files_out(target: DeltaTable, handle: Handle, adds: list[dict[str, Any]]) -> dict[str, int]:
    olds, where = model.taken_out(handle), handle.get("where")
    files = log.active_files(target)
    found = [log.in_folder(files, old["folder"]) for old in olds]
    if where is not None:
        alternatives = log.partitions(adds) if where == PARTITIONS else [[tuple(part) for part in where]]
        found.append(log.in_partitions(files, target, alternatives))
    return {path: size for part in found for path, size in part.items()}

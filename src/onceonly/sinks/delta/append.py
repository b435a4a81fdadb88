"""Publishes plain appends to a table on an object store, by a log entry of its own: a look, then a conditional put.

The entry is exactly the version after the one that shows that nothing was published yet. So if any other commit comes
between, the put is refused, and there is another look. A put whose own answer was lost is refused as well, if it is
tried again, and the look shows the entry. What is more than an append is left to delta-rs and Spark (`sink.py`).
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable

from onceonly.checkpoint.model import Outcome
from onceonly.checkpoint.sink import Publication
from onceonly.delta import (
    log_files,
    log_summary,
    statistics,
    table_features,
    table_files,
    table_snapshot,
)
from onceonly.errors import OutcomeUnknown
from onceonly.sinks.delta import errors, evidence, rehearsal, schema, staged_table, target_table
from onceonly.sinks.delta.handle import DeltaHandle
from onceonly.storage.objects import ListedObject, Objects

MAX_COMMIT_ATTEMPTS = 20  # conflicts with other writers, before an error is raised
MAX_AGE_SECONDS = 10.0  # of a look at the target with which a commit begins
ADD_KEYS = ("path", "partitionValues", "size", "modificationTime", "dataChange", "stats")
DEFAULT_CHECKPOINT_INTERVAL = 100  # commits between log checkpoints: delta-rs's default
CHECKPOINT_SETTING = "delta.checkpointInterval"
CLEANUP_SETTING = "delta.enableExpiredLogCleanup"  # the owner's choice whether old log entries are deleted


@dataclass(frozen=True)
class Prepared:
    """What a rehearsal has found out for the commit that follows: the put is refused if the log has grown in between.

    Args:
        staged: what was in the folder of the staged rows, which no put compares.
        looked_at: when the target was read, in seconds since 1970.
    """

    folder: str
    decision: int
    last: Publication | None
    target: table_snapshot.TableSnapshot
    adds: list[dict[str, Any]]
    staged: list[ListedObject]
    looked_at: float

    def is_for(self, handle: DeltaHandle, decision: int, last: Publication | None) -> bool:
        """Return whether a commit may begin with it: the rehearsal was for the same commit, and just now.

        A target that went back since is not what the put would follow on.
        """
        if (self.folder, self.decision, self.last) != (handle.folder, decision, last):
            return False
        return 0 <= time.time() - self.looked_at <= MAX_AGE_SECONDS


def rehearse(sink: str, uri: str, handle: DeltaHandle, decision: int, last: Publication | None) -> Prepared | None:
    """Do what `publish` does, up to its put. None: that is not for a plain append, or something is in its way.

    Raises:
        Fenced, StateBehind, TargetWentBack: as `publish`.
    """
    if not target_table.has_conditional_puts():
        return None
    looked_at, target = time.time(), log_summary.read_snapshot(uri)
    if target is None or target.metadata().id != handle.table_id:
        return None
    version = handle.txn_version(decision)
    if evidence.find_outcome(sink, handle, target.transaction_version(handle.app_id), version):
        return None
    errors.refuse_expiring_evidence(sink, uri, target.metadata().configuration)
    evidence.require_last_publication(sink, uri, last, handle.table_id, target.transaction_version)
    if not _is_plain(target, handle):
        return None
    files = Objects(uri)
    staged = files.list_objects(handle.rows_folder)
    adds = _find_adds(files, handle, staged, target)
    if adds is None or _is_old(target, staged):
        return None
    return Prepared(handle.folder, decision, last, target, adds, staged, looked_at)


def publish(
    sink: str,
    uri: str,
    handle: DeltaHandle,
    decision: int,
    last: Publication | None = None,
    prepared: Prepared | None = None,
) -> Outcome | None:
    """Append the staged files, once. Returns the outcome; None: this is not for a plain append, nothing was written.

    Args:
        prepared: by the rehearsal of the same handle.

    Raises:
        Fenced, StateBehind: see `evidence.outcome`.
        TargetWentBack: see `history.require`.
        OutcomeUnknown: the log could not be written or read back. It is safe to call again.
    """
    if not target_table.has_conditional_puts():
        return None
    try:
        return _publish(sink, uri, handle, handle.txn_version(decision), last, prepared)
    except OSError as error:
        raise errors.outcome_unknown(handle, f"{type(error).__name__}: {error}") from error


def _publish(
    sink: str, uri: str, handle: DeltaHandle, version: int, last: Publication | None, prepared: Prepared | None
) -> Outcome | None:
    files = Objects(uri)
    for _ in range(MAX_COMMIT_ATTEMPTS):
        # What a rehearsal has prepared is good for one put. If that is refused, the target has to be read.
        if prepared and prepared.staged == files.list_objects(handle.rows_folder):
            target, adds, prepared = prepared.target, prepared.adds, None
        else:
            prepared = None
            newest = _look(uri, handle)
            if newest is None or newest.metadata().id != handle.table_id:
                return None
            target = newest
            outcome = evidence.find_outcome(sink, handle, target.transaction_version(handle.app_id), version)
            if outcome:
                return outcome
            errors.refuse_expiring_evidence(sink, uri, target.metadata().configuration)
            evidence.require_last_publication(sink, uri, last, handle.table_id, target.transaction_version)
            if not _is_plain(target, handle):
                return None
            staged = files.list_objects(handle.rows_folder)
            staged_adds = _find_adds(files, handle, staged, target)
            if staged_adds is None or _is_old(target, staged):
                return None
            adds = staged_adds
        content = _entry(target, adds, handle.app_id, version).encode()
        try:
            files.create(log_files.entry_path(target.version() + 1), content)
        except FileExistsError:
            continue  # another writer was first, or this one, and its answer was lost
        _make_checkpoint_if_due(target)
        digest = hashlib.sha256(content).hexdigest()
        proof = evidence.make_proof(uri, handle.table_id, target.version() + 1, digest, handle.app_id, version)
        return Outcome(detail={"rows": handle.rows}, proof=proof)
    raise errors.outcome_unknown(
        handle, f"{MAX_COMMIT_ATTEMPTS} commits in a row conflicted with other writers of the table."
    )


def _look(uri: str, handle: DeltaHandle) -> table_snapshot.TableSnapshot | None:
    try:
        return log_summary.read_snapshot(uri)
    except OutcomeUnknown as error:  # which says that nothing was written
        raise errors.outcome_unknown(handle, error.why) from error


def _is_plain(target: table_snapshot.TableSnapshot, handle: DeltaHandle) -> bool:
    """Return whether files are added to a table as it was when they were staged, and nothing else is done."""
    if handle.merge or handle.where is not None or handle.replaced:
        return False
    return (
        handle.publish == "delta-rs"
        and set(schema.names(handle.added)) <= set(table_snapshot.column_names(target))
        and table_features.find_unsupported(target) is None
        and not schema.is_altered(target, handle)
    )


def _is_old(target: table_snapshot.TableSnapshot, staged: list[ListedObject]) -> bool:
    """Return whether a VACUUM may have some of them on its list. Such files are copied, by another way to publish."""
    return rehearsal.are_old(target, (file.changed for file in staged if file.path.endswith(".parquet")))


def _find_adds(
    files: Objects, handle: DeltaHandle, staged: list[ListedObject], target: table_snapshot.TableSnapshot
) -> list[dict[str, Any]] | None:
    """Find the actions that add the staged files to the target; None: some of them are no longer there.

    Args:
        staged: what is in the folder of the staged rows.
    """
    folder = handle.rows_folder
    path = f"{folder}/{log_files.entry_path(1)}"
    adds: list[dict[str, Any]] = []
    sizes = {}
    for file in staged:
        sizes[file.path] = file.size
        if file.path == path:
            adds = staged_table.parse_adds(files.read(path, file.tag).splitlines(), folder)
    if len(adds) != handle.files or table_files.find_missing(adds, folder, sizes):
        return None
    target_adds = []
    for add in statistics.with_settled_statistics(adds, target):
        target_add = {key: add.get(key) for key in ADD_KEYS}
        target_add["path"] = f"{folder}/{add['path']}"
        target_adds.append(target_add)
    return target_adds


def _entry(target: table_snapshot.TableSnapshot, adds: list[dict[str, Any]], app_id: str, version: int) -> str:
    now = int(time.time() * 1000)
    info = {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    table_summary = log_summary.summarize_for_commit(target, app_id, version)
    actions: list[dict[str, Any]] = [
        {"commitInfo": {**info, "isBlindAppend": True, "engineInfo": "onceonly", **table_summary}},
        {"txn": {"appId": app_id, "version": version, "lastUpdated": now}},
    ]
    for add in adds:
        actions.append({"add": {**add, "dataChange": True}})
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)


def _make_checkpoint_if_due(before: table_snapshot.TableSnapshot) -> None:
    """Make a log checkpoint, as delta-rs does after a commit, if one is due.

    Nothing depends on it, so a failure only causes a warning.

    Args:
        before: the table before the commit.
    """
    try:
        settings = before.metadata().configuration
        if (before.version() + 1) % int(settings.get(CHECKPOINT_SETTING, DEFAULT_CHECKPOINT_INTERVAL)):
            return
        table = DeltaTable(before.table_uri)
        table.create_checkpoint()
        if settings.get(CLEANUP_SETTING, "true").lower() == "true":  # what delta-rs itself looks at
            table.cleanup_metadata()
    except Exception as error:
        warnings.warn(f"{before.table_uri} got no log checkpoint: {error}", RuntimeWarning, stacklevel=2)

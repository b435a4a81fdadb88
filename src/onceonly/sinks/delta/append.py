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

from onceonly.checkpoint import model
from onceonly.checkpoint.model import Handle, Outcome
from onceonly.checkpoint.sink import Publication
from onceonly.errors import OutcomeUnknown
from onceonly.filesystems.objects import Found, Objects
from onceonly.sinks.delta import arbitrated, errors, evidence, head, history, log, rehearsal, schema, statistics
from onceonly.sinks.delta.look import Look

TRIES = 20  # conflicts with other writers, before an error is raised
INTERVAL = 100  # commits between log checkpoints: delta-rs's default
MAX_AGE_SECONDS = 10.0  # of a look at the target with which a commit begins
EVERY = "delta.checkpointInterval"
CLEANUP = "delta.enableExpiredLogCleanup"  # the owner's choice whether old log entries are deleted
OF_AN_ADD = ("path", "partitionValues", "size", "modificationTime", "dataChange", "stats")


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
    target: Look
    adds: list[dict[str, Any]]
    staged: list[Found]
    looked_at: float

    def is_for(self, handle: Handle, decision: int, last: Publication | None) -> bool:
        """Whether a commit may begin with it: it was asked the same, and just now.

        A target that went back since is not what the put would follow on.
        """
        asked = self.folder, self.decision, self.last
        return asked == (handle["folder"], decision, last) and 0 <= time.time() - self.looked_at <= MAX_AGE_SECONDS


def rehearse(sink: str, uri: str, handle: Handle, decision: int, last: Publication | None) -> Prepared | None:
    """Do what `publish` does, up to its put. None: that is not for a plain append, or something is in its way.

    Raises:
        Fenced, StateBehind, TargetWentBack: as `publish`.
    """
    if not arbitrated.by_puts():
        return None
    looked_at, target = time.time(), head.look(uri)
    if target is None or target.metadata().id != handle["table_id"]:
        return None
    wanted = evidence.version(decision, handle["folder"])
    if evidence.outcome(sink, handle, target.transaction_version(handle["app_id"]), wanted):
        return None
    errors.refuse_expiring_evidence(sink, uri, target.metadata().configuration)
    history.require(sink, uri, last, handle["table_id"], target.transaction_version)
    if not _is_plain(target, handle):
        return None
    files = Objects(uri)
    staged = files.below(log.rows_folder(handle))
    adds = _adds(files, handle, staged, target)
    if adds is None or _is_old(target, staged):
        return None
    return Prepared(handle["folder"], decision, last, target, adds, staged, looked_at)


def publish(
    sink: str,
    uri: str,
    handle: Handle,
    decision: int,
    last: Publication | None = None,
    prepared: Prepared | None = None,
) -> Outcome | None:
    """The outcome; None: it is not for a plain append here, and nothing was written.

    Args:
        prepared: by the rehearsal of the same handle.

    Raises:
        Fenced, StateBehind: see `evidence.outcome`.
        TargetWentBack: see `history.require`.
        OutcomeUnknown: the log could not be written or read back. It is safe to call again.
    """
    if not arbitrated.by_puts():
        return None
    try:
        return _publish(sink, uri, handle, evidence.version(decision, handle["folder"]), last, prepared)
    except OSError as error:
        raise errors.unknown(handle, f"{type(error).__name__}: {error}") from error


def _publish(
    sink: str, uri: str, handle: Handle, version: int, last: Publication | None, prepared: Prepared | None
) -> Outcome | None:
    files = Objects(uri)
    for _ in range(TRIES):
        if prepared and prepared.staged == files.below(log.rows_folder(handle)):
            target, adds, prepared = prepared.target, prepared.adds, None
        else:
            prepared = None
            looked = _look(uri, handle)
            if looked is None or looked.metadata().id != handle["table_id"]:
                return None
            target = looked
            if done := evidence.outcome(sink, handle, target.transaction_version(handle["app_id"]), version):
                return done
            errors.refuse_expiring_evidence(sink, uri, target.metadata().configuration)
            history.require(sink, uri, last, handle["table_id"], target.transaction_version)
            if not _is_plain(target, handle):
                return None
            staged = files.below(log.rows_folder(handle))
            found = _adds(files, handle, staged, target)
            if found is None or _is_old(target, staged):
                return None
            adds = found
        content = _entry(target, adds, handle["app_id"], version).encode()
        try:
            files.create(log.entry(target.version() + 1), content)
        except FileExistsError:
            continue  # another writer was first, or this one, and its answer was lost
        _make_checkpoint(target)
        digest = hashlib.sha256(content).hexdigest()
        shown = uri, handle["table_id"], target.version() + 1, digest, handle["app_id"], version
        return Outcome(detail={"rows": handle["rows"]}, proof=history.entry_proof(*shown))
    raise errors.unknown(handle, f"{TRIES} commits in a row conflicted with other writers of the table.")


def _look(uri: str, handle: Handle) -> Look | None:
    try:
        return head.look(uri)
    except OutcomeUnknown as error:  # which says that nothing was written
        raise errors.unknown(handle, error.why) from error


def _is_plain(target: Look, handle: Handle) -> bool:
    """Whether files are added to a table as it was when they were staged, and nothing else is done."""
    there = {field.name for field in target.schema().fields}
    more = "merge" in handle or "where" in handle or bool(model.taken_out(handle))
    return (
        not more
        and handle["publish"] == "delta-rs"
        and set(schema.names(handle["added"])) <= there
        and log.takes_plain_append(target) is None
        and not schema.is_altered(target, handle)
    )


def _is_old(target: Look, staged: list[Found]) -> bool:
    """Whether a VACUUM may have some of them on its list: they are copied elsewhere."""
    return rehearsal.are_old(target, (found.changed for found in staged if found.path.endswith(".parquet")))


def _adds(files: Objects, handle: Handle, staged: list[Found], target: Look) -> list[dict[str, Any]] | None:
    """The actions that add the staged files to the target; None: some of them are no longer there.

    Args:
        staged: what is in the folder of the staged rows.
    """
    folder = log.rows_folder(handle)
    there = {found.path: found for found in staged}
    path = f"{folder}/{log.entry(1)}"
    adds = log.adds_of(files.read(path, there[path].tag).splitlines(), folder) if path in there else []
    if len(adds) != handle["files"] or log.gone(adds, folder, {each.path: each.size for each in there.values()}):
        return None
    adds = statistics.settled_adds(adds, target)
    return [{**{key: add.get(key) for key in OF_AN_ADD}, "path": f"{folder}/{add['path']}"} for add in adds]


def _entry(target: Look, adds: list[dict[str, Any]], app_id: str, version: int) -> str:
    now = int(time.time() * 1000)
    info = {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    shown = head.summary(target, app_id, version)
    actions = [
        {"commitInfo": {**info, "isBlindAppend": True, "engineInfo": "onceonly", **shown}},
        {"txn": {"appId": app_id, "version": version, "lastUpdated": now}},
        *({"add": {**add, "dataChange": True}} for add in adds),
    ]
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)


def _make_checkpoint(before: Look) -> None:
    """As delta-rs does after a commit. Nothing depends on it, so a failure only causes a warning."""
    try:
        if (before.version() + 1) % int(before.metadata().configuration.get(EVERY, INTERVAL)):
            return
        table = DeltaTable(before.table_uri)
        table.create_checkpoint()
        if before.metadata().configuration.get(CLEANUP, "true").lower() == "true":  # what delta-rs itself looks at
            table.cleanup_metadata()
    except Exception as error:
        warnings.warn(f"{before.table_uri} got no log checkpoint: {error}", RuntimeWarning, stacklevel=2)

"""Delta tables, appended to exactly once.

`stage` writes a nested table inside the target's folder; `commit` adds its files to the target in one log entry that
carries txn(app id, decision). Evidence is that version: at or above the decision means published, because decisions of
a sink are published in order. The version and the commit must come from one snapshot: from a fresh one delta-rs would
accept a lower number again; from a stale one the commit conflicts. Source: Delta protocol, "Transaction Identifiers".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from deltalake import CommitProperties, DeltaTable, Field
from deltalake import Transaction as DeltaTxn
from deltalake.exceptions import CommitFailedError, DeltaError

from onceonly.checkpoint import Handle, Outcome, Transaction, taken_out
from onceonly.errors import CannotPublish, InvalidPipeline, OutcomeUnknown
from onceonly.pipeline import PARTITIONS, DeltaSink
from onceonly.protocols import Receipts, Sink
from onceonly.sinks import deltalog, deltalook, deltaschema, deltaspark, deltastage

TRIES = 20  # commits lost to other writers of the target before giving the turn back


class DeltaWriter(Sink):
    """The live side of a `DeltaSink`.

    Args:
        uri: the target's absolute path or URI.
        spark: makes (or returns) a session; called only when the target needs publishing through Spark.
    """

    def __init__(self, config: DeltaSink, uri: str, spark: Callable[[], Any]) -> None:
        self.name, self.config, self.uri = config.name, config, uri
        self._spark = spark

    def check(self) -> list[str]:
        """Raises InvalidPipeline when the target cannot be written; notes the publish path."""
        target = deltalog.open_table(self.uri)
        if target is None:
            deltastage.refuse_foreign_folder(self.name, self.uri)
            return [f"{self.name}: {self.uri} will be created by the first stage"]
        deltastage.check_table(self.config, target)
        deltastage.check_replaceable(self.config, target)
        against = deltalog.takes_plain_append(target)
        path = f"through Spark ({against} is beyond delta-rs)" if against else "through delta-rs, metadata only"
        return [f"{self.name}: publishes to {self.uri} {path}"]

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        """Write `rows` into the nested table of `txn`; the handle names it and what it was made for."""
        target = deltastage.target(self.config, self.uri, rows)
        change = deltaschema.check(self.config, target, rows)
        plain = deltalog.takes_plain_append(target) is None
        folder = deltalog.STAGED + txn.name
        deltastage.write(deltalog.create_staged(target, folder, plain, change.added, change.widened), rows)
        adds = deltalog.staged_adds(self.uri, folder, 1)
        staged_rows, size = deltalog.count(adds)
        deltastage.check_covered(self.config, f"{self.uri.rstrip('/')}/{folder}")
        return {
            "kind": "delta",
            "uri": self.uri,
            "table_id": target.metadata().id,
            "fingerprint": deltalog.fingerprint(target, _names(change.added)),
            "added": change.added,
            "app_id": txn.app_id,
            "folder": folder,
            "publish": "delta-rs" if plain else "spark",
            "files": len(adds),
            "rows": staged_rows,
            "bytes": size,
            **({"widened": change.widened} if change.widened else {}),
            **({"where": self.config.replace} if self.config.replace else {}),
        }

    def commit(self, handle: Handle, decision: int, receipts: Receipts) -> Outcome:
        """Make the staged files part of the table, once. Cost is one log entry, whatever the number of rows.

        Raises:
            CannotPublish: the target or the staged files are not what they were; a person must act.
            OutcomeUnknown: the log could not be written or read back; safe to call again.
        """
        for _ in range(TRIES):
            target = self._target(handle)
            version = target.transaction_version(handle["app_id"])
            if version is not None and version >= decision:
                return Outcome(already=True, detail={"rows": handle["rows"]})
            try:
                if _add_columns(target, handle):
                    continue  # another snapshot now, in which it may be published
                return self._publish(target, handle, decision)
            except CommitFailedError:
                continue  # another writer was first: look again before anything else
            except (DeltaError, OSError) as error:
                raise _unknown(handle, f"{type(error).__name__}: {error}") from error
        raise _unknown(handle, f"{TRIES} commits in a row lost to other writers of the table")

    def check_replace(self, old: Handle) -> None:
        """Only whole files that hold nothing but the old rows are taken out: nothing else can be touched."""
        target = deltalog.open_table(self.uri)
        if why := self._irreplaceable(target, old):
            raise InvalidPipeline(
                f"sink '{self.name}': the rows that are published in {self.uri} cannot be replaced.",
                why,
                "Delete them by a predicate of your own, and feed the records again under a new name. "
                "Nothing was written.",
            )

    def retraction(self, txn: Transaction, olds: Sequence[Handle], held: Handle | None) -> Handle:
        if any("where" in old for old in olds):  # what they have replaced is gone
            raise self.cannot_take_back()
        for old in olds:
            self.check_replace(old)
        target = deltalog.open_table(self.uri)
        assert target is not None
        kept = ("folder", "files", "table_id")
        return {
            "kind": "delta",
            "uri": self.uri,
            "table_id": target.metadata().id,
            "fingerprint": deltalog.fingerprint(target),
            "added": [],
            "app_id": txn.app_id,
            "folder": deltalog.STAGED + txn.name,
            "publish": "delta-rs",
            **{"files": 0, "rows": 0, "bytes": 0},
            "retracts": [{name: old[name] for name in kept} for old in olds],
        }

    def _irreplaceable(self, target: DeltaTable | None, old: Handle) -> str | None:
        if target is None or target.metadata().id != old["table_id"]:
            return "The table is gone, or another one."
        if why := deltastage.only_appends(target):
            return why
        found = len(deltalog.in_folder(deltalog.active_files(target), old["folder"]))
        if found != old["files"]:
            return f"{old['files'] - found} of their {old['files']} files were rewritten (OPTIMIZE, UPDATE, DELETE)."
        return None

    def _against_taking_out(self, target: DeltaTable, olds: list[Handle], altered: bool) -> str | None:
        if altered:
            return "The table was altered."
        each = (self._irreplaceable(target, old) for old in olds)
        return deltastage.only_appends(target) or next((why for why in each if why), None)

    def abort(self, txn: Transaction, handle: Handle | None) -> None:
        """Delete the nested table of `txn`, unless the target's log refers to it."""
        folder = deltalog.STAGED + txn.name
        target = deltalog.open_table(self.uri)
        if not deltalog.has_folder(self.uri, folder):
            return
        if target is None or folder not in deltalog.published_folders(target):
            deltalog.delete_folder(self.uri, folder)

    def leftovers(self, prefix: str) -> list[Transaction]:
        """Transactions whose nested table is there and not published."""
        target = deltalog.open_table(self.uri)
        if target is None:
            return []
        published = deltalog.published_folders(target)
        folders = [f for f in deltalog.staged_folders(self.uri, prefix) if f not in published]
        found = (Transaction.parse(folder.removeprefix(deltalog.STAGED)) for folder in folders)
        return [txn for txn in found if txn]

    def staged(self, handle: Handle) -> Any:
        return deltalook.batches(f"{self.uri.rstrip('/')}/{handle['folder']}")

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        return spark.read.format("delta").load(deltastage.spark_uri(f"{self.uri.rstrip('/')}/{handle['folder']}"))

    def columns(self) -> list[str] | None:
        target = None if self.config.add_columns else deltalog.open_table(self.uri)
        return [field.name for field in target.schema().fields] if target else None

    def _target(self, handle: Handle) -> DeltaTable:
        target = deltalog.open_table(self.uri)
        if target is None or target.metadata().id != handle["table_id"]:
            now = "is gone" if target is None else f"is another table now (id {target.metadata().id})"
            raise CannotPublish(
                f"sink '{self.name}': {self.uri} is not the table that was staged for.",
                f"It {now}; the rows were staged for id {handle['table_id']}.",
                "Restore the table and recover, or: onceonly resolve PIPELINE EPOCH --give-up "
                f"{self.name} --reason …. The staged rows are kept in {handle['folder']}.",
            )
        return target

    def _publish(self, target: DeltaTable, handle: Handle, decision: int) -> Outcome:
        folder, added = handle["folder"], _names(handle["added"])
        adds = deltalog.staged_adds(self.uri, folder, 1) if deltalog.has_folder(self.uri, folder) else []
        gone = deltalog.missing_files(self.uri, folder, adds)
        if gone or len(adds) != handle["files"]:
            raise CannotPublish(
                f"sink '{self.name}': staged files are gone from {self.uri}.",
                f"{handle['files'] - len(adds) + len(gone)} of {handle['files']} in {folder} are missing: a VACUUM "
                "takes what was not published within its retention.",
                f"onceonly resolve PIPELINE EPOCH --give-up {self.name} --reason …, then feed the rows again.",
            )
        olds, altered = taken_out(handle), deltalog.fingerprint(target, added) != handle["fingerprint"]
        if (olds or "where" in handle) and (why := self._against_taking_out(target, olds, altered)):
            raise CannotPublish(
                f"sink '{self.name}': the rows to be replaced in {self.uri} are not what they were.",
                why,
                f"onceonly resolve PIPELINE EPOCH --give-up {self.name} --reason … leaves them as they are. "
                f"The new rows are kept in {folder}.",
            )
        if handle["publish"] == "spark" or altered:
            return deltaspark.publish(self._spark(), self.name, self.uri, handle, decision)
        removes = deltalog.as_removes(_files_out(target, handle, adds))
        _commit_files(target, deltalog.as_target_adds(adds, folder), removes, handle["app_id"], decision)
        return Outcome(detail={"rows": handle["rows"]})


def _add_columns(target: DeltaTable, handle: Handle) -> bool:
    """Whether any had to be: in a commit of its own, before that of the rows, which will follow it."""
    there = {field.name for field in target.schema().fields}
    new = [Field.from_json(json.dumps(field)) for field in handle["added"] if field["name"] not in there]
    if not new or deltalog.fingerprint(target, _names(handle["added"])) != handle["fingerprint"]:
        return False
    target.alter.add_columns(new)
    return True


def _files_out(target: DeltaTable, handle: Handle, adds: list[dict[str, Any]]) -> dict[str, int]:
    """Path -> size of the files whose rows the new ones take the place of."""
    olds, where = taken_out(handle), handle.get("where")
    if not olds and where is None:
        return {}
    files = deltalog.active_files(target)
    found = [deltalog.in_folder(files, old["folder"]) for old in olds]
    if where is not None:
        alternatives = deltalog.partitions(adds) if where == PARTITIONS else [[tuple(part) for part in where]]
        found.append(deltalog.in_partitions(files, target, alternatives))
    return {path: size for part in found for path, size in part.items()}


def _names(fields: list[Any]) -> list[str]:
    return [field["name"] for field in fields]


def _commit_files(target: DeltaTable, adds: list[Any], removes: list[Any], app_id: str, decision: int) -> None:
    # delta-rs lets a removal pass beside an OPTIMIZE that has moved its rows elsewhere: then only the very next version
    retries = 0 if removes else None
    stamp = CommitProperties(app_transactions=[DeltaTxn(app_id, decision)], max_commit_retries=retries)
    columns = target.metadata().partition_columns
    target.create_write_transaction(
        [*adds, *removes], "append", target.schema(), partition_by=columns, commit_properties=stamp
    )


def _unknown(handle: Handle, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"whether the rows reached {handle['uri']} is not known.",
        why,
        "Nothing was deleted; publishing again is safe: onceonly recover",
    )

"""A Delta sink's handle: the staged folder, the table it was staged for, and what else its publication does there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import replaced_handles
from onceonly.delta.table_snapshot import Table, fingerprint
from onceonly.delta.txn_identifiers import STAGED_PREFIX, txn_version
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.sinks.staging.handles import check_folder


@dataclass(frozen=True)
class StagedRows:
    """The rows of one transaction, as a later one names them that replaces or retracts them.

    Args:
        folder: name of the staged folder, inside the table's own.
        files: how many files it had for the table.
        table_id: of the table for which they were staged.
        rows: how many rows; None: not recorded.
        checkpoint_column: in which each of them has the transaction's name; None: there is none.
    """

    folder: str
    files: int
    table_id: str
    rows: int | None
    checkpoint_column: str | None

    @classmethod
    def parse_replaced(cls, sink: str, old: Mapping[str, Any]) -> StagedRows:
        """Parse what a handle names of another one. Raises CannotPublish for a folder that the sink does not write."""
        check_folder(sink, old["folder"], STAGED_PREFIX)
        return cls(old["folder"], old["files"], old["table_id"], old.get("rows"), old.get("checkpoint_column"))

    @property
    def transaction(self) -> Transaction:
        txn = Transaction.parse(self.folder.removeprefix(STAGED_PREFIX))
        assert txn is not None, self.folder
        return txn

    def retracted_json(self) -> dict[str, Any]:
        """Return what the handle of a retraction holds of it."""
        old: dict[str, Any] = {"folder": self.folder, "files": self.files, "table_id": self.table_id}
        if self.checkpoint_column:
            old.update(rows=self.rows, checkpoint_column=self.checkpoint_column)
        return old


@dataclass(frozen=True)
class Change:
    """How the commit of the rows changes the table's columns.

    Args:
        added: the fields of new columns.
        widened: name -> type of the columns that get a wider type.
    """

    added: list[dict[str, Any]]
    widened: dict[str, str]


@dataclass(frozen=True)
class MergeColumns:
    """By which columns changes are merged: those that identify a row, and those by which a change is newer."""

    keys: Sequence[str]
    order_by: Sequence[str]


@dataclass(frozen=True)
class DeltaHandle(StagedRows):
    """A parsed handle.

    Args:
        data: the handle as it is recorded. It may have more keys, which a newer version has added.
        uri: of the target, as it was recorded, for messages. The sink publishes to its own.
        fingerprint: of the target's columns, constraints and features when the rows were staged.
        added: columns that the publication adds to the target, as Delta's schema has them.
        app_id: under which the target numbers the decisions of this sink.
        publish: which writer the target needs.
        widens: columns of the target get the wider types of the rows.
        left_out: columns that the rows do not have, because the target fills them in.
        where: what is replaced: "partitions", those that the rows are in; a condition; None: nothing.
        merge: None: the rows are appended.
        copied: name of the folder, in the staged one, to which a rehearsal has copied the rows.
        replaced: rows that are removed when these are published.
    """

    data: Handle
    uri: str
    fingerprint: str
    added: Sequence[Mapping[str, Any]]
    app_id: str
    publish: Literal["delta-rs", "spark"]
    rows: int
    widens: bool
    left_out: Sequence[str]
    where: str | Sequence[Any] | None
    merge: MergeColumns | None
    copied: str | None
    replaced: tuple[StagedRows, ...]

    @classmethod
    def parse(cls, sink: str, handle: Handle) -> DeltaHandle:
        """Parse the handle of a sink.

        Raises:
            CannotPublish: it names a folder that the sink does not write.
        """
        check_folder(sink, handle["folder"], STAGED_PREFIX)
        merge = None
        if "merge" in handle:
            merge = MergeColumns(handle["merge"]["keys"], handle["merge"]["order_by"])
        replaced = []
        for old in replaced_handles(handle):
            replaced.append(StagedRows.parse_replaced(sink, old))
        return cls(
            folder=handle["folder"],
            files=handle["files"],
            table_id=handle["table_id"],
            data=handle,
            uri=handle["uri"],
            fingerprint=handle["fingerprint"],
            added=handle["added"],
            app_id=handle["app_id"],
            publish=handle["publish"],
            rows=handle["rows"],
            checkpoint_column=handle.get("checkpoint_column"),
            widens="widened" in handle,
            left_out=handle.get("left_out", ()),
            where=handle.get("where"),
            merge=merge,
            copied=handle.get("copied"),
            replaced=tuple(replaced),
        )

    @property
    def rows_folder(self) -> str:
        """The folder with the staged rows: the transaction's, or the copy in it that a rehearsal has made."""
        if self.copied is None:
            return self.folder
        return f"{self.folder}/{self.copied}"

    def txn_version(self, decision: int) -> int:
        """Return the number by which the target shows that this decision has published these rows."""
        return txn_version(decision, self.folder)

    def with_copy(self, name: str) -> DeltaHandle:
        """Return the handle of the same rows in that copy."""
        return replace(self, data={**self.data, "copied": name}, copied=name)


def store_merge(merge: Merge) -> dict[str, list[str]]:
    """Return what a handle stores of the columns by which changes are merged."""
    return {"keys": list(merge.keys), "order_by": list(merge.order_by)}


def make_handle(
    config: DeltaSink,
    uri: str,
    txn: Transaction,
    target: Table,
    change: Change,
    left_out: Sequence[str],
    publish: Literal["delta-rs", "spark"],
    staged: tuple[int, int, int],
) -> dict[str, Any]:
    """Return the handle of rows that were just staged.

    Args:
        change: of the target's columns, by the publication.
        staged: how many files, rows and bytes.
    """
    handle: dict[str, Any] = {
        "kind": "delta",
        "uri": uri,
        "table_id": target.metadata().id,
        "fingerprint": fingerprint(target, [field["name"] for field in change.added]),
        "added": change.added,
        "app_id": txn.app_id,
        "folder": STAGED_PREFIX + txn.name,
        "publish": publish,
        **dict(zip(("files", "rows", "bytes"), staged, strict=True)),
    }
    if change.widened:
        handle["widened"] = change.widened
    if left_out:
        handle["left_out"] = left_out
    if config.replace:
        handle["where"] = config.replace
    if config.merge:
        handle["merge"] = store_merge(config.merge)
    if config.checkpoint_column:
        handle["checkpoint_column"] = config.checkpoint_column
    return handle

"""Parses a StateSink's handle: names of runs and transactions below its root. Refuses any other path.

A run is a folder, `changes` or `merged`, in the folder of a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.transaction_names import parse_transaction
from onceonly.sinks.staging.handles import damaged_handle

RUN_KINDS = ("changes", "merged")


@dataclass(frozen=True)
class StateHandle:
    """A parsed handle.

    Args:
        txn: that staged it; None: a rewind, for which nothing was staged.
        runs: of the state, oldest first.
        to_delete: transactions whose folders are deleted after this one is published.
        rows: how many keys it changed.
    """

    txn: Transaction | None
    runs: tuple[dict[str, Any], ...]
    to_delete: tuple[Transaction, ...]
    rows: int


def parse(sink: str, handle: Handle) -> StateHandle:
    """Parse the handle of a sink.

    Raises:
        CannotPublish: a name is not that of a transaction or of a run of this sink, or the handle itself needs a folder
            that it names as one to delete.
    """
    to_delete = tuple(transactions_to_delete(sink, handle))
    txn = None if handle["txn"] is None else transaction(sink, handle["txn"])
    return StateHandle(txn, tuple(runs(sink, handle)), to_delete, int(handle["rows"]))


def transaction(sink: str, name: object) -> Transaction:
    """Return the transaction of that name. Raises CannotPublish if it is not one of this sink."""
    txn = parse_transaction(name)
    if txn is None or txn.sink != sink:
        raise damaged_handle(sink, f"It names {name!r}.")
    return txn


def run(sink: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run. Raises CannotPublish if its folder, relative to the root, is not that of a run of this sink."""
    above, _, kind = str(data["folder"]).rpartition("/")
    if kind not in RUN_KINDS:
        raise damaged_handle(sink, f"It names the run {data['folder']!r}.")
    return {**data, "folder": f"{transaction(sink, above).name}/{kind}"}


def runs(sink: str, handle: Handle | None, which: str = "runs") -> list[dict[str, Any]]:
    """Return the runs that a handle lists under that key, oldest first; none for None. Raises CannotPublish."""
    return [run(sink, data) for data in handle[which]] if handle else []


def transactions_to_delete(sink: str, handle: Handle) -> list[Transaction]:
    """Return the transactions whose folders are deleted after this one is published.

    Raises:
        CannotPublish: a name is not that of a transaction, or the handle itself needs its folder.
    """
    to_delete = [_owner(sink, name) for name in handle["forget"]]
    needed = [transaction(sink, data["folder"].split("/")[0]) for data in runs(sink, handle)]
    if handle["txn"]:
        needed.append(transaction(sink, handle["txn"]))
    if set(needed) & set(to_delete):
        raise damaged_handle(sink, "It names the same run as a part of the state and as one to delete.")
    if len({txn.pipeline for txn in needed + to_delete}) > 1:
        raise damaged_handle(sink, "It names runs of several pipelines.")
    return to_delete


def _owner(sink: str, name: object) -> Transaction:
    """Return the transaction, from its name or from the folder of its run."""
    above, _, kind = str(name).rpartition("/")
    return transaction(sink, above if kind in RUN_KINDS else name)

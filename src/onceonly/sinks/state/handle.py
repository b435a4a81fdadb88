"""Parses a StateSink's handle: names of runs and transactions below its root. Refuses any other path.

A run is a folder, `changes` or `merged`, in the folder of a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.filesystems import confined

KINDS = ("changes", "merged")


def transaction(sink: str, name: object) -> Transaction:
    """The transaction of that name. Raises CannotPublish if it is not one of this sink."""
    txn = confined.parsed(name)
    if txn is None or txn.sink != sink:
        raise confined.damaged(sink, f"It names {name!r}.")
    return txn


def run(sink: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The run. Raises CannotPublish if its folder, relative to the root, is not that of a run of this sink."""
    above, _, kind = str(data["folder"]).rpartition("/")
    if kind not in KINDS:
        raise confined.damaged(sink, f"It names the run {data['folder']!r}.")
    return {**data, "folder": f"{transaction(sink, above).name}/{kind}"}


def runs(sink: str, handle: Handle | None, which: str = "runs") -> list[dict[str, Any]]:
    return [run(sink, each) for each in handle[which]] if handle else []


def forgotten(sink: str, handle: Handle) -> list[Transaction]:
    """The transactions whose folders are deleted after this one is published.

    Raises:
        CannotPublish: a name is not that of a transaction, or the handle itself needs its folder.
    """
    found = [_owner(sink, name) for name in handle["forget"]]
    names = [each["folder"].split("/")[0] for each in runs(sink, handle)] + [handle["txn"]]
    needed = [transaction(sink, name) for name in names if name]
    if set(needed) & set(found):
        raise confined.damaged(sink, "It names the same run as a part of the state and as one to delete.")
    if len({txn.pipeline for txn in needed + found}) > 1:
        raise confined.damaged(sink, "It names runs of several pipelines.")
    return found


def _owner(sink: str, name: object) -> Transaction:
    """The transaction, from its name or from the folder of its run."""
    above, _, kind = str(name).rpartition("/")
    return transaction(sink, above if kind in KINDS else name)

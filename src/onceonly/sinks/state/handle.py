"""A StateSink's handle, taken apart: names of runs and transactions below its root, and refused where it says else.

A run is one folder, `changes` or `merged`, in the folder of one transaction. Handles of earlier versions name it by its
whole path: there the end counts, where it is such a name, so that the root may be mounted elsewhere by now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.filesystems import confined

KINDS = ("changes", "merged")


def transaction(sink: str, name: object) -> Transaction:
    """Raises CannotPublish: it is no transaction of this sink."""
    txn = confined.parsed(name)
    if txn is None or txn.sink != sink:
        raise confined.damaged(sink, f"It names {name!r}.")
    return txn


def run(sink: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """With its folder relative to the root. Raises CannotPublish: it is no run of this sink."""
    above, _, kind = _end(data["folder"], 2).rpartition("/")
    if kind not in KINDS:
        raise confined.damaged(sink, f"It names the run {data['folder']!r}.")
    return {**data, "folder": f"{transaction(sink, above).name}/{kind}"}


def runs(sink: str, handle: Handle | None, which: str = "runs") -> list[dict[str, Any]]:
    return [run(sink, each) for each in handle[which]] if handle else []


def forgotten(sink: str, handle: Handle) -> list[Transaction]:
    """Whose folders go once it is published: none that it needs itself.

    Raises:
        CannotPublish: a name is none of ours, or of what the handle needs.
    """
    found = [_owner(sink, name) for name in handle["forget"]]
    names = [each["folder"].split("/")[0] for each in runs(sink, handle)] + [handle["txn"]]
    needed = [transaction(sink, name) for name in names if name]
    if set(needed) & set(found):
        raise confined.damaged(sink, "It names a run both as part of the state and as one to delete.")
    if len({txn.pipeline for txn in needed + found}) > 1:
        raise confined.damaged(sink, "It names runs of several pipelines.")
    return found


def _owner(sink: str, name: object) -> Transaction:
    """Of a transaction's name, a run's, or (earlier) the whole path of either."""
    end = _end(name, 2)
    return transaction(sink, end.split("/")[0] if end.rpartition("/")[2] in KINDS else _end(name, 1))


def _end(path: object, parts: int) -> str:
    """The last parts of a whole path; a relative one as it is."""
    text = str(path)
    whole = text.startswith("/") or "://" in text
    return "/".join(text.split("/")[-parts:]) if whole else text

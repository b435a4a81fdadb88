"""The manifest of a checkpoint: the list of its files for readers, and the evidence of its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from onceonly.checkpoint.sink import Trace
from onceonly.filesystems import confined
from onceonly.filesystems.confined import MANIFESTS
from onceonly.filesystems.interface import FileSystem
from onceonly.sinks.files import moves
from onceonly.sinks.files.handle import FileHandle

Manifest = Mapping[str, Any]
LOOKED_AT = 8  # manifests that are read for a trace


def published(mine: FileHandle, decision: int) -> Manifest:
    files = [{"path": file.final, **moves.content(file.print)} for file in mine.files]
    replaced = [old.manifest.rpartition("/")[2] for old in mine.out]
    found = {**_known(mine, decision), "rows": mine.rows, "files": files}
    schema = {"schema": mine.schema} if mine.schema else {}
    return {**found, **schema, **({"replaces": replaced} if replaced else {})}


def given_up(mine: FileHandle, decision: int) -> Manifest:
    """A manifest without files. What it would have replaced stays published."""
    return {**_known(mine, decision), "rows": 0, "files": [], "given_up": True}


def is_given_up(found: Manifest) -> bool:
    return bool(found.get("given_up"))


def listed(found: Manifest) -> set[str]:
    return {file["path"] for file in found["files"]}


def traces(on: FileSystem, target: str, pipeline: str, sink: str) -> list[Trace]:
    """The last decision of each state table, from the manifests of its last epochs.

    Reading a few is enough: only intervals that run in parallel are decided in another order than that of their epochs.
    """
    by_table: dict[str, list[str]] = {}
    for name in on.names(f"{target}/{MANIFESTS}"):
        if confined.is_published(f"{MANIFESTS}/{name}") and name.split("-")[:2] == [pipeline, sink]:
            by_table.setdefault(name.split("-")[3], []).append(name)
    found = (_trace(on, target, sorted(names, key=epoch)[-LOOKED_AT:]) for names in by_table.values())
    return [trace for trace in found if trace]


def _trace(on: FileSystem, target: str, names: list[str]) -> Trace | None:
    read = (read_ours(on, f"{target}/{MANIFESTS}/{name}") for name in names)
    found = [manifest for manifest in read if manifest]
    if not found:
        return None
    state_id = str(found[-1]["txn"]).split("-")[0]
    decision = max(int(each.get("decision", 0)) for each in found)
    return Trace(state_id, decision, f"folder {target}", epoch=epoch(names[-1]))


def read_ours(on: FileSystem, path: str) -> Manifest | None:
    """The manifest; None if there is none, or the file is not a manifest of ours."""
    with suppress(moves.NameTaken):
        return moves.read_manifest(on, path)
    return None


def _known(mine: FileHandle, decision: int) -> dict[str, Any]:
    """`at`: its time. In the order of the decisions it may go backward, where clocks differ or do."""
    at = datetime.now(UTC).isoformat()
    return {"version": 1, "txn": mine.txn.name, "decision": decision, "at": at, "format": mine.format}


def epoch(name: str) -> int:
    return int(name.split("-")[2])

"""The manifest of a checkpoint: the list of its files for readers, and the evidence of its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from onceonly.checkpoint.sink import Trace
from onceonly.sinks.files import moves
from onceonly.sinks.files.handle import FileHandle
from onceonly.storage.interface import FileSystem
from onceonly.storage.own_paths import MANIFESTS, has_published_name

Manifest = Mapping[str, Any]
MAX_TRACE_MANIFESTS = 8  # manifests that are read for a trace


def build(handle: FileHandle, decision: int) -> Manifest:
    """Return the manifest that a commit writes."""
    manifest = _common_fields(handle, decision)
    manifest["rows"] = handle.rows
    manifest["files"] = [{"path": file.final, **moves.content(file.print)} for file in handle.files]
    if handle.schema:
        manifest["schema"] = handle.schema
    replaced = [publication.manifest.rpartition("/")[2] for publication in handle.replaced]
    if replaced:
        manifest["replaces"] = replaced
    return manifest


def build_given_up(handle: FileHandle, decision: int) -> Manifest:
    """Return a manifest without files. What it would have replaced stays published."""
    return {**_common_fields(handle, decision), "rows": 0, "files": [], "given_up": True}


def is_given_up(manifest: Manifest) -> bool:
    return bool(manifest.get("given_up"))


def list_paths(manifest: Manifest) -> set[str]:
    """Return the paths in the target of the files that a manifest lists."""
    return {file["path"] for file in manifest["files"]}


def traces(file_system: FileSystem, target: str, pipeline: str, sink: str) -> list[Trace]:
    """Return the last decision of each state table, from the manifests of its last epochs.

    Reading a few is enough: only intervals that run in parallel are decided in another order than that of their epochs.
    """
    names_by_table: dict[str, list[str]] = {}
    for name in file_system.list_names(f"{target}/{MANIFESTS}"):
        if has_published_name(f"{MANIFESTS}/{name}") and name.split("-")[:2] == [pipeline, sink]:
            names_by_table.setdefault(name.split("-")[3], []).append(name)
    traces_by_table = []
    for names in names_by_table.values():
        trace = _read_trace(file_system, target, sorted(names, key=epoch)[-MAX_TRACE_MANIFESTS:])
        if trace:
            traces_by_table.append(trace)
    return traces_by_table


def _read_trace(file_system: FileSystem, target: str, names: list[str]) -> Trace | None:
    """Return the last decision that the manifests of one state table show; None if none of them is readable.

    Args:
        names: of the manifests, by epoch.
    """
    manifests = []
    for name in names:
        manifest = read_ours(file_system, f"{target}/{MANIFESTS}/{name}")
        if manifest:
            manifests.append(manifest)
    if not manifests:
        return None
    state_id = str(manifests[-1]["txn"]).split("-")[0]
    decision = max(int(manifest.get("decision", 0)) for manifest in manifests)
    return Trace(state_id, decision, f"folder {target}", epoch=epoch(names[-1]))


def read_ours(file_system: FileSystem, path: str) -> Manifest | None:
    """Return the manifest; None if there is none, or the file is not a manifest of ours."""
    with suppress(moves.NameTaken):
        return moves.read_manifest(file_system, path)
    return None


def _common_fields(handle: FileHandle, decision: int) -> dict[str, Any]:
    """Return what every manifest begins with.

    `at` is its time. In the order of the decisions it may go backward, where clocks differ or do.
    """
    at = datetime.now(UTC).isoformat()
    return {"version": 1, "txn": handle.txn.name, "decision": decision, "at": at, "format": handle.format}


def epoch(name: str) -> int:
    """Return the epoch in a manifest's name."""
    return int(name.split("-")[2])

"""The runs of a state as they were written, and by which of them its folder can be recognised later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import Answer, History, Publication
from onceonly.filesystems import confined
from onceonly.filesystems.folders import Folders
from onceonly.filesystems.interface import AT_ONCE
from onceonly.filesystems.local import LocalFiles
from onceonly.filesystems.paths import local_path
from onceonly.sinks.state import handle as staterun

DONE = "_published"  # marks the folder of a published transaction
LOOKED_AT = 64  # published transactions that are read for the last decision that a folder shows
Run = Mapping[str, Any]


def content(folders: Folders, name: str) -> dict[str, Any]:
    """What a run is recognised by: how many files it has, their bytes, and a digest of their names and sizes."""
    sizes = folders.files(name)
    lines = "".join(f"{path} {size}\n" for path, size in sorted(sizes.items()))
    digest = hashlib.sha256(lines.encode()).hexdigest()
    return {"files": len(sizes), "bytes": sum(sizes.values()), "listing": digest}


def changed_runs(folders: Folders, runs: Iterable[Run]) -> list[Run]:
    """The runs that are not there as they were written."""

    def is_changed(run: Run) -> bool:
        return bool(content(folders, run["folder"])["listing"] != run["listing"])

    checked = list(runs)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [run for run, changed in zip(checked, pool.map(is_changed, checked), strict=True) if changed]


def proof(folders: Folders, sink: str, handle: Handle, prefix: str) -> dict[str, Any]:
    """The place, whose it is, and the newest run of the state; None: the state is empty."""
    runs = staterun.runs(sink, handle)
    newest = {name: runs[-1][name] for name in ("folder", "listing")} if runs else None
    return {"target": folders.uri, "prefix": prefix, "run": newest}


def compare(folders: Folders, last: Publication) -> History:
    """Look for the newest run of the last publication. It tells, and not the path, which may be another by now."""
    run = last.proof["run"]
    if folders.exists() and (run is None or not changed_runs(folders, [run])):
        return History(Answer.SAME)
    if not _is_same(str(last.proof["target"]), folders.uri):
        return History(Answer.ELSEWHERE, f"it was published to {last.proof['target']}, and this is {folders.uri}")
    if run is None or not folders.exists():
        return History(Answer.WENT_BACK, f"the folder {folders.uri} does not exist; perhaps its volume is not mounted")
    why = "has other files than were written" if folders.has(run["folder"]) else "does not exist"
    earlier = [decision for decision, _ in _shown(folders, str(last.proof["prefix"])) if decision < last.decision]
    return History(Answer.WENT_BACK, f"{folders.path(run['folder'])} {why}", max(earlier, default=0))


def proof_now(folders: Folders, last: Publication) -> Publication | None:
    if not folders.exists():
        return None
    prefix = str(last.proof["prefix"])
    shown = _shown(folders, prefix)
    same = {"target": folders.uri, "prefix": prefix}
    if not shown:
        return Publication(0, 0, {**same, "run": None})
    decision, txn = max(shown, key=lambda each: each[0])
    names = [f"{txn.name}/{kind}" for kind in ("merged", "changes")]
    folder = next((name for name in names if folders.has(name)), names[-1])
    run = {"folder": folder, "listing": content(folders, folder)["listing"]}
    return Publication(txn.epoch, decision, {**same, "run": run})


def published(folders: Folders, txns: Iterable[Transaction]) -> list[tuple[int, Transaction]]:
    """Those that are marked as published, with their decisions."""
    marked = [txn for txn in txns if folders.has(f"{txn.name}/{DONE}")]
    return [(_decision(folders, txn), txn) for txn in marked]


def _shown(folders: Folders, prefix: str) -> list[tuple[int, Transaction]]:
    """The newest epochs: a pipeline with state decides them in order."""
    txns = [txn for txn in folders.holding(prefix) if confined.is_transaction(txn.name)]
    return published(folders, sorted(txns, key=lambda txn: txn.epoch)[-LOOKED_AT:])


def _decision(folders: Folders, txn: Transaction) -> int:
    """The decision in the mark; 0 if the mark is empty."""
    text = folders.text(f"{txn.name}/{DONE}")
    return int(json.loads(text)["decision"]) if text else 0


def _is_same(one: str, other: str) -> bool:
    first, second = local_path(one), local_path(other)
    return LocalFiles().same(str(first), str(second)) if first and second else one == other

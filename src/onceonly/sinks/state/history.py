"""Whether a folder still has the state that was published to it, by the newest run of the last publication."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Answer, History, Publication
from onceonly.checkpoint.transaction_names import list_transactions
from onceonly.sinks.state import runs
from onceonly.sinks.state.runs import Run
from onceonly.storage.folders import Folders
from onceonly.storage.local import LocalFiles
from onceonly.storage.own_paths import has_transaction_name
from onceonly.storage.paths import local_path

DONE = "_published"  # marks the folder of a published transaction
MAX_TRANSACTIONS_READ = 64  # published ones that are read for the last decision that a folder shows


def proof(folders: Folders, state_runs: Sequence[Run], prefix: str) -> dict[str, Any]:
    """Return the proof of a publication: the place, whose it is, and the newest run of the state; None: it is empty."""
    newest = None
    if state_runs:
        newest = {"folder": state_runs[-1]["folder"], "listing": state_runs[-1]["listing"]}
    return {"target": folders.uri, "prefix": prefix, "run": newest}


def compare(folders: Folders, last: Publication) -> History:
    """Look for the newest run of the last publication. The run decides, and not the path, which may have changed."""
    run = last.proof["run"]
    if folders.exists() and (run is None or not runs.find_changed_runs(folders, [run])):
        return History(Answer.SAME)
    if not _is_same(str(last.proof["target"]), folders.uri):
        return History(Answer.ELSEWHERE, f"it was published to {last.proof['target']}, and this is {folders.uri}")
    if run is None or not folders.exists():
        return History(Answer.WENT_BACK, f"the folder {folders.uri} does not exist; perhaps its volume is not mounted")
    why = "has other files than were written" if folders.has(run["folder"]) else "does not exist"
    earlier_decision = 0
    for decision, _ in _list_newest_published(folders, str(last.proof["prefix"])):
        if decision < last.decision:
            earlier_decision = max(earlier_decision, decision)
    return History(Answer.WENT_BACK, f"{folders.path(run['folder'])} {why}", earlier_decision)


def proof_now(folders: Folders, last: Publication) -> Publication | None:
    """Return the last publication that the folder shows, with a proof of it as it is; None: there is no folder."""
    if not folders.exists():
        return None
    prefix = str(last.proof["prefix"])
    published = _list_newest_published(folders, prefix)
    if not published:
        return Publication(0, 0, {"target": folders.uri, "prefix": prefix, "run": None})
    decision, txn = max(published, key=lambda entry: entry[0])
    folder = f"{txn.name}/merged"
    if not folders.has(folder):
        folder = f"{txn.name}/changes"
    run = {"folder": folder, "listing": runs.describe_files(folders, folder)["listing"]}
    return Publication(txn.epoch, decision, {"target": folders.uri, "prefix": prefix, "run": run})


def list_published(folders: Folders, txns: Iterable[Transaction]) -> list[tuple[int, Transaction]]:
    """Select the transactions that are marked as published, with their decisions."""
    marked = [txn for txn in txns if folders.has(f"{txn.name}/{DONE}")]
    return [(_read_decision(folders, txn), txn) for txn in marked]


def _list_newest_published(folders: Folders, prefix: str) -> list[tuple[int, Transaction]]:
    """List the published transactions of the newest epochs: a pipeline with state decides them in order."""
    txns = [txn for txn in list_transactions(folders.list_names(), prefix) if has_transaction_name(txn.name)]
    return list_published(folders, sorted(txns, key=lambda txn: txn.epoch)[-MAX_TRANSACTIONS_READ:])


def _read_decision(folders: Folders, txn: Transaction) -> int:
    """Read the decision in the mark; 0 if the mark is empty."""
    text = folders.read_text(f"{txn.name}/{DONE}")
    return int(json.loads(text)["decision"]) if text else 0


def _is_same(one: str, other: str) -> bool:
    """Return whether two locations are the same folder."""
    first, second = local_path(one), local_path(other)
    if first and second:
        return LocalFiles().is_same_folder(str(first), str(second))
    return one == other

"""The evidence in a table: its last decision in a property, and in the branch's history the snapshot that it made.

The property changes in the same commit as the branch, never expires, and outlives snapshots. A rollback keeps it, so
the branch's history is compared as well: whether the snapshot that published is still among the ancestors of its head.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from onceonly.sinks import Answer, History, LastDecision, Publication, Trace

PROPERTY_PREFIX = "onceonly."
APP_ID_KEY, DECISION_KEY, TXN_KEY = "onceonly.app-id", "onceonly.decision", "onceonly.txn"  # of snapshot summaries


@dataclass(frozen=True)
class Evidence:
    """What the property says.

    Args:
        last: the last decision, and its transaction; an empty one was given up.
        snapshot: the id of the snapshot that it made.
        sequence: its sequence number, which grows with each snapshot of the table, whatever is rolled back.
        branch: to which it was published.
    """

    last: LastDecision
    snapshot: int
    sequence: int
    branch: str

    def to_text(self) -> str:
        values = {
            "decision": self.last.decision,
            "txn": self.last.txn,
            "snapshot": self.snapshot,
            "sequence": self.sequence,
            "branch": self.branch,
        }
        return json.dumps(values, separators=(",", ":"))


NO_EVIDENCE = Evidence(LastDecision(), 0, 0, "")


def property_name(app_id: str) -> str:
    return app_id.replace("/", ".")


def read(properties: Mapping[str, str], app_id: str) -> Evidence:
    """Return the evidence of a sink; NO_EVIDENCE: nothing was published.

    Raises:
        ValueError, KeyError: the property was altered.
    """
    text = properties.get(property_name(app_id))
    if text is None:
        return NO_EVIDENCE
    values = json.loads(text)
    last = LastDecision(int(values["decision"]), str(values["txn"]))
    return Evidence(last, int(values["snapshot"]), int(values["sequence"]), str(values["branch"]))


def list_traces(properties: Mapping[str, str], pipeline: str, sink: str, where: str) -> list[Trace]:
    """Return the last decision of each state table that has written to the table by that pipeline and sink."""
    traces = []
    for name in sorted(properties):
        parts = name.split(".")
        if len(parts) == 4 and (parts[0], *parts[2:]) == ("onceonly", pipeline, sink):
            decision = read(properties, name.replace(".", "/")).last.decision
            traces.append(Trace(parts[1], decision, where))
    return traces


# ---- the history of a branch


def find_head(metadata: TableMetadata, branch: str) -> Snapshot | None:
    return metadata.snapshot_by_name(branch)


def walk_ancestors(metadata: TableMetadata, branch: str) -> Iterator[Snapshot]:
    """Yield the branch's head and its ancestors, the newest first, as far as they have not expired."""
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = find_head(metadata, branch)
    while snapshot:
        yield snapshot
        snapshot = snapshots.get(snapshot.parent_snapshot_id or -1)


def is_ancestor(metadata: TableMetadata, branch: str, snapshot_id: int, sequence: int) -> bool | None:
    """Return whether the snapshot is in the branch's history; None: it cannot be seen, because snapshots have expired.

    Sequence numbers fall along the ancestors. So a history that passes below the number without the snapshot lacks it.
    """
    if find_head(metadata, branch) is None:
        return False
    for snapshot in walk_ancestors(metadata, branch):
        if snapshot.snapshot_id == snapshot_id:
            return True
        if (snapshot.sequence_number or 0) <= sequence:
            return False
    return False if metadata.snapshot_by_id(snapshot_id) else None


def has_whole_history(metadata: TableMetadata, branch: str) -> bool:
    """Return whether all snapshots of the branch are there.

    An oldest one without a parent tells nothing: some writers take the parent's id out when the parent expires.
    """
    oldest = None
    for snapshot in walk_ancestors(metadata, branch):
        oldest = snapshot
    return oldest is None or (oldest.parent_snapshot_id is None and oldest.sequence_number == 1)


def find_last_in_history(metadata: TableMetadata, branch: str, app_id: str) -> int:
    """Return the last decision of a sink in the branch's history; 0: none."""
    for snapshot in walk_ancestors(metadata, branch):
        decision = decision_of(snapshot, app_id)
        if decision:
            return decision
    return 0


def decision_of(snapshot: Snapshot, app_id: str) -> int:
    """Return the decision of a sink that the snapshot published; 0: none."""
    summary = snapshot.summary
    if summary is None or summary.additional_properties.get(APP_ID_KEY) != app_id:
        return 0
    if not summary.additional_properties.get(TXN_KEY):
        return 0  # what was given up
    return int(summary.additional_properties.get(DECISION_KEY) or 0)


# ---- proofs


def make_proof(place: str, table_uuid: str, app_id: str, evidence: Evidence) -> dict[str, Any]:
    """Return the proof of a publication, as it is recorded."""
    return {
        "target": place,
        "table_uuid": table_uuid,
        "branch": evidence.branch,
        "app_id": app_id,
        "decision": evidence.last.decision,
        "txn": evidence.last.txn,
        "snapshot": evidence.snapshot,
        "sequence": evidence.sequence,
    }


def compare(metadata: TableMetadata | None, place: str, last: Publication) -> History:
    """Compare a table with a recorded publication. Costs nothing beyond the metadata.

    Args:
        metadata: of the table; None: there is none.
        place: of the sink: a publication to another place says nothing of this one.
    """
    proof = last.proof
    if not proof or proof["target"] != place:
        return History(Answer.ELSEWHERE, f"it was published to {proof.get('target', 'an unknown place')}")
    if metadata is None:
        return History(Answer.WENT_BACK, f"there is no table {place}")
    if str(metadata.table_uuid) != proof["table_uuid"]:
        why = f"{place} is another table: its id is {metadata.table_uuid}, not {proof['table_uuid']}"
        return History(Answer.WENT_BACK, why)
    evidence = read(metadata.properties, proof["app_id"])
    difference = _find_difference(metadata, evidence, last)
    if difference is None:
        why = f"the snapshots of {place} up to that of epoch {last.epoch} have expired"
        return History(Answer.UNKNOWN, why)
    if not difference:
        return History(Answer.SAME)
    decision = find_last_in_history(metadata, proof["branch"], proof["app_id"])
    decision = min(decision, evidence.last.decision, last.decision - 1)
    at_least = not decision and not has_whole_history(metadata, proof["branch"])
    return History(Answer.WENT_BACK, difference, decision, at_least=at_least)


def _find_difference(metadata: TableMetadata, evidence: Evidence, last: Publication) -> str | None:
    """Say why the table lacks a publication; empty: it has it; None: it can no longer be known."""
    proof = last.proof
    if evidence.last.decision < proof["decision"]:
        return f"it shows decision {evidence.last.decision}, and decision {last.decision} was published to it"
    if evidence.last.decision == proof["decision"] and evidence.last.txn != proof["txn"]:
        return f"it shows decision {evidence.last.decision} of {evidence.last.txn or 'what was given up'}"
    if not proof["snapshot"]:
        return ""  # a baseline of a branch without snapshots
    is_there = is_ancestor(metadata, proof["branch"], proof["snapshot"], proof["sequence"])
    if is_there is None:
        return None
    if is_there:
        return ""
    head = find_head(metadata, proof["branch"])
    now = f"its head is snapshot {head.snapshot_id}" if head else "there is no such branch"
    return f"branch '{proof['branch']}' lacks snapshot {proof['snapshot']}, which published epoch {last.epoch}; {now}"


def find_current(metadata: TableMetadata, place: str, last: Publication) -> Publication:
    """Return the last publication that the branch shows, with a proof of the table as it is."""
    app_id, branch = last.proof["app_id"], last.proof["branch"]
    decision = find_last_in_history(metadata, branch, app_id)
    head = find_head(metadata, branch)
    evidence = read(metadata.properties, app_id)
    snapshot, sequence = (head.snapshot_id, head.sequence_number or 0) if head else (0, 0)
    proof = make_proof(place, str(metadata.table_uuid), app_id, Evidence(evidence.last, snapshot, sequence, branch))
    return Publication(last.epoch if decision == last.decision else 0, decision, proof)

"""A verification as plain JSON: for programs, for the table of results, and for reports that are made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import starmap
from typing import Any

from onceonly.checkpoint.verification import Finding, Judgement
from onceonly.verification.epochs import format_epochs, parse_epochs
from onceonly.verification.result import Cell, Subject, Verification

MAX_FINDINGS = 1_000  # that are told one by one; what is of the same kind and words is one
GroupKey = tuple[Subject, str, str, str]  # with the code, why, and the advice


def to_json(verification: Verification) -> dict[str, Any]:
    """Return all that a verification has found. Times are texts; epochs are texts as '1-9, 12'."""
    findings = _group_findings(verification)
    return {
        "id": verification.id,
        "pipeline": verification.pipeline,
        "at": _iso(verification.at),
        "seconds": round(verification.seconds, 3),
        "version": verification.version,
        "state_table": verification.state_table,
        "state_id": verification.state_id,
        "seq": verification.seq,
        "row_id": verification.row_id,
        "deep": verification.is_deep,
        "since": _iso(verification.since),
        "judgement": _name(verification.judgement),
        "verified_right_until": _iso(verification.right_until),
        "checkpoints": _count_checkpoints(verification),
        "open": format_epochs(verification.open_epochs),
        "subjects": list(starmap(_describe_subject, verification.by_subject.items())),
        "findings": findings[:MAX_FINDINGS],
        "findings_left_out": max(0, len(findings) - MAX_FINDINGS),
    }


def _count_checkpoints(verification: Verification) -> dict[str, int]:
    counts = {}
    for judgement in Judgement:
        counts[_name(judgement)] = verification.count_checkpoints(judgement)
    return counts


def _describe_subject(subject: Subject, cells: Iterable[Cell]) -> dict[str, Any]:
    """Return the epochs of a subject by judgement, and an example of what has shown each of the right ones."""
    by_judgement: dict[str, list[int]] = {"right": [], "wrong": [], "unknown": []}
    right_before: list[int] = []
    epochs_by_code: dict[str, list[int]] = {}
    whys: dict[str, str] = {}
    for cell in cells:
        by_judgement[_name(cell.judgement)].append(cell.epoch)
        if cell.checked_at is not None:
            right_before.append(cell.epoch)
        for finding in cell.findings:
            if finding.judgement is Judgement.RIGHT:
                epochs_by_code.setdefault(finding.code, []).append(cell.epoch)
                whys[finding.code] = finding.why
    examples = []
    for code, epochs in epochs_by_code.items():
        examples.append({"code": code, "epochs": format_epochs(epochs), "count": len(set(epochs)), "why": whys[code]})
    counts, spans = {}, {}
    for judgement, epochs in by_judgement.items():
        counts[judgement], spans[judgement] = len(epochs), format_epochs(epochs)
    about = {"kind": subject.kind, "name": subject.name, "counts": counts, **spans}
    return {**about, "right_before": format_epochs(right_before), "examples": examples}


def _group_findings(verification: Verification) -> list[dict[str, Any]]:
    """Return what is not right, the wrong first; findings of the same words are one."""
    findings = []
    for judgement in (Judgement.WRONG, Judgement.UNKNOWN):
        epochs_by_key: dict[GroupKey, list[int]] = {}
        for subject, finding in verification.list_findings(judgement):
            epochs = epochs_by_key.setdefault(_key_of(subject, finding), [])
            if finding.epoch is not None:
                epochs.append(finding.epoch)
        for (subject, code, why, advice), epochs in epochs_by_key.items():
            about = {"judgement": _name(judgement), "kind": subject.kind, "name": subject.name}
            findings.append({**about, "epochs": format_epochs(epochs), "code": code, "why": why, "advice": advice})
    return findings


def _key_of(subject: Subject, finding: Finding) -> GroupKey:
    return subject, finding.code, finding.why, finding.advice


def _name(judgement: Judgement) -> str:
    return judgement.name.lower()


def _iso(time: datetime | None) -> str | None:
    return time.isoformat().replace("+00:00", "Z") if time else None


def read_right(data: Mapping[str, Any]) -> dict[Subject, set[int]]:
    """Return by subject the epochs that this verification has found right itself, without those of earlier ones."""
    epochs = {}
    for subject in data["subjects"]:
        own = parse_epochs(subject["right"]) - parse_epochs(subject["right_before"])
        epochs[Subject(subject["kind"], subject["name"])] = own
    return epochs

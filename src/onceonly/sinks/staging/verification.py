"""What the verifications of all targets share: findings of one publication, and handles that cannot be parsed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.model import Handle
from onceonly.checkpoint.verification import Finding, Judgement, Published
from onceonly.errors import CannotPublish

MISSING_ADVICE = (
    "Bring the target back, then: onceonly recover. Or accept the loss: onceonly accept-loss PIPELINE SINK --reason …"
)
DAMAGED_ADVICE = "Was the state table edited by hand? Restore an earlier copy of it."
T = TypeVar("T")


def find_last_decision(published: Sequence[Published]) -> int:
    """Return the highest decision that is recorded as published; 0: none."""
    last = 0
    for publication in published:
        last = max(last, publication.decision)
    return last


def as_right(publication: Published, code: FindingCode, why: str) -> Finding:
    return Finding(Judgement.RIGHT, code, why, publication.epoch)


def as_wrong(publication: Published, code: FindingCode, why: str, advice: str = "") -> Finding:
    return Finding(Judgement.WRONG, code, why, publication.epoch, advice)


def as_unknown(publication: Published, code: FindingCode, why: str, advice: str = "") -> Finding:
    return Finding(Judgement.UNKNOWN, code, why, publication.epoch, advice)


def as_damaged(publication: Published, error: Exception) -> Finding:
    """Return the finding that a handle is not one that the sink writes."""
    why = f"{error.what} {error.why}" if isinstance(error, CannotPublish) else f"{type(error).__name__}: {error}"
    return as_wrong(publication, FindingCode.RECORD_DAMAGED, why, DAMAGED_ADVICE)


def parse_handles(
    published: Sequence[Published], parse: Callable[[Handle], T]
) -> tuple[list[Published], list[T], list[Finding]]:
    """Return the publications whose handles can be parsed, those, and findings of the others."""
    valid, handles, findings = list[Published](), list[T](), list[Finding]()
    for publication in published:
        try:
            handles.append(parse(publication.handle))
        except (CannotPublish, KeyError, TypeError, ValueError, AssertionError) as error:
            findings.append(as_damaged(publication, error))
        else:
            valid.append(publication)
    return valid, handles, findings

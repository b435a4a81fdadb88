"""What the verifications of all targets share: how publications are gone through, and findings that all can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.model import Handle
from onceonly.checkpoint.verification import Depth, Finding, Judgement, Published
from onceonly.errors import CannotPublish
from onceonly.storage.interface import MAX_PARALLEL_REQUESTS

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


def as_accepted_loss(publication: Published) -> Finding:
    why = "the target has lost it, and a person has accepted that"
    return as_right(publication, FindingCode.LOSS_ACCEPTED, why)


def as_unrecorded(what: str, is_awaited: bool) -> Finding:
    """Return the finding that a target shows a publication of this sink that is not recorded.

    Args:
        what: shows it, and of which decision or checkpoint it is.
        is_awaited: it may be recorded at any moment.
    """
    why = f"{what}, and no such publication is recorded"
    if is_awaited:
        advice = "Did its process die just then? Then: onceonly recover"
        return Finding(Judgement.UNKNOWN, FindingCode.NOT_RECORDED_YET, why, advice=advice)
    advice = "Was the state table edited, or restored from an older copy?"
    return Finding(Judgement.WRONG, FindingCode.COMMIT_UNRECORDED, why, advice=advice)


def judge_all(
    published: Sequence[Published],
    handles: Sequence[T],
    judge: Callable[[Published, T], Iterator[Finding]],
    depth: Depth,
) -> Iterator[Finding]:
    """Judge the publications side by side, and yield the findings in their order."""
    with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
        answers = pool.map(lambda publication, handle: list(judge(publication, handle)), published, handles)
        for done, findings in enumerate(answers, 1):
            yield from findings
            depth.show_progress(done, len(published))


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

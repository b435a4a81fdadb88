"""The refusal to build on a target that lacks what was published to it, or shows what was recorded as missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from onceonly.checkpoint.sink import Answer, History, Publication
from onceonly.errors import OutcomeUnknown, TargetWentBack


class Comparing(Protocol):
    @property
    def name(self) -> str: ...

    def compare(self, last: Publication) -> History: ...


def require(sink: Comparing, last: Publication | None) -> bool:
    """Return whether the target shows the sink's last publication; False: there is none, or it was to another target.

    Raises:
        TargetWentBack: the target lacks it, or shows what is recorded as missing there.
        OutcomeUnknown: the target does not answer.
    """
    if last is None or not last.proof:
        return False
    history = sink.compare(last)
    if history.answer is Answer.WENT_BACK:
        raise went_back(sink.name, last, history)
    require_still_lost(sink, last)
    return history.answer is not Answer.ELSEWHERE


def require_still_lost(sink: Comparing, last: Publication) -> None:
    """Raise TargetWentBack if the target shows a publication that is recorded as missing there."""
    for publication in last.lost:
        if sink.compare(publication).answer is Answer.SAME:
            raise is_back(sink.name, publication)


def is_back(sink: str, publication: Publication) -> TargetWentBack:
    return TargetWentBack(
        f"sink '{sink}': {publication.proof['target']} shows epoch {publication.epoch} (decision "
        f"{publication.decision}) again.",
        "It was accepted that its rows are missing there.",
        f"Nothing was written. Record that it is there again: onceonly accept-loss PIPELINE {sink} --reason …",
        code="target-is-back",
    )


def went_back(sink: str, last: Publication, history: History) -> TargetWentBack:
    if history.at_least:
        rest = "Earlier decisions may be missing there as well"
    elif history.decision:
        rest = f"It still shows decision {history.decision}"
    else:
        rest = "It shows no earlier decision either"
    return TargetWentBack(
        f"sink '{sink}': {last.proof['target']} lacks what was published to it, up to epoch {last.epoch} "
        f"(decision {last.decision}).",
        f"{history.why[:1].upper()}{history.why[1:]}. {rest}.",
        "Nothing was written. Bring the target back (mount its volume, restore its newest copy), then: onceonly "
        f"recover. If what is missing there is lost, write it again: onceonly repair FILE.py:NAME {sink} --reason …, "
        f"or continue without it: onceonly accept-loss PIPELINE {sink} --reason …",
        code="target-went-back",
    )


@contextmanager
def require_answer(sink: str, target: str) -> Iterator[None]:
    """Raise OutcomeUnknown where the storage of the target does not answer."""
    try:
        yield
    except OSError as error:
        raise OutcomeUnknown(
            f"sink '{sink}': {target} does not answer.",
            f"{type(error).__name__}: {error}",
            "Nothing was changed. Try again when it can be reached.",
            "no-answer",
        ) from error

"""What the targets show of all that was published to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.verification import Depth, Finding, Judgement, VerifiableTarget
from onceonly.errors import first_sentence
from onceonly.verification.records import Records, TargetGroup

SinkFinding = tuple[str, Finding]


def ask_targets(records: Records, parts: Parts, make_depth: Callable[[str], Depth]) -> Iterator[SinkFinding]:
    """Yield what the targets show, by sink; of each publication that is given at least one finding.

    Args:
        make_depth: how closely to look at a sink.
    """
    for group in records.groups:
        for finding in _ask_target(group, parts, make_depth(group.sink)):
            yield group.sink, finding
    for checkpoint in records.commits:
        for sink, resolution in checkpoint.given_up.items():
            why = f"Given up by {resolution.get('who', 'a person')}: {resolution.get('reason', '')}"
            yield sink, Finding(Judgement.RIGHT, FindingCode.GIVEN_UP, why, checkpoint.epoch)


def _ask_target(group: TargetGroup, parts: Parts, depth: Depth) -> Iterator[Finding]:
    """Yield what one target shows. Whatever goes wrong is no answer, and says nothing of the rows.

    Then nothing of it is right, whatever was found before: rows that nobody has published are looked for last.
    """
    epochs = dict.fromkeys(publication.epoch for publication in group.published)
    waiting = dict(epochs)
    code = FindingCode.TARGET_SAYS_NOTHING
    why = "The sink has said nothing of it."
    try:
        sink = parts.sink(group.definition.pipeline, group.sink)
        if isinstance(sink, VerifiableTarget):
            for finding in sink.verify(group.published, depth):
                waiting.pop(finding.epoch or 0, None)
                yield finding
        else:
            code = FindingCode.NOT_VERIFIABLE
            why = "Sinks of this kind cannot compare their target with what was published to it."
    except Exception as error:
        code, why = FindingCode.TARGET_SILENT, f"The target could not be asked. {first_sentence(error)}"
        waiting = epochs
    for epoch in waiting:
        yield Finding(Judgement.UNKNOWN, code, why, epoch)

"""What the state table records of one sink, for tests of its `verify`: what was published, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from onceonly.checkpoint.model import Handle
from onceonly.checkpoint.sink import Publication, Sink
from onceonly.checkpoint.verification import Depth, Finding, Judgement, Published, VerifiableTarget
from onceonly.testing.targets import Committer

FIRST_TIME = datetime(2013, 1, 1, 12, tzinfo=UTC)


@dataclass
class Ledger:
    """The publications of one sink, in the order of their decisions.

    Args:
        make_sink: returns a new one.
    """

    make_sink: Callable[[], Sink]
    committer: Committer
    published: list[Published] = field(default_factory=list)

    @property
    def last(self) -> Publication | None:
        """The last recorded publication that is not recorded as missing."""
        for publication in reversed(self.published):
            if not publication.missing:
                return publication.publication
        return None

    def publish(self, epoch: int, handle: Handle, decision: int | None = None) -> Published:
        """Rehearse, commit and record one handle."""
        number = decision or (self.published[-1].decision if self.published else 0) + 1
        decided = self.committer.rehearse(handle, number, self.last)
        outcome = self.committer.commit(decided, number, self.last)
        proof = json.loads(json.dumps(dict(outcome.proof)))
        publication = Publication(epoch, number, proof)
        recorded = self.committer.find_recorded(decided)
        published = Published(epoch, number, recorded, publication, FIRST_TIME, outcome.already)
        self.published.append(published)
        return published

    def change(self, epoch: int, **changes: Any) -> None:
        """Change what is recorded of an epoch, such as `taken_out_by` or `missing`."""
        for number, publication in enumerate(self.published):
            if publication.epoch == epoch:
                self.published[number] = replace(publication, **changes)

    def verify(self, reads_rows: bool = False) -> list[Finding]:
        sink = self.make_sink()
        assert isinstance(sink, VerifiableTarget)
        findings = list(sink.verify(self.published, Depth(reads_rows)))
        unjudged = set()
        for publication in self.published:
            unjudged.add(publication.epoch)
        for finding in findings:
            unjudged.discard(finding.epoch or 0)
        assert unjudged == set(), "every epoch gets at least one finding"
        return findings


def list_codes(findings: Sequence[Finding], judgement: Judgement = Judgement.WRONG) -> list[tuple[int | None, str]]:
    """List (epoch, code) of the findings with that judgement."""
    pairs = []
    for finding in findings:
        if finding.judgement is judgement:
            pairs.append((finding.epoch, str(finding.code)))
    return sorted(pairs, key=lambda pair: (pair[0] or 0, pair[1]))

"""Compares the ledger, and the rows that are marked, with all that a sink has published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from onceonly.sinks import Depth, Finding, FindingCode, Published
from onceonly.sinks.toolkit import (
    MISSING_ADVICE,
    as_accepted_loss,
    as_right,
    as_unknown,
    as_unrecorded,
    as_wrong,
    find_last_decision,
)
from onceonly_postgres.ledger import LedgerRow, is_shown


@dataclass(frozen=True)
class Verification:
    """One comparison with the target as one transaction has read it.

    Args:
        place: the target, as proofs name it.
        table_id: of the table; None: there is none.
        row: of the ledger.
        marked_rows: by transaction, how many rows of the table have its name; None: they were not counted.
    """

    place: str
    table_id: int | None
    row: LedgerRow
    marked_rows: Mapping[str, int] | None

    def run(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        for done, publication in enumerate(published, 1):
            yield self._judge(publication)
            depth.show_progress(done, len(published))
        yield from self._find_unrecorded(published)

    def _judge(self, publication: Published) -> Finding:
        proof = publication.publication.proof
        if not proof:
            return as_unknown(publication, FindingCode.NO_EVIDENCE, "a person says that it was published")
        if proof["target"] != self.place:
            why = f"it was published to {proof['target']}, and the sink names {self.place} now"
            return as_unknown(publication, FindingCode.ELSEWHERE, why)
        is_there = self.table_id == self.row.table_id and is_shown(
            self.row, proof["line"], publication.decision, publication.handle["txn"]
        )
        if publication.missing:
            if is_there:
                return as_wrong(publication, FindingCode.LOSS_IS_BACK, "the ledger shows it again")
            return as_accepted_loss(publication)
        if not is_there:
            return self._judge_missing(publication, proof["line"])
        return self._judge_rows(publication)

    def _judge_missing(self, publication: Published, line: str) -> Finding:
        """Say what is wrong with a target that does not show a publication."""
        if self.table_id is None:
            return as_wrong(publication, FindingCode.TARGET_MISSING, f"{self.place} is not there", MISSING_ADVICE)
        if self.row.table_id not in (None, self.table_id):
            why = f"{self.place} was dropped, and another one has its name"
            return as_wrong(publication, FindingCode.TARGET_REPLACED, why, MISSING_ADVICE)
        why = f"the ledger shows decision {self.row.published_by} as the last one"
        if line == self.row.line and self.row.published_by < publication.decision:
            return as_wrong(publication, FindingCode.TARGET_WENT_BACK, why, MISSING_ADVICE)
        return as_wrong(publication, FindingCode.COMMIT_MISSING, why, MISSING_ADVICE)

    def _judge_rows(self, publication: Published) -> Finding:
        """Compare the rows that have its mark, where they were counted, with those that were published."""
        handle, is_taken_out = publication.handle, publication.taken_out_by is not None
        if self.marked_rows is None or "checkpoint_column" not in handle:
            if is_taken_out:
                why = f"epoch {publication.taken_out_by} has taken it out, in the transaction that published that one"
                return as_right(publication, FindingCode.TAKEN_OUT, why)
            return as_right(publication, FindingCode.RIGHT, "the ledger shows it; its rows were not counted")
        rows = self.marked_rows.get(handle["txn"], 0)
        if is_taken_out and rows:
            why = f"epoch {publication.taken_out_by} has taken it out, and {rows:,} of its rows are there"
            return as_wrong(publication, FindingCode.NOT_TAKEN_OUT, why)
        if is_taken_out:
            return as_right(publication, FindingCode.TAKEN_OUT, f"epoch {publication.taken_out_by} has taken it out")
        why = f"{rows:,} rows have its mark, and {handle['rows']:,} were published"
        if rows < handle["rows"]:
            return as_wrong(publication, FindingCode.ROWS_DELETED, why)
        if rows > handle["rows"]:
            return as_wrong(publication, FindingCode.ROWS_TWICE, why)
        return as_right(publication, FindingCode.RIGHT, why)

    def _find_unrecorded(self, published: Sequence[Published]) -> Iterator[Finding]:
        """Find publications that the ledger has counted, and the state table does not record."""
        if self.row.published_by > find_last_decision(published):
            what = f"the ledger shows decision {self.row.published_by} ({self.row.published})"
            yield as_unrecorded(what, is_awaited=True)
        proofs = [(one.decision, one.publication.proof) for one in published if one.publication.proof]
        for (decision, proof), (next_decision, next_proof) in pairwise(proofs):
            is_gap = proof["line"] == next_proof["line"] and next_proof["number"] > proof["number"] + 1
            if is_gap:
                gap = next_proof["number"] - proof["number"] - 1
                what = f"the ledger has counted {gap} more between decisions {decision} and {next_decision}"
                yield as_unrecorded(what, is_awaited=False)

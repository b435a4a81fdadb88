"""Verify a pipeline: read the state table once, ask its sources and targets, and judge every checkpoint.

The state table is read before the targets. What a running pipeline publishes meanwhile could look like rows that nobody
has published; so if something is wrong and the table has a new row, everything is looked at again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import onceonly
from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.verification import Depth, Finding, Judgement
from onceonly.statetable.table import StateTable
from onceonly.verification.coverage import compare_ranges
from onceonly.verification.records import Records, read_records
from onceonly.verification.result import (
    SINK,
    SOURCE,
    STATE_TABLE,
    Cell,
    Subject,
    Verification,
    list_judgements,
    make_cells,
)
from onceonly.verification.sources import ask_sources
from onceonly.verification.targets import ask_targets

MAX_LOOKS = 3  # at a pipeline that runs meanwhile
Show = Callable[[str, int, int], None]  # of what, done, of how many
SubjectFinding = tuple[Subject, Finding]


def show_nothing(_what: str, _done: int, _of: int) -> None:
    return


@dataclass(frozen=True)
class EarlierResult:
    """What an earlier verification has found right.

    Args:
        seq, row_id: see `Verification`.
        right: the epochs, by subject.
    """

    at: datetime
    version: str
    is_deep: bool
    seq: int
    row_id: str
    right: dict[Subject, set[int]]

    def is_of(self, records: Records) -> bool:
        """Return whether it was of this state table: one that was restored gives numbers a second time."""
        return self.seq == 0 or records.row_ids.get(self.seq) == self.row_id


@dataclass(frozen=True)
class Verifier:
    """Verifies pipelines of one state table.

    Args:
        open_table: opens the state table, so that a second look finds what was written since.
        show: is told how far it is.
    """

    open_table: Callable[[], StateTable]
    parts: Parts
    show: Show = show_nothing

    def verify(
        self,
        pipeline: str,
        is_deep: bool = False,
        since: datetime | None = None,
        earlier: Sequence[EarlierResult] = (),
    ) -> Verification:
        """Return what is found. Nothing is changed, and nothing is recorded.

        Raises:
            OutcomeUnknown: the state table cannot be read.
        """
        at, started = datetime.now(UTC), time.monotonic()
        for look in range(1, MAX_LOOKS + 1):
            state_table = self.open_table()
            records = read_records(state_table, pipeline)
            cells, of_subjects = make_cells(self._find(records, is_deep, since))
            if not _is_in_question(cells, of_subjects) or self._last_seq(pipeline) == records.last_seq:
                break
            if look == MAX_LOOKS:
                of_subjects = list(map(_doubt, of_subjects))
        good_before = _Earlier(earlier, records, is_deep)
        cells = _select(map(good_before.apply, cells), records, since)
        return Verification(
            id=uuid.uuid4().hex,
            pipeline=pipeline,
            at=at,
            seconds=time.monotonic() - started,
            version=onceonly.__version__,
            state_table=state_table.uri,
            state_id=state_table.id,
            seq=records.last_seq,
            row_id=records.row_ids.get(records.last_seq, ""),
            is_deep=is_deep,
            since=since,
            cells=cells,
            of_subjects=of_subjects,
            open_epochs=[checkpoint.epoch for checkpoint in records.open],
            right_until=_find_right_until(records, cells, of_subjects, good_before),
        )

    def _find(self, records: Records, is_deep: bool, since: datetime | None) -> Iterator[SubjectFinding]:
        for finding in records.faults:
            yield STATE_TABLE, finding

        open_epochs = frozenset(checkpoint.epoch for checkpoint in records.open)

        def make_depth(what: str) -> Depth:
            return Depth(is_deep, lambda done, of: self.show(what, done, of), since, open_epochs)

        for topic, finding in compare_ranges(records):
            yield Subject(SOURCE, topic), finding
        for topic, finding in ask_sources(records, self.parts, make_depth("sources")):
            yield Subject(SOURCE, topic), finding
        for sink, finding in ask_targets(records, self.parts, lambda name: make_depth(f"sink '{name}'")):
            yield Subject(SINK, sink), finding

    def _last_seq(self, pipeline: str) -> int:
        return self.open_table().view(pipeline).head.seq


def _is_in_question(cells: Iterable[Cell], of_subjects: Sequence[SubjectFinding]) -> bool:
    """Return whether something is wrong, or newer than what the state table records."""
    if Judgement.WRONG in list_judgements(cells, of_subjects):
        return True
    return any(finding.code == FindingCode.NOT_RECORDED_YET for _, finding in of_subjects)


def _doubt(found: SubjectFinding) -> SubjectFinding:
    """Return what was found of a whole target without an accusation: the pipeline has published meanwhile."""
    subject, finding = found
    if finding.judgement is not Judgement.WRONG:
        return found
    why = f"The pipeline has gone on at each of {MAX_LOOKS} looks, so it may be its own. {finding.why}"
    return subject, Finding(Judgement.UNKNOWN, FindingCode.PIPELINE_RUNNING, why)


def _select(cells: Iterable[Cell], records: Records, since: datetime | None) -> list[Cell]:
    """Return the cells of the checkpoints that were settled since then."""
    if since is None:
        return list(cells)
    selected = []
    for cell in cells:
        checkpoint = records.checkpoints.get(cell.epoch)
        is_since = checkpoint is None or records.published_at.get(cell.epoch, checkpoint.updated_at) >= since
        if is_since:
            selected.append(cell)
    return selected


class _Earlier:
    """What earlier verifications of the same state table have found right."""

    def __init__(self, results: Iterable[EarlierResult], records: Records, is_deep: bool) -> None:
        self._last: dict[tuple[Subject, int], EarlierResult] = {}
        for result in sorted(results, key=lambda result: result.at):
            if not result.is_of(records) or (is_deep and not result.is_deep):
                continue  # what names and sizes have shown says nothing of rows
            for subject, epochs in result.right.items():
                for epoch in epochs:
                    self._last[subject, epoch] = result

    def find(self, subject: Subject, epoch: int) -> EarlierResult | None:
        """Return the last verification that has found it right; None: none has."""
        return self._last.get((subject, epoch))

    def has_all_sinks_of(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint was found right in every sink."""
        return all(self.find(Subject(SINK, sink), checkpoint.epoch) for sink in checkpoint.published)

    def apply(self, cell: Cell) -> Cell:
        """Return a cell that cannot be known any more as right, if it was right when it was checked."""
        if cell.judgement is not Judgement.UNKNOWN:
            return cell
        before = self.find(cell.subject, cell.epoch)
        if before is None:
            return cell
        when = f"Right when checked on {before.at:%Y-%m-%d %H:%M} UTC, by version {before.version}"
        why = f"{when}. Since then: {_find_reason(cell)}"
        finding = Finding(Judgement.RIGHT, FindingCode.RIGHT_BEFORE, why, cell.epoch)
        return Cell(cell.subject, cell.epoch, [finding], before.at)


def _find_reason(cell: Cell) -> str:
    """Return why it cannot be known."""
    for finding in cell.findings:
        if finding.judgement is Judgement.UNKNOWN:
            return finding.why
    return ""


def _find_right_until(
    records: Records, cells: Iterable[Cell], of_subjects: Iterable[SubjectFinding], earlier: _Earlier
) -> datetime | None:
    """Return up to when everything is right; None: nothing is committed, or the first checkpoint is not right."""
    if Judgement.WRONG in list_judgements((), of_subjects):
        return None
    seen_epochs: set[int] = set()
    bad_epochs: set[int] = set()
    for cell in cells:
        seen_epochs.add(cell.epoch)
        if cell.judgement is not Judgement.RIGHT:
            bad_epochs.add(cell.epoch)
    until: datetime | None = None
    for checkpoint in sorted(records.commits, key=lambda checkpoint: checkpoint.data_end):
        is_right = checkpoint.epoch in seen_epochs or earlier.has_all_sinks_of(checkpoint)
        if not is_right or checkpoint.epoch in bad_epochs:
            return until
        until = checkpoint.data_end
    return until

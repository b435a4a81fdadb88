"""The result of a verification: for every checkpoint and subject one judgement, and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from onceonly.checkpoint.verification import Finding, Judgement

WORST_FIRST = (Judgement.WRONG, Judgement.UNKNOWN, Judgement.RIGHT)
STATE, SOURCE, SINK = "state table", "source", "sink"  # kinds of subjects


@dataclass(frozen=True)
class Subject:
    """What a finding is about: the state table, a source by its topic, or a sink."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'" if self.name else self.kind


STATE_TABLE = Subject(STATE)


@dataclass(frozen=True)
class Cell:
    """The judgement of one checkpoint in one subject.

    Args:
        findings: those that have led to it.
        checked_at: it can no longer be known, and was right at that time; None: it is as it is now.
    """

    subject: Subject
    epoch: int
    findings: Sequence[Finding]
    checked_at: datetime | None = None

    @property
    def judgement(self) -> Judgement:
        """RIGHT if there is a finding that says so, and no other."""
        return worst(finding.judgement for finding in self.findings)


def worst(judgements: Iterable[Judgement]) -> Judgement:
    """Return WRONG if one of them is, else UNKNOWN if one of them is; UNKNOWN if there is none."""
    present = set(judgements)
    for judgement in WORST_FIRST:
        if judgement in present:
            return judgement
    return Judgement.UNKNOWN


@dataclass(frozen=True)
class Verification:
    """What was checked, when, by which version, and what came of it.

    Args:
        seq, row_id: of the last row of the state table that was read: later verifications recognise the table by it.
        since: only checkpoints that were published since then were looked at; None: all.
        of_subjects: what was found of a subject as a whole, such as files that nobody has published.
        open_epochs: not settled yet, so not looked at.
        right_until: up to when everything is right, now or when it was last checked; None: the first is not.
    """

    id: str
    pipeline: str
    at: datetime
    seconds: float
    version: str
    state_table: str
    state_id: str
    seq: int
    row_id: str
    is_deep: bool
    since: datetime | None
    cells: Sequence[Cell]
    of_subjects: Sequence[tuple[Subject, Finding]]
    open_epochs: Sequence[int] = ()
    right_until: datetime | None = None

    @cached_property
    def judgement(self) -> Judgement:
        judgements = list_judgements(self.cells, self.of_subjects)
        return worst(judgements) if judgements else Judgement.RIGHT

    @cached_property
    def by_subject(self) -> Mapping[Subject, Sequence[Cell]]:
        """The cells by subject, in the order of their epochs."""
        cells: dict[Subject, list[Cell]] = defaultdict(list)
        for cell in sorted(self.cells, key=lambda cell: cell.epoch):
            cells[cell.subject].append(cell)
        for subject, _ in self.of_subjects:
            cells.setdefault(subject, [])
        return cells

    @cached_property
    def by_epoch(self) -> Mapping[int, Judgement]:
        """By epoch the judgement of a checkpoint: the worst of its cells."""
        judgements: dict[int, list[Judgement]] = defaultdict(list)
        for cell in self.cells:
            judgements[cell.epoch].append(cell.judgement)
        worst_by_epoch = {}
        for epoch, of_epoch in judgements.items():
            worst_by_epoch[epoch] = worst(of_epoch)
        return worst_by_epoch

    def count_checkpoints(self, judgement: Judgement) -> int:
        """Return how many checkpoints have that judgement."""
        return Counter(self.by_epoch.values())[judgement]

    def list_findings(self, judgement: Judgement) -> list[tuple[Subject, Finding]]:
        """Return the findings of that judgement: of whole subjects first, then by epoch."""
        findings = []
        for subject, finding in self.of_subjects:
            if finding.judgement is judgement:
                findings.append((subject, finding))
        for cell in sorted(self.cells, key=lambda cell: cell.epoch):
            for finding in cell.findings:
                if finding.judgement is judgement:
                    findings.append((cell.subject, finding))
        return findings


def list_judgements(cells: Iterable[Cell], of_subjects: Iterable[tuple[Subject, Finding]]) -> list[Judgement]:
    """Return the judgements of all cells and subjects, in any order."""
    judgements = []
    for cell in cells:
        judgements.append(cell.judgement)
    for _, finding in of_subjects:
        judgements.append(finding.judgement)
    return judgements


def make_cells(findings: Iterable[tuple[Subject, Finding]]) -> tuple[list[Cell], list[tuple[Subject, Finding]]]:
    """Return the findings as cells, and those that are about no checkpoint."""
    by_cell: dict[tuple[Subject, int], list[Finding]] = defaultdict(list)
    of_subjects = []
    for subject, finding in findings:
        if finding.epoch is None:
            of_subjects.append((subject, finding))
        else:
            by_cell[subject, finding.epoch].append(finding)
    cells = []
    for (subject, epoch), of_cell in by_cell.items():
        cells.append(Cell(subject, epoch, of_cell))
    return cells, of_subjects

"""Compares a Delta table with all that a sink has published to it. The log is read once, and the files are listed once.

Each publication is judged by its own log entry, which has to be the one that was recorded, and by what became of the
files that it added (`lots.py`). Files that the table has and nobody published are looked for last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.verification import Depth, Finding, Judgement, Published
from onceonly.counts import count
from onceonly.delta import txn_identifiers
from onceonly.delta.table_history import BrokenLog, LogEntry, TableHistory, read_history
from onceonly.sinks.delta import errors, evidence
from onceonly.sinks.delta.file_check import FileCheck
from onceonly.sinks.delta.handle import DeltaHandle
from onceonly.sinks.delta.lots import LotState, LotTracker, Step, StepKind, list_published_files
from onceonly.sinks.staging.verification import (
    MISSING_ADVICE,
    as_accepted_loss,
    as_right,
    as_unknown,
    as_unrecorded,
    as_wrong,
    parse_handles,
)

CODES_BY_OPERATION = (  # how the operation begins, as the commit names it
    ("DELETE", FindingCode.ROWS_DELETED),
    ("TRUNCATE", FindingCode.ROWS_DELETED),
    ("UPDATE", FindingCode.ROWS_CHANGED),
    ("MERGE", FindingCode.ROWS_CHANGED),
    ("RESTORE", FindingCode.TABLE_RESTORED),
    ("WRITE OVERWRITE", FindingCode.ROWS_OVERWRITTEN),
    ("REPLACE", FindingCode.ROWS_OVERWRITTEN),
    ("CREATE OR REPLACE", FindingCode.ROWS_OVERWRITTEN),
)
COUNTING_OPERATIONS = ("DELETE", "TRUNCATE")  # after which the number of rows left tells whose were deleted
COLUMN_ADVICE = "With DeltaSink(checkpoint_column=…), --deep tells it of rows that are published from then on."
MAX_NAMES = 3  # files named in a sentence
ADVICE_ON_ROWS = "If that was intended, nothing. Else RESTORE the table, or publish the interval again: onceonly run … "
ADVICE_ON_ROWS += "--reprocess."


@dataclass
class DeltaVerification:
    """One comparison.

    Args:
        uri: of the table.
        published: with valid handles, in the order of decisions.
    """

    uri: str
    published: Sequence[Published]
    handles: Sequence[DeltaHandle]
    history: TableHistory
    depth: Depth
    tracker: LotTracker = field(init=False)
    files: FileCheck = field(init=False)

    def __post_init__(self) -> None:
        self.tracker = LotTracker(self.history, self.handles)
        self.files = FileCheck(self.uri, self.depth)
        self._doubts: dict[int, tuple[Step, set[int]]] = {}  # by version: the step, and the epochs it may concern

    def run(self) -> Iterator[Finding]:
        numbers: dict[tuple[str, int], int] = {}
        for index, (publication, handle) in enumerate(zip(self.published, self.handles, strict=True)):
            numbers[handle.app_id, handle.txn_version(publication.decision)] = index
        self.tracker.follow(numbers)
        self._check_files()
        for index in range(len(self.published)):
            yield from self._judge(index)
        yield from self._judge_table(numbers)

    def _check_files(self) -> None:
        """Look at every file that may hold rows of the publications."""
        files = []
        for identity, file in self.history.files.items():
            if self.tracker.list_publications_in(identity):
                files.append(file)
        self.files.check(files)
        if self.depth.reads_rows:
            self.files.count_named_rows(list(self.history.files.values()), self.handles)

    # ---- one publication

    def _judge(self, index: int) -> Iterator[Finding]:
        publication, handle = self.published[index], self.handles[index]
        entry = self.tracker.entries.get(index)
        if publication.missing:
            yield self._judge_missing(index, entry)
            return
        other_place = list(self._judge_place(publication, handle))
        if other_place:
            yield from other_place
            return
        findings = list(self._judge_entry(index, entry))
        if not any(finding.judgement is Judgement.WRONG for finding in findings):
            findings += self._judge_rows(index, entry is not None)
        yield from findings

    def _judge_missing(self, index: int, entry: LogEntry | None) -> Finding:
        """Judge what a person has accepted as lost."""
        publication, handle = self.published[index], self.handles[index]
        if entry and handle.table_id == self.history.table_ids[-1] and self._find_present(index):
            why = f"it is recorded as lost, and {entry} of {self.uri} shows it"
            return as_wrong(publication, FindingCode.LOSS_IS_BACK, why, MISSING_ADVICE)
        return as_accepted_loss(publication)

    def _judge_place(self, publication: Published, handle: DeltaHandle) -> Iterator[Finding]:
        """Find another table than the one that was published to."""
        if handle.table_id in self.history.table_ids:
            return
        target = publication.publication.proof.get("target")
        if target is not None and target != evidence.normalize_place(self.uri):
            why = f"it was published to {target}, and the sink's table is {self.uri} now"
            yield as_unknown(publication, FindingCode.ELSEWHERE, why, f"Look into {target} for its rows.")
            return
        why = (
            f"it was published to the table with the id {handle.table_id}, and the one at {self.uri} has the id "
            f"{self.history.table_ids[-1]}"
        )
        yield as_wrong(publication, FindingCode.TARGET_REPLACED, why, MISSING_ADVICE)

    def _judge_entry(self, index: int, entry: LogEntry | None) -> Iterator[Finding]:
        """Compare the log entry that published it with what is recorded."""
        publication, handle, history = self.published[index], self.handles[index], self.history
        proof = publication.publication.proof
        version, digest = proof.get("version"), proof.get("entry")
        if version is not None and version > history.newest:
            why = f"version {version} published it, and the log of {self.uri} ends at version {history.newest}"
            yield as_wrong(publication, FindingCode.TARGET_WENT_BACK, why, MISSING_ADVICE)
            return
        entry_of_proof = history.find_entry(version) if version is not None else None
        if entry_of_proof and digest and entry_of_proof.digest != digest:
            why = f"{entry_of_proof} of {self.uri} is not the commit that published it: the digest of the entry differs"
            yield as_wrong(publication, FindingCode.COMMIT_CHANGED, why, MISSING_ADVICE)
        elif entry is None and (entry_of_proof or history.is_whole):
            number = handle.txn_version(publication.decision)
            why = f"no commit of {self.uri} has the transaction {handle.app_id} with the number {number:x}"
            yield as_wrong(publication, FindingCode.COMMIT_MISSING, why, MISSING_ADVICE)
        elif entry is not None:
            yield from self._judge_counts(publication, handle, entry)

    def _judge_counts(self, publication: Published, handle: DeltaHandle, entry: LogEntry) -> Iterator[Finding]:
        """Compare the files and rows that the commit has added with the recorded numbers."""
        if handle.merge:
            return  # of the staged changes, only those are added that are newer than what is there
        files = list_published_files(handle, entry)
        are_staged = all(file.path.startswith(f"{handle.folder}/") for file in files)
        if are_staged and len(files) != handle.files and (files or handle.publish == "delta-rs"):
            why = f"{entry} added {count(len(files), 'file')}, and {handle.files:,} are recorded"
            yield as_wrong(publication, FindingCode.RECORD_DIFFERS, why)
            return
        rows = 0
        for file in files:
            file_rows = self.files.count_rows(file) if file.rows is None else file.rows + file.hidden
            if file_rows is None:
                return  # its own statistics do not say, and the file is gone, or is not read
            rows += file_rows
        if rows != handle.rows:
            why = f"{entry} added {count(rows, 'row')}, and {handle.rows:,} are recorded"
            yield as_wrong(publication, FindingCode.ROW_COUNT, why)

    def _judge_rows(self, index: int, has_entry: bool) -> list[Finding]:
        """Judge where the rows of a publication are now."""
        publication = self.published[index]
        if publication.taken_out_by is not None:
            return [self._judge_taken_out(index, has_entry)]
        findings: dict[str, Finding] = {}
        moves: list[Step] = []
        for lot in self.tracker.lots.get(index, ()):
            present = lot.find_present(self.history.files.keys())
            if len(present) > 1:
                names = _name_files([*present[0].files, *present[1].files])
                why = f"rows of {lot.file.path} are in the table twice: {names}"
                findings.setdefault(FindingCode.ROWS_TWICE, as_wrong(publication, FindingCode.ROWS_TWICE, why))
            state = present[0] if present else lot.states[-1]
            moves += state.steps
            finding = self._judge_steps(index, state) or self._judge_stored(index, state)
            if finding:
                findings.setdefault(finding.code, finding)
        if not has_entry and not findings:
            gone = self._judge_without_entry(index)
            if gone:
                findings.setdefault(gone.code, gone)
        by_name = self._judge_named_rows(index)
        if by_name:
            findings.pop(FindingCode.ROWS_IN_DOUBT, None)
            if by_name.judgement is not Judgement.RIGHT or not findings:
                findings.setdefault(by_name.code, by_name)
        return list(findings.values()) or [self._confirm(index, moves)]

    def _confirm(self, index: int, moves: Sequence[Step]) -> Finding:
        publication, handle = self.published[index], self.handles[index]
        overwriting = list[Step]()
        for step in moves:
            if step.kind is StepKind.OVERWRITTEN:
                overwriting.append(step)
        entry = self.tracker.entries.get(index)
        why = f"{count(handle.rows, 'row')} in {count(len(self.tracker.lots.get(index, ())), 'file')}"
        why += f", published by {entry}" if entry else ", published before the log begins"
        if overwriting:
            epoch = self.published[overwriting[-1].publication or 0].epoch
            why += f"; epoch {epoch} has replaced the partitions of {len(overwriting)} (version "
            why += f"{overwriting[-1].entry.version})"
            return as_right(publication, FindingCode.OVERWRITTEN, why)
        if moves:
            why += f"; {moves[-1].kind.value} since, last by {moves[-1].entry}"
        return as_right(publication, FindingCode.RIGHT, why)

    def _judge_taken_out(self, index: int, has_entry: bool) -> Finding:
        publication = self.published[index]
        if present := self._find_present(index):
            names = _name_files(sorted(present))
            why = f"epoch {publication.taken_out_by} has taken it out, and the table has {names}"
            return as_wrong(publication, FindingCode.NOT_TAKEN_OUT, why)
        if not has_entry and not self.tracker.lots.get(index):
            why = f"the log begins at version {self.history.first}: whether epoch {publication.taken_out_by} took out "
            return as_unknown(publication, FindingCode.HISTORY_GONE, f"{why}all of it can no longer be seen")
        why = f"epoch {publication.taken_out_by} has taken it out, and none of its files is in the table"
        return as_right(publication, FindingCode.TAKEN_OUT, why)

    def _judge_steps(self, index: int, state: LotState) -> Finding | None:
        """Judge what was done to a lot on the way to the state that counts; None: nothing but to move it."""
        publication = self.published[index]
        for step in reversed(state.steps):
            entry = step.entry
            if step.kind is StepKind.TAKEN_OUT:
                epoch = self.published[step.publication or 0].epoch
                why = f"epoch {epoch} has taken it out in {entry}, and the state table does not say so"
                return as_wrong(publication, FindingCode.RECORD_DIFFERS, why)
            if step.kind is StepKind.LOST:
                why = f"{entry} has {step.difference:+,} rows, and says that it has changed no data"
                return as_wrong(publication, FindingCode.ROWS_LOST_IN_REWRITE, why, ADVICE_ON_ROWS)
            if step.kind is not StepKind.CHANGED:
                continue
            if step.is_certain:
                why = f"{entry} has changed or taken out rows of it"
                return as_wrong(publication, _find_code(entry.operation), why, ADVICE_ON_ROWS)
            self._doubts.setdefault(entry.version, (step, set()))[1].add(publication.epoch)
            why = f"{entry} has changed rows in a file with rows of several owners: it cannot be seen whose they were"
            return as_unknown(
                publication, FindingCode.ROWS_IN_DOUBT, why, "With --deep, a checkpoint_column would tell."
            )
        return None

    def _judge_stored(self, index: int, state: LotState) -> Finding | None:
        """Judge the files that a lot is in; None: they are as they have to be."""
        publication = self.published[index]
        for identity in sorted(state.files):
            file = self.history.files.get(identity)
            damage = self.files.find_damage(file) if file else None
            if damage:
                code, why = damage
                return as_wrong(publication, code, f"{why}, and rows of this checkpoint are in it", MISSING_ADVICE)
        return None

    def _judge_without_entry(self, index: int) -> Finding | None:
        """Judge a publication whose log entry has expired, by the files that nobody has moved."""
        publication, handle = self.published[index], self.handles[index]
        lots, rows = self.tracker.lots.get(index, []), 0
        for lot in lots:
            rows += (lot.file.rows or 0) + lot.file.hidden
        if len(lots) == handle.files and rows == handle.rows and handle.publish == "delta-rs" and not handle.merge:
            return None
        why = f"the log of {self.uri} begins at version {self.history.first}, and "
        why += f"{len(lots):,} of {count(handle.files, 'file')} were where they were published by then"
        return as_unknown(publication, FindingCode.HISTORY_GONE, why)

    def _judge_named_rows(self, index: int) -> Finding | None:
        """Compare the number of rows that name its transaction; None: they were not counted, or cannot tell."""
        publication, handle = self.published[index], self.handles[index]
        rows = self.files.named_rows.get(handle.transaction.name)
        if rows is None or handle.merge:
            return None
        for lot in self.tracker.lots.get(index, ()):
            for step in lot.states[-1].steps:
                if step.kind is StepKind.OVERWRITTEN:
                    return None
                if step.kind is StepKind.CHANGED and not step.entry.operation.upper().startswith(COUNTING_OPERATIONS):
                    return None
        why = f"{count(rows, 'row')} in the table name {handle.transaction.name}, and {handle.rows:,} were published"
        if rows < handle.rows:
            return as_wrong(publication, FindingCode.ROWS_DELETED, why, ADVICE_ON_ROWS)
        if rows > handle.rows:
            return as_wrong(publication, FindingCode.ROWS_TWICE, why, ADVICE_ON_ROWS)
        return as_right(publication, FindingCode.RIGHT, why)

    def _find_present(self, index: int) -> set[str]:
        """Return the files in which rows of the publication are as they were published, or where they were moved."""
        present = set[str]()
        for lot in self.tracker.lots.get(index, ()):
            for state in lot.find_present(self.history.files.keys()):
                if not any(step.kind in (StepKind.CHANGED, StepKind.OVERWRITTEN) for step in state.steps):
                    present |= state.files
        return present

    # ---- the table

    def _judge_table(self, numbers: Mapping[tuple[str, int], int]) -> Iterator[Finding]:
        for step, epochs in self._doubts.values():
            names = ", ".join(map(str, sorted(epochs)[:MAX_NAMES]))
            why = f"{step.entry} has changed rows in files with rows of {count(len(epochs), 'epoch')}, such as {names}"
            if step.is_among_own:
                yield Finding(Judgement.WRONG, _find_code(step.entry.operation), why, advice=ADVICE_ON_ROWS)
            else:
                why += ", and rows of others"
                yield Finding(Judgement.UNKNOWN, FindingCode.ROWS_IN_DOUBT, why)
        last_decisions = self._find_last_decisions()
        yield from self._judge_commits(numbers, last_decisions)
        yield from self._judge_numbers(last_decisions)
        yield from self._judge_other_files(last_decisions)

    def _find_last_decisions(self) -> dict[str, int]:
        """Return by application the last decision that the table has to show."""
        last: dict[str, int] = {}
        for publication, handle in zip(self.published, self.handles, strict=True):
            is_here = handle.table_id == self.history.table_ids[-1]
            last.setdefault(handle.app_id, 0)
            if is_here and not publication.missing:
                last[handle.app_id] = max(last[handle.app_id], publication.decision)
        return last

    def _judge_commits(self, numbers: Mapping[tuple[str, int], int], last: Mapping[str, int]) -> Iterator[Finding]:
        """Find commits of this sink that nobody has recorded."""
        for entry in self.history.entries:
            for app_id, number in entry.txns.items():
                decision = txn_identifiers.decision_of(number)
                if app_id not in last or (app_id, number) in numbers:
                    continue
                if number == txn_identifiers.closing_version(decision):
                    continue  # given up
                yield as_unrecorded(f"{entry} of {self.uri} is of decision {decision}", decision > last[app_id])

    def _judge_numbers(self, last: Mapping[str, int]) -> Iterator[Finding]:
        """Compare the last transaction numbers with the last decisions."""
        for app_id, decision in last.items():
            number = self.history.txns.get(app_id)
            if number is None and errors.TRANSACTION_RETENTION in self.history.configuration:
                continue
            last_shown = txn_identifiers.decision_of(number or 0)
            if last_shown < decision:
                why = f"{self.uri} shows decision {last_shown} of {app_id} as the last, and {decision} was published"
                yield Finding(Judgement.WRONG, FindingCode.EVIDENCE_BEHIND, why, advice=MISSING_ADVICE)

    def _judge_other_files(self, last: Mapping[str, int]) -> Iterator[Finding]:
        """Find files of this sink that nobody has published, and copies of published files under another name."""
        lots_by_size: dict[tuple[int | None, int | None], list[str]] = defaultdict(list)
        for lots in self.tracker.lots.values():
            for lot in lots:
                lots_by_size[lot.file.size, lot.file.rows].append(lot.file.path)
        folders, paths_by_name = set[str](), dict[str, str]()
        for handle in self.handles:
            folders.add(handle.folder)
        for identity, file in self.history.files.items():
            name = self.files.normalize(file.path)
            if paths_by_name.setdefault(name, identity) != identity:
                why = f"{name} is in the table twice: as {paths_by_name[name]}, and as {identity}"
                yield Finding(Judgement.WRONG, FindingCode.ROWS_TWICE, why)
                continue
            if self.tracker.has_held(identity) or self._is_copy_of_others(name, folders):
                continue
            app_id = _find_owner(name)
            entry = self._find_adding_entry(identity)
            if app_id in last and not self._is_of_newer_decision(entry, last):
                why = f"{self.uri} has the file {name}, which no recorded publication has added"
                why += f"; {entry} did" if entry else ""
                yield Finding(Judgement.WRONG, FindingCode.FILE_UNPUBLISHED, why)
                continue
            for path in lots_by_size.get((file.size, file.rows), ()):
                if path != name and self.files.have_same_content(path, name):
                    why = f"{name} is a copy of {path}" + (f", added by {entry}" if entry else "")
                    yield Finding(Judgement.WRONG, FindingCode.ROWS_TWICE, why)
                    break

    @staticmethod
    def _is_copy_of_others(path: str, folders: Collection[str]) -> bool:
        """Return whether a recorded publication has copied rows of others, which it has left in the table."""
        return txn_identifiers.is_kept_copy(path) and path.partition("/")[0] in folders

    def _find_adding_entry(self, identity: str) -> LogEntry | None:
        return self.tracker.entries_by_file.get(identity)

    def _is_of_newer_decision(self, entry: LogEntry | None, last: Mapping[str, int]) -> bool:
        """Return whether the entry is a publication that is not recorded yet, or one that only moves rows."""
        if entry is None:
            return False
        for app_id, number in entry.txns.items():
            if app_id in last and txn_identifiers.decision_of(number) > last[app_id]:
                return True
        return False


def verify(sink: str, uri: str, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
    """Compare the table with what was published to it, see `VerifiableTarget`.

    Raises:
        OutcomeUnknown: the storage does not answer.
    """
    valid, handles, damaged = parse_handles(published, lambda handle: DeltaHandle.parse(sink, handle))
    yield from damaged
    try:
        history = read_history(uri, lambda done: depth.show_progress(done, 0))
    except BrokenLog as error:
        why = f"{uri} cannot be read: {error}"
        yield Finding(Judgement.WRONG, FindingCode.TARGET_UNREADABLE, why, advice=MISSING_ADVICE)
        for publication in valid:
            yield as_unknown(publication, FindingCode.HISTORY_GONE, "the table's log is not whole")
        return
    if history is None or not history.table_ids:
        for publication in valid:
            yield _judge_without_table(uri, publication)
        return
    yield from DeltaVerification(uri, valid, handles, history, depth).run()


def _judge_without_table(uri: str, publication: Published) -> Finding:
    if publication.missing:
        return as_accepted_loss(publication)
    target = publication.publication.proof.get("target", evidence.normalize_place(uri))
    if target != evidence.normalize_place(uri):
        why = f"it was published to {target}, and the sink's table is {uri} now"
        return as_unknown(publication, FindingCode.ELSEWHERE, why)
    return as_wrong(publication, FindingCode.TARGET_MISSING, f"there is no table at {uri}", MISSING_ADVICE)


def _find_code(operation: str) -> FindingCode:
    for beginning, code in CODES_BY_OPERATION:
        if operation.upper().startswith(beginning):
            return code
    return FindingCode.ROWS_REMOVED


def _find_owner(path: str) -> str | None:
    """Return the application id of the transaction in whose staged folder a file is; None: it is in none."""
    folder = path.partition("/")[0]
    if not folder.startswith(txn_identifiers.STAGED_PREFIX):
        return None
    txn = Transaction.parse(folder.removeprefix(txn_identifiers.STAGED_PREFIX))
    return txn.app_id if txn else None


def _name_files(identities: Sequence[str]) -> str:
    names = ", ".join(sorted(identities)[:MAX_NAMES])
    return names if len(identities) <= MAX_NAMES else f"{names}, …"

"""Compares a table with all that a sink has published to it: by the branch's history, its manifests and its files.

Files are known by the folder of their transaction. Where one is gone from the branch, the snapshot that removed it
tells whether a rewrite has moved its rows, or somebody has deleted or changed them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from onceonly.counts import count
from onceonly.sinks import Depth, Finding, FindingCode, Judgement, Published, Transaction
from onceonly.sinks.toolkit import (
    MISSING_ADVICE,
    as_accepted_loss,
    as_right,
    as_unknown,
    as_unrecorded,
    as_wrong,
    find_last_decision,
)
from onceonly_iceberg import evidence, references
from onceonly_iceberg.evidence import APP_ID_KEY, DECISION_KEY, TXN_KEY
from onceonly_iceberg.file_store import FileStore

ADVICE_ON_ROWS = "If that was intended, nothing. Else roll the branch back, or write the rows again: onceonly repair …"
PATH_COLUMN = "file_path"  # of position deletes


def verify(
    sink: str, place: str, table: Table | None, published: Sequence[Published], depth: Depth
) -> Iterator[Finding]:
    """Judge every publication, and what else the table shows of this sink."""
    if table is None:
        for publication in published:
            yield _judge_without_table(place, publication)
        return
    yield from TableVerification(place, table, published, depth).run()


def _judge_without_table(place: str, publication: Published) -> Finding:
    if publication.missing:
        return as_accepted_loss(publication)
    if _is_elsewhere(place, publication):
        return _elsewhere(place, publication)
    return as_wrong(publication, FindingCode.TARGET_MISSING, f"there is no table {place}", MISSING_ADVICE)


def _is_elsewhere(place: str, publication: Published) -> bool:
    return bool(publication.publication.proof.get("target", place) != place)


def _elsewhere(place: str, publication: Published) -> Finding:
    target = publication.publication.proof["target"]
    why = f"it was published to {target}, and the sink's table is {place} now"
    return as_unknown(publication, FindingCode.ELSEWHERE, why, f"Look into {target} for its rows.")


@dataclass
class BranchFiles:
    """What the head of a branch refers to.

    Args:
        by_txn: the files below the folder of each transaction, by path.
        twice: paths that it refers to more than once.
        deletes: files of deletes, with their sequence numbers.
    """

    by_txn: dict[str, dict[str, DataFile]] = field(default_factory=lambda: defaultdict(dict))
    twice: set[str] = field(default_factory=set)
    deletes: list[tuple[int, DataFile]] = field(default_factory=list)


def read_branch(table: Table, store: FileStore, branch: str) -> BranchFiles:
    files, head = BranchFiles(), evidence.find_head(table.metadata, branch)
    if head is None:
        return files
    for _, entry in references.list_entries(table, head):
        file = entry.data_file
        if file.content != DataFileContent.DATA:
            files.deletes.append((entry.sequence_number or 0, file))
            continue
        txn = _find_txn(store, file.file_path)
        if txn is None:
            continue
        if file.file_path in files.by_txn[txn]:
            files.twice.add(file.file_path)
        files.by_txn[txn][file.file_path] = file
    return files


def _find_txn(store: FileStore, path: str) -> str | None:
    """Return the name of the transaction in whose folder a file is."""
    if not path.startswith(f"{store.root}/"):
        return None
    name = path[len(store.root) + 1 :].partition("/")[0]
    return name if Transaction.parse(name) else None


class TableVerification:
    """One comparison."""

    def __init__(self, place: str, table: Table, published: Sequence[Published], depth: Depth) -> None:
        self.place, self.table, self.published, self.depth = place, table, published, depth
        self.metadata, self.store = table.metadata, FileStore(table)
        self.branch = published[-1].handle["branch"] if published else ""
        self.files = read_branch(table, self.store, self.branch)
        self.lineage = list(evidence.walk_ancestors(table.metadata, self.branch))
        self.lineage_ids = {snapshot.snapshot_id for snapshot in self.lineage}
        self.position_deletes = self._count_position_deletes()

    def run(self) -> Iterator[Finding]:
        for done, publication in enumerate(self.published, 1):
            yield from self._judge(publication)
            self.depth.show_progress(done, len(self.published))
        yield from self._judge_table()

    # ---- one publication

    def _judge(self, publication: Published) -> Iterator[Finding]:
        if publication.missing:
            yield self._judge_missing(publication)
        elif _is_elsewhere(self.place, publication):
            yield _elsewhere(self.place, publication)
        elif str(self.metadata.table_uuid) != publication.handle["table_uuid"]:
            why = f"it was published to the table with the id {publication.handle['table_uuid']}, and {self.place} has "
            why += f"the id {self.metadata.table_uuid}"
            yield as_wrong(publication, FindingCode.TARGET_REPLACED, why, MISSING_ADVICE)
        else:
            yield self._judge_snapshot(publication) or self._judge_rows(publication)

    def _judge_missing(self, publication: Published) -> Finding:
        if publication.handle["files"] and self.files.by_txn.get(publication.handle["txn"]):
            why = f"it is recorded as lost, and {self.place} has files of it"
            return as_wrong(publication, FindingCode.LOSS_IS_BACK, why, MISSING_ADVICE)
        return as_accepted_loss(publication)

    def _judge_snapshot(self, publication: Published) -> Finding | None:
        """Compare the snapshot that published it with what is recorded; None: it is right, or has expired."""
        handle, proof = publication.handle, publication.publication.proof
        if not proof:
            return None
        is_there = proof["snapshot"] in self.lineage_ids or evidence.is_ancestor(
            self.metadata, self.branch, proof["snapshot"], proof["sequence"]
        )
        if is_there is False:
            why = f"branch '{self.branch}' lacks snapshot {proof['snapshot']}, which published it"
            return as_wrong(publication, FindingCode.TARGET_WENT_BACK, why, MISSING_ADVICE)
        snapshot = self.metadata.snapshot_by_id(proof["snapshot"])
        if snapshot is None or snapshot.summary is None:
            return None
        summary = snapshot.summary.additional_properties
        shown = (summary.get(APP_ID_KEY), summary.get(DECISION_KEY), summary.get(TXN_KEY))
        if shown != (handle["app_id"], str(publication.decision), handle["txn"]):
            why = f"snapshot {proof['snapshot']} does not say that it published it"
            return as_wrong(publication, FindingCode.COMMIT_CHANGED, why, MISSING_ADVICE)
        rows = int(summary.get("added-records") or 0)
        if rows != handle["rows"]:
            why = f"snapshot {proof['snapshot']} added {count(rows, 'row')}, and {handle['rows']:,} are recorded"
            return as_wrong(publication, FindingCode.ROW_COUNT, why)
        return None

    def _judge_rows(self, publication: Published) -> Finding:
        handle = publication.handle
        files = self.files.by_txn.get(handle["txn"], {})
        twice = sorted(self.files.twice & files.keys())
        if twice:
            why = f"the branch refers to {twice[0]} more than once"
            return as_wrong(publication, FindingCode.ROWS_TWICE, why)
        if len(files) < handle["files"]:
            return self._judge_removed(publication, len(files))
        rows = sum(file.record_count for file in files.values())
        if len(files) != handle["files"] or rows != handle["rows"]:
            why = (
                f"the branch has {count(len(files), 'file')} with {count(rows, 'row')} of it, and {handle['files']:,} "
            )
            why += f"with {handle['rows']:,} are recorded"
            return as_wrong(publication, FindingCode.RECORD_DIFFERS, why)
        return self._judge_deletes(publication, files) or self._judge_files(publication, files)

    def _judge_files(self, publication: Published, files: Mapping[str, DataFile]) -> Finding:
        """Look at the files themselves."""
        for uri, file in files.items():
            path = uri[len(self.store.root) + 1 :]
            size = self._sizes.get(path)
            if size is None:
                return as_wrong(publication, FindingCode.FILE_MISSING, f"{uri} is not there", MISSING_ADVICE)
            if size != file.file_size_in_bytes:
                why = f"{uri} has {size:,} bytes, and {file.file_size_in_bytes:,} were published"
                return as_wrong(publication, FindingCode.FILE_SIZE, why, MISSING_ADVICE)
            if self.depth.reads_rows:
                finding = self._read_file(publication, path, file)
                if finding:
                    return finding
        why = f"{count(publication.handle['rows'], 'row')} in {count(len(files), 'file')}"
        return as_right(publication, FindingCode.RIGHT, why)

    def _read_file(self, publication: Published, path: str, file: DataFile) -> Finding | None:
        try:
            rows = sum(batch.num_rows for batch in self.store.open_parquet(path).iter_batches())
        except (OSError, ValueError) as error:
            why = f"{self.store.uri(path)} cannot be read: {error}"
            return as_wrong(publication, FindingCode.FILE_UNREADABLE, why, MISSING_ADVICE)
        if rows != file.record_count:
            why = f"{self.store.uri(path)} has {count(rows, 'row')}, and {file.record_count:,} were published"
            return as_wrong(publication, FindingCode.FILE_CHANGED, why, MISSING_ADVICE)
        return None

    # ---- what others did

    def _judge_deletes(self, publication: Published, files: Mapping[str, DataFile]) -> Finding | None:
        """Judge files of deletes, by which other writers take rows out without a new file."""
        deleted = sum(self.position_deletes.get(path, 0) for path in files)
        if deleted:
            why = f"somebody has deleted {count(deleted, 'row')} of it (position deletes)"
            return as_wrong(publication, FindingCode.ROWS_DELETED, why, ADVICE_ON_ROWS)
        sequence = publication.publication.proof.get("sequence", 0)
        for number, file in self.files.deletes:
            if file.content == DataFileContent.EQUALITY_DELETES and number > sequence:
                why = f"{file.file_path} deletes rows by their values: it cannot be seen whose they were"
                return as_unknown(publication, FindingCode.ROWS_IN_DOUBT, why, ADVICE_ON_ROWS)
        return None

    def _count_position_deletes(self) -> Counter[str]:
        """Count the rows that position deletes take out of each file."""
        deletes: Counter[str] = Counter()
        for _, file in self.files.deletes:
            if file.content == DataFileContent.POSITION_DELETES:
                with self.table.io.new_input(file.file_path).open() as source:
                    deletes.update(pq.read_table(source, columns=[PATH_COLUMN])[PATH_COLUMN].to_pylist())
        return deletes

    def _judge_removed(self, publication: Published, left: int) -> Finding:
        """Judge a publication of which the branch no longer has all files."""
        handle = publication.handle
        remover = self._removers.get(handle["txn"])
        gone = f"{handle['files'] - left:,} of {count(handle['files'], 'file')}"
        if remover is None:
            if evidence.has_whole_history(self.metadata, self.branch):
                why = f"the branch has no longer {gone}, and no snapshot says why"
                return as_wrong(publication, FindingCode.ROWS_REMOVED, why, ADVICE_ON_ROWS)
            why = f"the branch has no longer {gone}, and the snapshot that removed them has expired"
            return as_unknown(publication, FindingCode.HISTORY_GONE, why)
        summary = remover.summary
        operation = summary.operation.value if summary else ""
        numbers = summary.additional_properties if summary else {}
        added, removed = int(numbers.get("added-records") or 0), int(numbers.get("deleted-records") or 0)
        said = f"snapshot {remover.snapshot_id} ({operation}) has removed {gone}"
        if operation != "replace":
            code = FindingCode.ROWS_DELETED if added < removed else FindingCode.ROWS_CHANGED
            return as_wrong(publication, code, f"{said}, and added {added:,} rows for {removed:,}", ADVICE_ON_ROWS)
        if added != removed:
            why = f"{said}, and has {added - removed:+,} rows"
            return as_wrong(publication, FindingCode.ROWS_LOST_IN_REWRITE, why, ADVICE_ON_ROWS)
        if self._find_changes_after(remover):
            why = f"{said} by a rewrite, and rows were deleted or changed since: it cannot be seen whose they were"
            return as_unknown(publication, FindingCode.ROWS_IN_DOUBT, why)
        return as_right(publication, FindingCode.RIGHT, f"{said} by a rewrite, which has kept all rows")

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """The size of each file below the table's data, by path: listed once, for all publications."""
        return dict(self.store.list_parquet_files())

    @cached_property
    def _removers(self) -> dict[str, Snapshot]:
        """By transaction, the newest snapshot that removed files of it."""
        removers: dict[str, Snapshot] = {}
        for snapshot in self.lineage:
            for manifest in snapshot.manifests(self.table.io):
                if manifest.added_snapshot_id != snapshot.snapshot_id or not manifest.deleted_files_count:
                    continue
                for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=False):
                    txn = _find_txn(self.store, entry.data_file.file_path)
                    if entry.status == ManifestEntryStatus.DELETED and txn is not None:
                        removers.setdefault(txn, snapshot)
        return removers

    def _find_changes_after(self, rewrite: Snapshot) -> bool:
        for snapshot in self.lineage:
            if snapshot.snapshot_id == rewrite.snapshot_id:
                return bool(self.files.deletes)
            if snapshot.summary and snapshot.summary.operation.value in ("delete", "overwrite"):
                return True
        return False

    # ---- the table

    def _judge_table(self) -> Iterator[Finding]:
        if not self.published:
            return
        last = find_last_decision(self.published)
        recorded = {publication.handle["txn"] for publication in self.published}
        app_ids = {publication.handle["app_id"] for publication in self.published}
        yield from self._judge_evidence(last, recorded)
        shown: set[str] = set()
        for snapshot in self.lineage:
            numbers = snapshot.summary.additional_properties if snapshot.summary else {}
            txn, app_id = numbers.get(TXN_KEY), numbers.get(APP_ID_KEY)
            if not txn or app_id not in app_ids:
                continue
            shown.add(txn)
            decision = int(numbers.get(DECISION_KEY) or 0)
            if txn not in recorded:
                what = f"snapshot {snapshot.snapshot_id} is of decision {decision}"
                yield as_unrecorded(what, decision > last)
        yield from self._judge_other_files(recorded | shown)

    def _judge_evidence(self, last: int, recorded: set[str]) -> Iterator[Finding]:
        publication = self.published[-1]
        if str(self.metadata.table_uuid) != publication.handle["table_uuid"]:
            return
        name = evidence.property_name(publication.handle["app_id"])
        try:
            shown = evidence.read(self.table.properties, publication.handle["app_id"]).last
        except (KeyError, TypeError, ValueError) as error:
            why = f"property {name} cannot be read: {error}"
            yield Finding(Judgement.WRONG, FindingCode.TARGET_UNREADABLE, why)
            return
        if shown.decision < last:
            why = f"property {name} shows decision {shown.decision}, and decision {last} was published"
            yield Finding(Judgement.WRONG, FindingCode.EVIDENCE_BEHIND, why, advice=MISSING_ADVICE)

    def _judge_other_files(self, expected: set[str]) -> Iterator[Finding]:
        """Find files of this sink that nobody has published."""
        prefixes, newest = set[str](), 0
        for publication in self.published:
            txn = Transaction.parse(publication.handle["txn"])
            if txn:
                prefixes.add(txn.prefix)
            newest = max(newest, publication.epoch)
        for name in sorted(self.files.by_txn.keys() - expected):
            txn = Transaction.parse(name)
            if txn is None or txn.prefix not in prefixes or not self.files.by_txn[name]:
                continue
            why = f"the branch has files of {name}, and nobody has published it"
            if txn.epoch > newest:
                yield Finding(Judgement.UNKNOWN, FindingCode.NOT_RECORDED_YET, why)
            else:
                yield Finding(Judgement.WRONG, FindingCode.FILE_UNPUBLISHED, why)

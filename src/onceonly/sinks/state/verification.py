"""Compares the folder of a state with all that a sink has published to it: the mark and the run of each transaction.

A run that later ones have merged is deleted in time, by a checkpoint that names it. So what has to be there follows
from the handles alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.transaction_names import list_transactions
from onceonly.checkpoint.verification import Depth, Finding, Published
from onceonly.counts import count
from onceonly.sinks.staging import history
from onceonly.sinks.staging.verification import (
    MISSING_ADVICE,
    as_accepted_loss,
    as_right,
    as_unknown,
    as_unrecorded,
    as_wrong,
    find_last_decision,
    judge_all,
    parse_handles,
)
from onceonly.sinks.state import handle as staterun
from onceonly.sinks.state.handle import StateHandle
from onceonly.sinks.state.runs import DONE, Run, describe_files, list_published
from onceonly.storage.folders import Folders, arrow_file_system, read_digest

MAX_RUN_ROWS = 1 << 16  # in memory


def verify(sink: str, folders: Folders, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
    """Compare the folder with what was published to it, see `VerifiableTarget`.

    Raises:
        OutcomeUnknown: the storage does not answer.
    """
    valid, handles, damaged = parse_handles(published, lambda handle: staterun.parse(sink, handle))
    yield from damaged
    with history.require_answer(sink, folders.uri):
        yield from StateVerification(folders, valid, handles, depth).run()


@dataclass
class StateVerification:
    """One comparison.

    Args:
        published: with valid handles, in the order of decisions.
    """

    folders: Folders
    published: Sequence[Published]
    handles: Sequence[StateHandle]
    depth: Depth

    def __post_init__(self) -> None:
        self._recorded, self._prefixes = set[str](), set[str]()  # names and prefixes of transactions
        self._deleted_by: dict[str, int] = {}  # transaction -> the epoch that has deleted its folder
        for publication, handle in zip(self.published, self.handles, strict=True):
            if handle.txn:
                self._recorded.add(handle.txn.name)
                self._prefixes.add(handle.txn.prefix)
            for txn in handle.to_delete:
                self._deleted_by[txn.name] = publication.epoch
        self._names = frozenset(self.folders.list_names()) if self.folders.exists() else None

    def run(self) -> Iterator[Finding]:
        yield from judge_all(self.published, self.handles, self._judge, self.depth)
        if self._names is not None:
            yield from self._judge_newest()
            yield from self._judge_folder()

    def _judge(self, publication: Published, handle: StateHandle) -> Iterator[Finding]:
        if publication.missing:
            yield as_accepted_loss(publication)
            return
        if self._names is None:
            why = f"{self.folders.uri} does not exist"
            yield as_wrong(publication, FindingCode.TARGET_MISSING, why, MISSING_ADVICE)
            return
        if handle.txn is None:
            why = f"a rewind to a state of {count(len(handle.runs), 'run')}"
            yield as_right(publication, FindingCode.RIGHT, why)
            return
        name = handle.txn.name
        if name in self._deleted_by or publication.taken_out_by is not None:
            yield self._judge_deleted(publication, name)
            return
        findings = list(self._judge_mark(publication, name))
        for run in handle.runs:
            if run["folder"].startswith(f"{name}/"):
                findings += self._judge_run(publication, run)
        why = f"{count(handle.rows, 'changed key')}: its run is as it was written, and marked as published"
        yield from findings or [as_right(publication, FindingCode.RIGHT, why)]

    def _judge_deleted(self, publication: Published, name: str) -> Finding:
        epoch = self._deleted_by.get(name, publication.taken_out_by)
        if publication.taken_out_by is not None and self.folders.has(f"{name}/{DONE}"):
            why = f"epoch {publication.taken_out_by} has taken it out, and {self.folders.path(name)} is there"
            return as_wrong(publication, FindingCode.NOT_TAKEN_OUT, why)
        return as_right(publication, FindingCode.TAKEN_OUT, f"epoch {epoch} continues from a state without its run")

    def _judge_mark(self, publication: Published, name: str) -> Iterator[Finding]:
        if self._names is not None and name not in self._names:
            target = publication.publication.proof.get("target", self.folders.uri)
            if str(target).rstrip("/") != self.folders.uri.rstrip("/") and not self._names:
                why = f"it was published to {target}, and the sink's folder is {self.folders.uri} now"
                yield as_unknown(publication, FindingCode.ELSEWHERE, why)
                return
            why = f"{self.folders.path(name)} is not there"
            yield as_wrong(publication, FindingCode.FILE_MISSING, why, MISSING_ADVICE)
            return
        if not self.folders.has(f"{name}/{DONE}"):
            why = f"{self.folders.path(name)} has no mark that it was published"
            yield as_wrong(publication, FindingCode.COMMIT_MISSING, why, MISSING_ADVICE)
            return
        text = self.folders.read_text(f"{name}/{DONE}")
        if text and f'"decision": {publication.decision}}}' not in text:
            why = f"the mark in {self.folders.path(name)} is not that of decision {publication.decision}"
            yield as_wrong(publication, FindingCode.COMMIT_CHANGED, why, MISSING_ADVICE)

    def _judge_run(self, publication: Published, run: Run) -> Iterator[Finding]:
        """Compare a run with what was written: names and sizes of its files, and its rows where that is asked for."""
        path = self.folders.path(run["folder"])
        listing = describe_files(self.folders, run["folder"])
        if listing["files"] < run["files"]:
            why = f"{path} has {listing['files']:,} of {count(run['files'], 'file')}"
            yield as_wrong(publication, FindingCode.FILE_MISSING, why, MISSING_ADVICE)
        elif listing["listing"] != run["listing"]:
            why = f"the files in {path} have other names or sizes than were written"
            yield as_wrong(publication, FindingCode.FILE_CHANGED, why, MISSING_ADVICE)
        elif self.depth.reads_rows:
            yield from self._judge_rows(publication, run, path)

    def _judge_rows(self, publication: Published, run: Run, path: str) -> Iterator[Finding]:
        """Read all rows of a run. What it cannot parse, pyarrow calls an OSError, too."""
        files, root = arrow_file_system(path)
        rows, place = 0, root
        try:
            for name in sorted(self.folders.list_files(run["folder"])):
                place = f"{root}/{name}"
                with files.open_input_file(place) as source:
                    for batch in pq.ParquetFile(source).iter_batches(MAX_RUN_ROWS, use_threads=False):
                        rows += batch.num_rows
        except (pa.ArrowException, ValueError, OSError) as error:
            read_digest(files, place)  # an OSError of this is no answer of the storage, and no fault of the file
            why = f"{path} cannot be read ({type(error).__name__})"
            yield as_wrong(publication, FindingCode.FILE_UNREADABLE, why, MISSING_ADVICE)
            return
        if rows != run["rows"]:
            why = f"{path} has {count(rows, 'row')}, and {run['rows']:,} were written"
            yield as_wrong(publication, FindingCode.ROW_COUNT, why, MISSING_ADVICE)

    def _judge_newest(self) -> Iterator[Finding]:
        """Look at all runs of the state that counts, of which no recorded publication is the owner."""
        newest = self._find_newest()
        if newest is None:
            return
        publication, handle = newest
        for run in handle.runs:
            if run["folder"].split("/")[0] not in self._recorded:
                yield from self._judge_run(publication, run)

    def _find_newest(self) -> tuple[Published, StateHandle] | None:
        for publication, handle in reversed(list(zip(self.published, self.handles, strict=True))):
            if publication.taken_out_by is None and not publication.missing:
                return publication, handle
        return None

    def _judge_folder(self) -> Iterator[Finding]:
        """Find transactions that are marked as published, and of which no publication is recorded."""
        last = find_last_decision(self.published)
        for prefix in sorted(self._prefixes):
            txns = list_transactions(self._names or (), prefix)
            unrecorded = []
            for txn in txns:
                if txn.name not in self._recorded and txn.name not in self._deleted_by:
                    unrecorded.append(txn)
            for decision, txn in list_published(self.folders, unrecorded):
                yield as_unrecorded(
                    f"the mark in {self.folders.path(txn.name)} is of decision {decision}", decision > last
                )

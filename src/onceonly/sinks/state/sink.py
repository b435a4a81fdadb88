"""Application state: rows by key, stored as runs of changes.

Each checkpoint adds a run: a folder of Parquet files with the rows that it changed. Its handle lists the runs that make
up the state, oldest first. So the state table determines the state after a checkpoint, and commit moves nothing. If
there are many runs, the small ones are merged with the new one. So the amount written is proportional to the number of
changed keys (times the logarithm of the number of keys). The first run has no deleted rows; in the others, `_deleted`
marks deleted keys. A key that was deleted may so stay in the first run for as long as that is large: `forget` has all
runs merged into one. Source: O'Neil et al., The Log-Structured Merge-Tree (1996).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    Changes,
    DecisionTraces,
    History,
    Publication,
    Receipts,
    ReplaceableRows,
    Sink,
    StateBackend,
    TargetHistory,
    Trace,
    no_retraction_error,
)
from onceonly.checkpoint.transaction_names import list_transactions, parse_transaction
from onceonly.checkpoint.verification import Depth, Finding, Published, VerifiableTarget
from onceonly.documentation import name_page
from onceonly.errors import CannotPublish, Fenced, InvalidPipeline, OutcomeUnknown, StateBehind
from onceonly.pipeline.sinks import StateSink
from onceonly.sinks.context import Context
from onceonly.sinks.staging import handles, history
from onceonly.sinks.staging.handles import refuse_before_decision
from onceonly.sinks.state import handle as staterun
from onceonly.sinks.state import rehearsal, verification
from onceonly.sinks.state.handle import StateHandle
from onceonly.sinks.state.runs import (
    DONE,
    RunFiles,
    compare_runs,
    count_to_merge,
    find_changed_runs,
    find_last_published,
    list_published,
    make_proof,
)
from onceonly.storage.folders import Folders
from onceonly.storage.interface import MAX_PARALLEL_REQUESTS
from onceonly.windows.state import NOTE_KEY

RECOVER = "Then: onceonly recover PIPELINE."
KEPT_CHECKPOINTS = 100  # for which a merged run is kept, because readers of an older state may need it
FORGET_MARK = "_forget"  # marks a run: the next checkpoint merges all runs, and earlier ones are deleted with it
FORGET_TEXT = "The next checkpoint removes what the state was before it.\n"
GIVEN_UP_MARK = "_given_up"  # marks the folder of a transaction that was given up
_HANDLE_CONSTANTS = {"kind": "state", "unit": "changed key", "target": "the pipeline's state"}  # for people
MAX_TRANSACTIONS_READ = 8  # published ones that are read for a trace


class StateWriter(Sink, StateBackend, DecisionTraces, TargetHistory, ReplaceableRows, VerifiableTarget):
    """Writes the state of a `StateSink`.

    Args:
        uri: its folder's absolute path or URI.
    """

    handle_shape = handles.State

    def __init__(self, config: StateSink, uri: str) -> None:
        self.name, self.config, self._folders = config.name, config, Folders(uri)
        self._run_files = RunFiles(config, self._folders)

    @classmethod
    def make(cls, config: StateSink, context: Context) -> StateWriter:
        return cls(config, context.locate(config.path or f"appstate/{context.pipeline.name}/{config.name}"))

    def check(self) -> list[str]:
        return [f"{self.name}: keeps {self.config.schema} by {', '.join(self.config.key)} in {self._folders.uri}"]

    def list_written_folders(self) -> list[str]:
        return [self._folders.uri]

    def read(self, spark: Any, before: Handle | None) -> Any:
        """Return the state after the handle `before`, as a DataFrame of the schema; empty for None."""
        self._check_same_shape(before)
        runs = self._runs(before)
        state = self._run_files.merge(spark, runs).where("NOT _deleted").drop("_deleted", "_epoch")
        for name, metadata in _metadata(before).items():
            state = state.withMetadata(name, metadata)
        return state

    def find_missing(self, before: Handle) -> str:
        with history.require_answer(self.name, self._folders.uri):
            changed = find_changed_runs(self._folders, self._runs(before))
        if not changed:
            return ""
        path = self._folders.path(changed[0]["folder"])
        why = f"after a merge, runs are kept for {KEPT_CHECKPOINTS} checkpoints, or until they are forgotten"
        return f"{path} is missing, or has other files than were written ({why})"

    def forget(self, after: Handle) -> None:
        """Mark the newest run. The mark goes with the run, when all that it asks for is done."""
        runs = self._runs(after)
        if not runs:
            return
        with history.require_answer(self.name, self._folders.uri):
            self._folders.create_mark(f"{_owner_of(runs[-1])}/{FORGET_MARK}", FORGET_TEXT)

    def _is_to_be_forgotten(self, before: Handle | None) -> bool:
        """Return whether a run of the state is marked, or one that the last checkpoint has merged.

        That checkpoint may have been staged while the mark was written.
        """
        runs, retired = self._runs(before), self._runs(before, "retired")
        last_merge = max((run["since"] for run in retired), default=0)
        runs += [run for run in retired if run["since"] == last_merge]
        marks = [f"{_owner_of(run)}/{FORGET_MARK}" for run in runs]
        with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
            return any(pool.map(self._folders.has, marks))

    def stage(self, txn: Transaction, rows: Changes) -> Handle:
        """Write the changes as a new run, merged with the newest runs if there are many. The handle lists all runs."""
        changes, before = self._run_files.conform(rows.rows, txn.epoch), rows.before
        runs = self._runs(before)
        new_run = self._run_files.write(changes, f"{txn.name}/changes")
        self._run_files.check_keys(changes.sparkSession, new_run)
        changed_keys = new_run["rows"]
        forgets = self._is_to_be_forgotten(before)
        older = 0 if forgets else len(runs) - count_to_merge(runs, changed_keys)
        unmerged, merged = runs[:older], runs[older:]
        if merged:
            rows_of_merged = self._run_files.merge(changes.sparkSession, [*merged, new_run])
            if not unmerged:  # the first run has no deleted rows
                rows_of_merged = rows_of_merged.where("NOT _deleted")
            new_run = self._run_files.write(rows_of_merged, f"{txn.name}/merged")
            self._folders.delete(f"{txn.name}/changes")  # included in `merged`
        retired, forget = self._retire(before, merged, txn.epoch, 0 if forgets else KEPT_CHECKPOINTS)
        handle: dict[str, Any] = {
            **_HANDLE_CONSTANTS,
            "txn": txn.name,
            "schema": self.config.schema,
            "key": list(self.config.key),
            "metadata": _metadata(before) | _lasting_metadata(changes),
            "runs": [*unmerged, new_run],
            "retired": retired,
            "forget": forget,
            "rows": changed_keys,
        }
        notes = [field.metadata[NOTE_KEY] for field in changes.schema if NOTE_KEY in field.metadata]
        if notes:
            handle["note"] = "; ".join(notes)
        return handle

    def _retire(
        self, before: Handle | None, merged: Sequence[Mapping[str, Any]], epoch: int, kept_checkpoints: int
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the merged runs to keep for a while, with the epoch since which, and the folders to delete."""
        runs = self._runs(before, "retired")
        for run in merged:
            runs.append({**run, "since": epoch})
        retired, forget = [], []
        for run in runs:
            if run["since"] > epoch - kept_checkpoints:
                retired.append(run)
            else:
                forget.append(run["folder"])
        return retired, forget

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        """Look at every run that makes up the state, and try a mark. Raises as `commit` and `rehearsal.rehearse`."""
        state_handle = staterun.parse(self.name, handle)
        txn = state_handle.txn
        if txn is None:  # a rewind begins with the decision
            return handle
        with rehearsal.explain_errors(self._folders, self.name, txn.pipeline):
            if self._is_marked(txn, DONE):
                return handle
            self._refuse_given_up(txn)
            self._refuse_behind(txn)
            history.require(self, last)
        rehearsal.rehearse(self._folders, txn, state_handle)
        return handle

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        """Mark the folder as published. Only the record in the state table publishes; the mark protects from cleanup.

        Raises:
            Fenced: the transaction was given up.
            StateBehind: another transaction has published this epoch.
            TargetWentBack: the folder lacks the last published run.
            CannotPublish: the staged state no longer exists, or the handle is damaged.
        """
        state_handle = staterun.parse(self.name, handle)
        txn = state_handle.txn
        if txn is None:
            return self._rewind(state_handle, last)
        already = self._publish(txn, state_handle, decision, last)
        self._delete_folders(state_handle.to_delete)
        proof = make_proof(self._folders, state_handle.runs, txn.prefix)
        return Outcome(already, {"rows": state_handle.rows}, proof)

    def _rewind(self, handle: StateHandle, last: Publication | None) -> Outcome:
        """Publish a rewind, for which nothing was staged.

        Its first try may have deleted the last published run already.
        """
        if last and not self._is_of_any(last.proof.get("run"), handle.to_delete):
            history.require(self, last)
        self._require_runs(handle)
        if last and not self._folders.exists():
            raise self._run_missing(self._folders.uri, f"Mount or restore it. {RECOVER}")
        self._delete_folders(handle.to_delete)
        owners = [staterun.transaction(self.name, _owner_of(run)) for run in handle.runs]
        owners += handle.to_delete
        proof = make_proof(self._folders, handle.runs, owners[0].prefix) if owners else {}
        return Outcome(detail={"rows": 0}, proof=proof)

    @staticmethod
    def _is_of_any(run: Mapping[str, Any] | None, transactions: Sequence[Transaction]) -> bool:
        """Return whether the run is that of one of these transactions."""
        if not run:
            return False
        return any(_owner_of(run) == txn.name for txn in transactions)

    def _require_runs(self, handle: StateHandle) -> None:
        """Raise CannotPublish unless all runs of the state are as they were written."""
        changed = find_changed_runs(self._folders, handle.runs)
        if changed:
            raise self._run_missing(self._folders.path(changed[0]["folder"]), f"Restore it. {RECOVER}")

    def _run_missing(self, path: str, todo: str) -> CannotPublish:
        what = f"sink '{self.name}': a part of the state no longer exists."
        return CannotPublish(what, f"{path} is missing, or was changed.", todo, "state-run-missing")

    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        return verification.verify(self.name, self._folders, published, depth)

    def compare(self, last: Publication) -> History:
        with history.require_answer(self.name, self._folders.uri):
            return compare_runs(self._folders, last)

    def find_current_publication(self, last: Publication) -> Publication | None:
        with history.require_answer(self.name, self._folders.uri):
            return find_last_published(self._folders, last)

    def _publish(self, txn: Transaction, handle: StateHandle, decision: int, last: Publication | None) -> bool:
        """Mark the folder of the transaction as published. Returns whether it was already."""
        if self._is_marked(txn, DONE):
            return True
        history.require(self, last)
        if not self._folders.has(txn.name):
            raise CannotPublish(
                f"sink '{self.name}': the staged state no longer exists.",
                f"{self._folders.path(txn.name)} is missing.",
                f"Restore it. {RECOVER} With onceonly resolve {txn.pipeline} {txn.epoch} --give-up {self.name} "
                "--reason …, the pipeline would continue without state.",
                "staged-files-missing",
            )
        self._refuse_given_up(txn)
        self._refuse_behind(txn)
        self._require_runs(handle)
        return not self._folders.create_mark(f"{txn.name}/{DONE}", json.dumps({"decision": decision}))

    def _refuse_given_up(self, txn: Transaction) -> None:
        if self._is_marked(txn, GIVEN_UP_MARK):
            raise Fenced(
                f"sink '{self.name}': the state of epoch {txn.epoch} was given up.",
                f"A person gave it up, as {self._folders.path(txn.name)}/{GIVEN_UP_MARK} shows.",
                f"If the state table still waits for it: onceonly resolve {txn.pipeline} {txn.epoch} "
                f"--give-up {self.name} --reason …",
                code="sink-given-up",
            )

    def _refuse_behind(self, txn: Transaction) -> None:
        """Raise StateBehind if another transaction of the same epoch is published.

        It shows that the state table assigns numbers a second time.
        """
        for other in list_transactions(self._folders.list_names(), txn.prefix):
            if other.epoch == txn.epoch and other != txn and self._is_marked(other, DONE):
                raise StateBehind(
                    f"sink '{self.name}': another transaction has already published epoch {txn.epoch}.",
                    f"{self._folders.path(other.name)} exists, and the state table names {txn.name}. The state table "
                    "was restored from an older copy and assigns the same numbers again.",
                    "Nothing was published. Continue after what is published: onceonly state forward FILE.py:NAME "
                    f"--decision N --reason … ({name_page('operations', 'backup-and-restore')})",
                    code="state-behind",
                )

    def _delete_folders(self, transactions: Sequence[Transaction]) -> None:
        """Delete the folders of these transactions. Each contains one run."""
        for txn in transactions:
            self._folders.delete(txn.name)

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """Write a mark that a commit checks for. A commit that checked before the mark was written does no harm.

        Only the row in the state table publishes a state, and there "published" and "given up" exclude each other. The
        next checkpoint never continues from a state that was given up, whatever its folder contains.
        """
        if handle["txn"] is None:  # a rewind: there is only its row in the state table
            return None
        txn = staterun.transaction(self.name, handle["txn"])
        if not self._folders.exists():
            raise OutcomeUnknown(
                f"sink '{self.name}': whether the state of epoch {txn.epoch} was published is not known.",
                f"{self._folders.uri} does not exist. Perhaps its volume is not mounted.",
                "Mount it, or, if the state is permanently lost, create that folder, empty. Then give it up again: "
                f"onceonly resolve PIPELINE EPOCH --give-up {self.name} --reason …. Nothing was changed.",
                "target-missing",
            )
        try:
            if not self._is_marked(txn, DONE) and self._folders.has(txn.name):
                self._folders.create_mark(f"{txn.name}/{GIVEN_UP_MARK}", json.dumps({"decision": decision}))
            published = self._is_marked(txn, DONE)
        except OSError as error:
            raise OutcomeUnknown(
                f"sink '{self.name}': whether the state of epoch {txn.epoch} was published is not known.",
                f"{type(error).__name__}: {error}",
                f"Nothing was deleted. When {self._folders.uri} can be reached: onceonly resolve PIPELINE EPOCH "
                f"--give-up {self.name} --reason …",
                code="no-answer",
            ) from error
        if not published:
            return None
        return Outcome(already=True, detail={"rows": handle["rows"]})

    def traces(self, pipeline: str) -> list[Trace]:
        """Return the last decision of each state table that has published here.

        The last decisions are in the last epochs: a pipeline with state decides its epochs in order.
        """
        by_table: dict[str, list[Transaction]] = {}
        for name in self._folders.list_names():
            txn = parse_transaction(name)
            if txn and (txn.pipeline, txn.sink) == (pipeline, self.name):
                by_table.setdefault(txn.state_id, []).append(txn)
        traces = []
        for state_id, txns in by_table.items():
            newest = sorted(txns, key=lambda txn: txn.epoch)[-MAX_TRANSACTIONS_READ:]
            published = list_published(self._folders, newest)
            if published:
                last_decision = max(decision for decision, _ in published)
                traces.append(Trace(state_id, last_decision, f"state {self._folders.uri}"))
        return traces

    def _is_marked(self, txn: Transaction, mark: str) -> bool:
        return self._folders.has(f"{txn.name}/{mark}")

    def check_replace(self, old: Handle) -> None:
        """Refuse to replace a single checkpoint, because later ones depend on it. A rewind retracts all of them."""
        raise no_retraction_error(self.name)

    def retraction(self, txn: Transaction, olds: Sequence[Handle], restored: Handle | None) -> Handle:
        """Return a handle of the state after `restored`. Later runs are deleted."""
        runs = self._runs(restored)
        missing = [run["folder"] for run in runs if not self._folders.has(run["folder"])]
        if missing:
            raise InvalidPipeline(
                f"sink '{self.name}': the state at that epoch no longer exists.",
                f"{self._folders.path(missing[0])} is missing. After a merge, runs are kept for {KEPT_CHECKPOINTS} "
                "checkpoints, or until they are forgotten.",
                "Go back to a later epoch. Nothing was changed.",
                code="state-run-missing",
            )
        handle: dict[str, Any] = {
            **_HANDLE_CONSTANTS,
            "txn": None,
            "schema": self.config.schema,
            "key": list(self.config.key),
        }
        if restored:
            handle |= {"schema": restored["schema"], "key": restored["key"], "metadata": _metadata(restored)}
        handle["retired"] = self._runs(restored, "retired")
        handle["runs"] = runs
        handle["forget"] = [old["txn"] for old in olds if old["txn"]]
        handle["rows"] = 0
        return handle

    def _runs(self, handle: Handle | None, which: str = "runs") -> list[dict[str, Any]]:
        with refuse_before_decision():
            return staterun.runs(self.name, handle, which)

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        """Delete the folder of `txn`, unless it is marked as published."""
        if not self._is_marked(txn, DONE):
            self._folders.delete(txn.name)

    def leftovers(self, prefix: str) -> list[Transaction]:
        """List the transactions whose folder is there, and not marked as published."""
        return [txn for txn in list_transactions(self._folders.list_names(), prefix) if not self._is_marked(txn, DONE)]

    def _check_same_shape(self, before: Handle | None) -> None:
        if before and (before["schema"], before["key"]) != (self.config.schema, list(self.config.key)):
            raise InvalidPipeline(
                f"sink '{self.name}': the existing state has another schema or key.",
                f"It is {before['schema']} by {', '.join(before['key'])}. The pipeline now has {self.config.schema} by "
                f"{', '.join(self.config.key)}.",
                "Use the former schema and key, or a new name for the sink, which starts with an empty state. "
                "Nothing was staged.",
                code="state-shape-changed",
            )


def _owner_of(run: Mapping[str, Any]) -> str:
    """Return the name of the transaction that wrote the run: that of the folder around it."""
    return str(run["folder"]).split("/")[0]


def _lasting_metadata(changes: Any) -> dict[str, Any]:
    """Return Spark's metadata of the changed columns, without the notes, which are about this checkpoint alone."""
    metadata_by_column = {}
    for field in changes.schema:
        metadata = {key: value for key, value in field.metadata.items() if key != NOTE_KEY}
        if metadata:
            metadata_by_column[field.name] = metadata
    return metadata_by_column


def _metadata(handle: Handle | None) -> dict[str, Any]:
    """Return Spark's metadata of the columns, which the transform has set and the state keeps."""
    return dict(handle.get("metadata", {})) if handle else {}

"""Delta tables, appended to exactly once.

`stage` writes a nested table inside the target's folder. `commit` adds its files to the target in one log entry with
txn(app id, version). That version is the evidence: it identifies the decision and the transaction (`evidence.py`). It
has to be read from the snapshot from which the commit is made. From a stale snapshot the commit conflicts; from a newer
one, delta-rs would accept a lower number again. Source: Delta protocol, "Transaction Identifiers".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    DecisionTraces,
    History,
    IncrementalSweep,
    InspectableRows,
    OverwritingRows,
    Publication,
    Receipts,
    ReplaceableRows,
    RowLocation,
    Sink,
    TargetHistory,
    Trace,
    VersionedTarget,
)
from onceonly.checkpoint.verification import Depth, Finding, Published, VerifiableTarget
from onceonly.delta import commits, log_summary, table_features, table_files, table_snapshot, txn_identifiers
from onceonly.delta.log_files import LOG_FOLDER
from onceonly.errors import CannotPublish, OutcomeUnknown, StageAgain, TargetWentBack
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.context import Context
from onceonly.sinks.delta import (
    append,
    changes,
    errors,
    evidence,
    rehearsal,
    replacement,
    schema,
    spark_append,
    staged_folders,
    staged_table,
    target_table,
    verification,
)
from onceonly.sinks.delta.handle import DeltaHandle, make_handle
from onceonly.sinks.delta.row_cache import RowCache
from onceonly.sinks.staging import handles
from onceonly.spark.row_files import strict_reader
from onceonly.storage.paths import local_path, spark_uri

if TYPE_CHECKING:
    from onceonly.sinks.delta import merge

LATE_SECONDS = 60.0  # after which a log may have been shortened: any writer's retention is longer
now = time.time  # it advances while the machine is suspended, unlike time.monotonic
MAX_COMMIT_ATTEMPTS = 20  # commits that may lose to other writers of the target before an error is raised


class DeltaWriter(
    Sink,
    IncrementalSweep,
    DecisionTraces,
    TargetHistory,
    ReplaceableRows,
    OverwritingRows,
    VersionedTarget,
    InspectableRows,
    VerifiableTarget,
):
    """Writes to the table of a `DeltaSink`.

    Args:
        uri: the target's absolute path or URI.
        spark: returns a session, and creates it if needed; only called if publishing has to go through Spark.
    """

    handle_shape = handles.Delta

    def __init__(self, config: DeltaSink, uri: str, spark: Callable[[], Any]) -> None:
        self.name, self.config, self.uri = config.name, config, uri
        self._spark = spark
        self._newest_look: table_snapshot.Table | None = None  # at the target, for what is staged next
        self._rehearsed_snapshot: rehearsal.Snapshot | None = None  # for the commit of the same handle
        self._prepared: append.Prepared | None = None  # the same, of a plain append on an object store
        self._row_cache = RowCache()  # the same, of what is replaced

    @classmethod
    def make(cls, config: DeltaSink, context: Context) -> DeltaWriter:
        if not config.path:
            raise target_table.unknown_path_error(config)
        return cls(config, context.locate(config.path), context.spark)

    def check(self) -> list[str]:
        """Return a note on how it publishes. Raises InvalidPipeline if the target cannot be written to."""
        target_table.require_exclusive_commits(self.name, self.uri, None)
        target = target_table.open_existing(self.config, self.uri, table_files.open_table)
        if target is None:
            target_table.refuse_foreign_folder(self.name, self.uri)
            return [f"{self.name}: {self.uri} will be created by the first stage"]
        target_table.check_table(self.config, target)
        target_table.check_replaceable(self.config, target)
        changes.check_table(self.config, target)
        unsupported = table_features.find_unsupported(target)
        if unsupported:
            spark_append.refuse_unwritable(self.name, target)
            spark_append.refuse_unsafe(self.name, self.uri, self._spark)
        if self.config.merge:
            return [f"{self.name}: merges into {self.uri} by {list(self.config.merge.keys)}"]
        if unsupported:
            return [f"{self.name}: publishes to {self.uri} through Spark (delta-rs does not support {unsupported})"]
        return [f"{self.name}: publishes to {self.uri} through delta-rs, metadata only"]

    def list_written_folders(self) -> list[str]:
        if target_table.open_existing(self.config, self.uri, table_files.open_table) is None:
            return [self.uri]  # a file in the log of a table that is not there could be taken for the table
        return [self.uri, f"{self.uri.rstrip('/')}/{LOG_FOLDER}"]

    def stage_small_batch(self, txn: Transaction, rows: Any) -> Handle:
        return self.stage(txn, rows, is_small_batch=True)

    def stage(self, txn: Transaction, rows: Any, is_small_batch: bool = False) -> Handle:
        """Write `rows` into the nested table of `txn`; the handle names it and what it was made for."""
        rows = schema.with_transaction(self.config, rows, txn)
        schema.check_rows(self.config, rows)
        changes.check_columns(self.config, rows)
        target = self.target(rows)
        changes.check_table(self.config, target)
        change = schema.check(self.config, target, rows)
        plain = table_features.find_unsupported(target) is None
        if not plain:
            spark_append.refuse_unwritable(self.name, target)
            spark_append.refuse_unsafe(self.name, self.uri, lambda: rows.sparkSession)
        folder = txn_identifiers.STAGED_PREFIX + txn.name
        staged = staged_table.create(target, folder, plain, change.added, change.widened)
        changes.write(self.config, staged, rows, is_small_batch)
        adds = staged_table.read_adds(self.uri, folder, 1)
        if not adds:
            staged_table.require_same_for_spark(self.config, staged, rows.sparkSession)
        changes.check_staged(self.config, target, adds)
        staged_rows, size = table_files.count_rows_and_bytes(adds, staged)
        table_files.sync_to_disk(self.uri, folder)
        staged_table.check_condition(self.config, f"{self.uri.rstrip('/')}/{folder}")
        publish: Literal["delta-rs", "spark"] = "delta-rs" if plain else "spark"
        left_out = schema.left_out(target, rows)
        return make_handle(
            self.config, self.uri, txn, target, change, left_out, publish, (len(adds), staged_rows, size)
        )

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        """Go through the commit, see `Sink.rehearse`; what is tried is in `rehearsal.py`."""
        delta_handle = DeltaHandle.parse(self.name, handle)
        self._rehearsed_snapshot = self._prepared = None
        if not local_path(self.uri):
            self._prepared = append.rehearse(self.name, self.uri, delta_handle, decision, last)
            if self._prepared:
                return delta_handle.data
        target = self._open_target_to_rehearse(delta_handle, last)
        if self._outcome_in(target, delta_handle, decision, last):
            return delta_handle.data
        if rehearsal.files_are_old(self.uri, delta_handle, target):
            delta_handle = rehearsal.copy_rows(self.name, self.uri, delta_handle)
        cache = rehearsal.make_merge_cache(delta_handle)
        rehearsal.go_through(self.name, self.uri, delta_handle, target, cache, self._row_cache, self._spark)
        self._rehearsed_snapshot = rehearsal.snapshot(target, delta_handle, cache)
        return delta_handle.data

    def _open_target_to_rehearse(self, handle: DeltaHandle, last: Publication | None) -> DeltaTable:
        """Open the target. Raises StageAgain or ActionNeeded if it is not there: nothing is decided yet."""
        try:
            return self._open_target(handle, last)
        except TargetWentBack:
            raise
        except CannotPublish as error:
            target = table_files.open_table(self.uri)
            if target is None:
                raise rehearsal.missing_table_error(self.name, self.uri, handle) from error
            raise rehearsal.recreated_table_error(self.name, self.uri, handle, str(target.metadata().id)) from error

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        """Make the staged files part of the table, once. Cost is one log entry, whatever the number of rows.

        Raises:
            CannotPublish: the target or the staged files were changed; needs manual resolution.
            StateBehind: the target has a decision that the state table does not have.
            TargetWentBack: the target lacks the sink's last recorded publication.
            Fenced: it was given up.
            OutcomeUnknown: the log could not be written or read back. It is safe to call again.
        """
        delta_handle = DeltaHandle.parse(self.name, handle)
        prepared, self._prepared = self._prepared, None
        if prepared and not prepared.is_for(delta_handle, decision, last):
            prepared = None
        looked_at = prepared.looked_at if prepared else now()
        outcome = (
            self._put_entry(delta_handle, decision, last, prepared)
            or self._outcome_in_log(delta_handle, decision)
            or self._commit(delta_handle, decision, last)
        )
        if not outcome.already:
            seconds = now() - looked_at
            if seconds > LATE_SECONDS:
                self._confirm_in_log(delta_handle, decision, seconds)
        try:
            self._settle_spark_files(delta_handle, decision, outcome)
            # By whomever it was written: once PUBLISHED is recorded, nobody looks again.
            table_files.sync_to_disk(self.uri)
        except OSError as error:
            why = f"the table's log could not be written to disk: {error}"
            raise errors.outcome_unknown(delta_handle, why) from error
        if outcome.proof:
            return outcome
        return replace(outcome, proof=evidence.read_proof(self.uri, delta_handle, decision))

    def _settle_spark_files(self, handle: DeltaHandle, decision: int, outcome: Outcome) -> None:
        """Check and sync files that Spark wrote, here or in a process that may have died before it came to this."""
        is_through_spark = handle.publish == "spark" or "through" in outcome.detail
        if is_through_spark or (outcome.already and local_path(self.uri)):
            version = evidence.find_published_version(self.uri, handle.app_id, handle.txn_version(decision))
            if version is not None:
                spark_append.check_and_sync(self.name, self.uri, handle, version)

    def _put_entry(
        self, handle: DeltaHandle, decision: int, last: Publication | None, prepared: append.Prepared | None
    ) -> Outcome | None:
        """Put the entry of a plain append; None: on a disk, where delta-rs costs no requests, or this is more."""
        if local_path(self.uri):
            return None
        return append.publish(self.name, self.uri, handle, decision, last, prepared)

    def _outcome_in_log(self, handle: DeltaHandle, decision: int) -> Outcome | None:
        """Return what the log alone shows of it; None: nothing yet, which the snapshot to write from has to confirm."""
        try:
            summary = log_summary.read(self.uri)
        except OutcomeUnknown:
            return None
        if summary is None or summary.table_id != handle.table_id:
            return None
        number = summary.txns.get(handle.app_id)
        return evidence.find_outcome(self.name, handle, number, handle.txn_version(decision))

    def _confirm_in_log(self, handle: DeltaHandle, decision: int, seconds: float) -> None:
        """Raise OutcomeUnknown unless the log contains the commit, which took that long.

        Where the log was shortened meanwhile, the name of an old entry is free again, and nobody reads that one.
        """
        if self._outcome_in_log(handle, decision) is None:
            why = f"Writing its log entry took {seconds:,.0f} s, and the table's log does not contain it."
            raise errors.outcome_unknown(handle, why)

    def _commit(self, handle: DeltaHandle, decision: int, last: Publication | None) -> Outcome:
        target, cache = self._take_rehearsed_snapshot(handle)
        for _ in range(MAX_COMMIT_ATTEMPTS):
            target = target or self._open_target(handle, last)
            outcome = self._outcome_in(target, handle, decision, last)
            if outcome:
                return outcome
            snapshot, target = target, None  # after a failure the next round opens the table again
            try:
                if schema.add(snapshot, handle):
                    continue  # another snapshot now, in which it may be published
                handle = self._copy_old_rows(snapshot, handle)
                return self._publish(snapshot, handle, decision, last, cache)
            except CommitFailedError:
                continue  # another writer was first: look again before anything else
            except (DeltaError, OSError) as error:
                raise errors.outcome_unknown(handle, f"{type(error).__name__}: {error}") from error
        why = f"{MAX_COMMIT_ATTEMPTS} commits in a row conflicted with other writers of the table."
        if handle.merge:
            why += " Pause them: changes are merged into exactly the version that they were compared with."
        raise errors.outcome_unknown(handle, why)

    def _copy_old_rows(self, target: DeltaTable, handle: DeltaHandle) -> DeltaHandle:
        """Copy staged files that have grown old since the decision, as a rehearsal does; the evidence is the same.

        Spark writes new files anyway.
        """
        if handle.publish == "spark" or not rehearsal.files_are_old(self.uri, handle, target):
            return handle
        try:
            return rehearsal.copy_rows(self.name, self.uri, handle)
        except StageAgain:
            return handle  # some are missing, which is told with their names

    def _take_rehearsed_snapshot(self, handle: DeltaHandle) -> tuple[DeltaTable | None, merge.MergeCache | None]:
        """Return the snapshot of this object's rehearsal, made current, and what it has computed; else none."""
        snapshot, self._rehearsed_snapshot = self._rehearsed_snapshot, None
        if snapshot is None or not snapshot.is_of(handle):
            return None, rehearsal.make_merge_cache(handle)
        try:
            snapshot.target.update_incremental()
        except DeltaError:
            return None, snapshot.cache
        return snapshot.target, snapshot.cache

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """Close the decision with a commit without rows, from the snapshot that shows it as open."""
        delta_handle = DeltaHandle.parse(self.name, handle)
        try:
            for _ in range(MAX_COMMIT_ATTEMPTS):
                target = table_files.open_table(self.uri)
                if target is None:  # dropped, or a volume that is not mounted: only a person can tell
                    raise errors.open_decision_error(delta_handle, "There is no table.")
                if str(target.metadata().id) != delta_handle.table_id:
                    return None  # there the handle is refused
                version = delta_handle.txn_version(decision)
                newest = txn_identifiers.interpret(target.transaction_version(delta_handle.app_id), version)
                if newest is txn_identifiers.TxnMeaning.EARLIER:
                    self._close(target, delta_handle.app_id, decision)
                    continue  # the next look shows whether that commit has closed it
                table_files.sync_to_disk(self.uri)  # GIVEN_UP will be on disk: so is what closes the decision
                if newest is txn_identifiers.TxnMeaning.OURS:
                    return Outcome(already=True, detail={"rows": delta_handle.rows})
                return None
        except (DeltaError, OSError) as error:
            raise errors.open_decision_error(delta_handle, f"{type(error).__name__}: {error}") from error
        crowded = f"{MAX_COMMIT_ATTEMPTS} commits in a row conflicted with other writers of the table."
        raise errors.open_decision_error(delta_handle, crowded)

    def traces(self, pipeline: str) -> list[Trace]:
        traces = []
        txns = {tuple(app_id.split("/")): number for app_id, number in self._read_txns().items()}
        for parts, number in sorted(txns.items()):
            if len(parts) == 4 and (parts[0], *parts[2:]) == ("onceonly", pipeline, self.name):
                traces.append(Trace(parts[1], txn_identifiers.decision_of(number), f"table {self.uri}"))
        return traces

    def _read_txns(self) -> Mapping[str, int]:
        """Read every transaction number of the table, by app id; a look on an object store is kept for `target`."""
        if local_path(self.uri):
            summary = log_summary.read(self.uri)
            return summary.txns if summary else {}
        self._newest_look = look = log_summary.read_snapshot(self.uri)
        return look.txns if look else {}

    def target(self, rows: Any) -> table_snapshot.Table:
        """Open the table, made from the rows at first.

        Where a look is a round trip, it is the table as the traces have just shown it.
        """
        look, self._newest_look = self._newest_look, None
        if look is None:
            return target_table.open_or_create(self.config, self.uri, rows)
        target_table.require_exclusive_commits(self.name, self.uri, look)
        target_table.check(self.config, look)
        return look

    def compare(self, last: Publication) -> History:
        return evidence.compare(self.uri, last)

    def find_current_publication(self, last: Publication) -> Publication | None:
        return evidence.read_current_proof(self.uri, last)

    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        return verification.verify(self.name, self.uri, published, depth)

    def locate_rows(self, handle: Handle, decision: int) -> RowLocation:
        rows = DeltaHandle.parse(self.name, handle)
        version = evidence.find_published_version(self.uri, rows.app_id, rows.txn_version(decision))
        return RowLocation(rows.table_id, version, rows.folder, rows.files, rows.merge is None)

    def check_replace(self, old: Handle) -> None:
        replacement.check(self.config, self.uri, [DeltaHandle.parse(self.name, old)])

    def retraction(self, txn: Transaction, olds: Sequence[Handle], restored: Handle | None) -> Handle:
        old_handles = [DeltaHandle.parse(self.name, old) for old in olds]
        return replacement.make_retraction(self.config, self.uri, txn, old_handles)

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        """Delete the nested table of `txn`, unless the target's log refers to it."""
        staged_folders.delete(self.uri, txn_identifiers.STAGED_PREFIX + txn.name)

    def leftovers(self, prefix: str) -> list[Transaction]:
        """List the transactions whose nested table is there, and of which the outcome is not recorded."""
        return staged_folders.list_unsettled(self.uri, prefix)

    def list_overwritten(self, handle: Handle) -> list[Transaction]:
        return replacement.list_overwritten(self.uri, DeltaHandle.parse(self.name, handle))

    def is_leftover(self, txn: Transaction) -> bool:
        return staged_folders.is_unsettled(self.uri, txn_identifiers.STAGED_PREFIX + txn.name)

    def seconds_since_sweep(self, prefix: str) -> float | None:
        return staged_folders.seconds_since_sweep(self.uri, f"{prefix}-{self.name}")

    def record_sweep(self, prefix: str) -> None:
        staged_folders.record_sweep(self.uri, f"{prefix}-{self.name}")

    def release(self, txn: Transaction) -> None:
        staged_folders.settle(self.uri, txn_identifiers.STAGED_PREFIX + txn.name)

    def read_staged(self, handle: Handle) -> Any:
        return staged_table.read_batches(self._staged_uri(handle))

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        return strict_reader(spark).format("delta").load(spark_uri(self._staged_uri(handle)))

    def _staged_uri(self, handle: Handle) -> str:
        return f"{self.uri.rstrip('/')}/{DeltaHandle.parse(self.name, handle).rows_folder}"

    @property
    def stages_columns_as_returned(self) -> bool:
        return self.config.checkpoint_column is None

    def columns(self) -> list[str] | None:
        target = target_table.open_with_fixed_columns(self.config, self.uri)
        return table_snapshot.column_names(target) if target else None

    def types(self) -> Mapping[str, Any] | None:
        target = target_table.open_with_fixed_columns(self.config, self.uri)
        return json.loads(target.schema().to_json()) if target else None

    def _open_target(self, handle: DeltaHandle, last: Publication | None) -> DeltaTable:
        """Open the table for which the rows were staged.

        Raises:
            TargetWentBack: another table or none is there, and the last publication was to this one.
            CannotPublish: another table or none is there.
            OutcomeUnknown: its log cannot be read.
        """
        try:
            target = table_files.open_table(self.uri)
        except DeltaError as error:
            raise errors.unreadable_log_error(handle, error) from error
        table_id = str(target.metadata().id) if target else None
        if target is None or table_id != handle.table_id:
            if last is not None and not evidence.is_elsewhere(self.uri, last) and table_id != last.proof["table_id"]:
                why = f"It is another table (id {table_id})." if table_id else "There is no table."
                raise evidence.target_went_back_error(self.name, self.uri, last, why)
            raise errors.other_table_error(self.name, self.uri, handle, table_id)
        return target

    def _outcome_in(
        self, target: DeltaTable, handle: DeltaHandle, decision: int, last: Publication | None
    ) -> Outcome | None:
        """Return the outcome that a snapshot shows; None: it may be published to it.

        Raises:
            TargetWentBack: the snapshot lacks what was published before.
            CannotPublish: what it shows is no evidence, because the table deletes transaction identifiers.
        """
        version = handle.txn_version(decision)
        outcome = evidence.find_outcome(self.name, handle, target.transaction_version(handle.app_id), version)
        if outcome is None:
            errors.refuse_expiring_evidence(self.name, self.uri, target.metadata().configuration)
            evidence.require_last_publication(
                self.name, self.uri, last, str(target.metadata().id), target.transaction_version
            )
        return outcome

    def _outcome_now(self, handle: DeltaHandle, decision: int, last: Publication | None) -> Outcome | None:
        return self._outcome_in(self._open_target(handle, last), handle, decision, last)

    def _close(self, target: DeltaTable, app_id: str, decision: int) -> None:
        """Close the decision with a commit without rows. The caller has to read from the table whether it did."""
        version = txn_identifiers.closing_version(decision)
        if table_features.find_unsupported(target):
            spark_append.commit_version(self._spark, self.name, self.uri, target, app_id, version)
            return
        with suppress(CommitFailedError):  # another writer was first: there is another look
            commits.commit_entry(target, [], [], app_id, version)

    def _publish(
        self,
        target: DeltaTable,
        handle: DeltaHandle,
        decision: int,
        last: Publication | None,
        cache: merge.MergeCache | None,
    ) -> Outcome:
        """Publish to that snapshot of the target, which shows no outcome yet.

        Args:
            cache: of a publication of changes, see `rehearsal.make_merge_cache`.
        Raises:
            CommitFailedError: another writer was first.
        """
        folder, version = handle.rows_folder, handle.txn_version(decision)
        adds = staged_table.read_adds(self.uri, folder, 1)
        missing = staged_table.list_missing_files(self.uri, folder, adds)
        if missing or len(adds) != handle.files:
            outcome = self._outcome_now(handle, decision, last)
            if outcome:
                return outcome  # another process has published them meanwhile, and settled the folder
            number_missing = handle.files - len(adds) + len(missing)
            raise errors.missing_files_error(self.name, self.uri, handle, number_missing, missing)
        altered = schema.is_altered(target, handle)
        if cache is not None:
            changes.refuse(self.name, target, handle, altered)
            from onceonly.sinks.delta import merge  # with pandas, which takes a second

            return merge.publish(target, self.uri, handle, version, adds, cache)
        removal = replacement.prepare(self.name, target, handle, adds, altered, self._row_cache)
        if handle.publish == "spark" or altered:
            read_outcome = partial(self._outcome_now, handle, decision, last)
            return spark_append.publish(self._spark, self.name, self.uri, handle, version, read_outcome)
        replacement.commit(target, handle, adds, removal, version)
        return Outcome(detail={"rows": handle.rows})

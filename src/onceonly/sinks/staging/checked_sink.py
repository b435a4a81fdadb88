"""A sink around another one, which checks handles: each that is passed to the sink, and each that staging returns.

The coordinator asks a sink for its capabilities with `isinstance`. So the wrapper has the capabilities of its sink: for
each there is a class here that delegates its methods, and `with_checked_handles` makes one class of those that apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    DecisionTraces,
    History,
    IncrementalSweep,
    InspectableRows,
    OverwritingRows,
    PooledTransaction,
    Publication,
    Receipts,
    ReplaceableRows,
    RowLocation,
    Sink,
    StateBackend,
    TargetHistory,
    Trace,
    TransactionalIdPool,
    VersionedTarget,
)
from onceonly.checkpoint.verification import Depth, Finding, Published, VerifiableTarget
from onceonly.errors import CannotPublish
from onceonly.sinks.staging.handles import check_handle, check_new_handle
from onceonly.sinks.staging.verification import as_damaged


def with_checked_handles(sink: Sink, kind: str) -> Sink:
    """Return a sink with the same capabilities, which refuses handles that a sink of that kind cannot have created."""
    capabilities = []
    for capability in CHECKED_CAPABILITIES:
        if isinstance(sink, capability):
            capabilities.append(capability)
    return _compose_class(tuple(capabilities))(sink, kind)


@cache
def _compose_class(capabilities: tuple[type, ...]) -> type[CheckedSink]:
    """Return the class of wrappers of sinks with these capabilities."""
    mixins = [CHECKED_CAPABILITIES[capability] for capability in capabilities]
    return type(CheckedSink.__name__, (*mixins, CheckedSink), {})


class HandleCheck:
    """What all classes of a wrapper share: the sink, and the check of a handle."""

    def __init__(self, sink: Any, kind: str) -> None:
        self._sink, self._kind = sink, kind
        self.name: str = sink.name
        self._shape: Any = sink.handle_shape

    def _check(self, *handles: Handle | None) -> None:
        """Raise CannotPublish for a handle that the sink cannot have created."""
        for handle in handles:
            if handle is not None:
                check_handle(self.name, self._kind, self._shape, handle)

    def _check_new(self, handle: Handle) -> Handle:
        """Return a handle that is to be recorded. Raises InvalidPipeline: it could not be read again."""
        check_new_handle(self.name, self._shape, handle)
        return handle


class CheckedSink(HandleCheck, Sink):
    """The methods that every sink has."""

    _sink: Sink

    def check(self) -> list[str]:
        return self._sink.check()

    def list_written_folders(self) -> list[str]:
        return self._sink.list_written_folders()

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        return self._check_new(self._sink.stage(txn, rows))

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        self._check(handle)
        return self._check_new(self._sink.rehearse(handle, decision, last))

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        self._check(handle)
        return self._sink.commit(handle, decision, receipts, last)

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        self._check(handle)
        return self._sink.fence(handle, decision)

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        self._sink.discard(txn, handle)  # unchecked: it has to work with a damaged handle, too

    def leftovers(self, prefix: str) -> list[Transaction]:
        return self._sink.leftovers(prefix)

    def stage_small_batch(self, txn: Transaction, rows: Any) -> Handle:
        return self._check_new(self._sink.stage_small_batch(txn, rows))

    def revoke(self, txn: Transaction) -> None:
        self._sink.revoke(txn)

    def release(self, txn: Transaction) -> None:
        self._sink.release(txn)

    def evidence(self, handle: Handle) -> list[str]:
        self._check(handle)
        return self._sink.evidence(handle)

    def resolve_handle(self, handle: Handle, committed: bool) -> Handle:
        self._check(handle)
        return self._sink.resolve_handle(handle, committed)


class CheckedSweep(HandleCheck, IncrementalSweep):
    _sink: IncrementalSweep

    def is_leftover(self, txn: Transaction) -> bool:
        return self._sink.is_leftover(txn)

    def seconds_since_sweep(self, prefix: str) -> float | None:
        return self._sink.seconds_since_sweep(prefix)

    def record_sweep(self, prefix: str) -> None:
        self._sink.record_sweep(prefix)


class CheckedTraces(HandleCheck, DecisionTraces):
    _sink: DecisionTraces

    def traces(self, pipeline: str) -> list[Trace]:
        return self._sink.traces(pipeline)


class CheckedHistory(HandleCheck, TargetHistory):
    _sink: TargetHistory

    def compare(self, last: Publication) -> History:
        return self._sink.compare(last)

    def find_current_publication(self, last: Publication) -> Publication | None:
        return self._sink.find_current_publication(last)


class CheckedReplaceable(HandleCheck, ReplaceableRows):
    _sink: ReplaceableRows

    def check_replace(self, old: Handle) -> None:
        self._check(old)
        self._sink.check_replace(old)

    def retraction(self, txn: Transaction, olds: Sequence[Handle], restored: Handle | None) -> Handle:
        self._check(*olds, restored)
        return self._sink.retraction(txn, olds, restored)


class CheckedOverwriting(HandleCheck, OverwritingRows):
    _sink: OverwritingRows

    def list_overwritten(self, handle: Handle) -> list[Transaction]:
        self._check(handle)
        return self._sink.list_overwritten(handle)


class CheckedVersioned(HandleCheck, VersionedTarget):
    _sink: VersionedTarget

    def locate_rows(self, handle: Handle, decision: int) -> RowLocation:
        self._check(handle)
        return self._sink.locate_rows(handle, decision)


class CheckedInspectable(HandleCheck, InspectableRows):
    _sink: InspectableRows

    def read_staged(self, handle: Handle) -> Any:
        self._check(handle)
        return self._sink.read_staged(handle)

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        self._check(handle)
        return self._sink.staged_frame(handle, spark)

    def columns(self) -> list[str] | None:
        return self._sink.columns()

    def types(self) -> Mapping[str, Any] | None:
        return self._sink.types()

    @property
    def stages_columns_as_returned(self) -> bool:
        return self._sink.stages_columns_as_returned


class CheckedPool(HandleCheck, TransactionalIdPool):
    _sink: TransactionalIdPool

    def list_pooled(self, prefix: str) -> list[PooledTransaction]:
        return self._sink.list_pooled(prefix)

    def is_needed(self, handle: Handle, txn: PooledTransaction) -> bool:
        self._check(handle)
        return self._sink.is_needed(handle, txn)

    def discard_pooled(self, txns: Sequence[PooledTransaction]) -> None:
        self._sink.discard_pooled(txns)


class CheckedState(HandleCheck, StateBackend):
    _sink: StateBackend

    def read(self, spark: Any, before: Handle | None) -> Any:
        self._check(before)
        return self._sink.read(spark, before)

    def find_missing(self, before: Handle) -> str:
        self._check(before)
        return self._sink.find_missing(before)

    def forget(self, after: Handle) -> None:
        self._check(after)
        self._sink.forget(after)


class CheckedVerifiable(HandleCheck, VerifiableTarget):
    _sink: VerifiableTarget

    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        """Find damaged handles, and let the sink compare its target with the others."""
        valid = []
        for publication in published:
            try:
                self._check(publication.handle)
            except CannotPublish as error:
                yield as_damaged(publication, error)
            else:
                valid.append(publication)
        yield from self._sink.verify(valid, depth)


CHECKED_CAPABILITIES: Mapping[type, type[HandleCheck]] = {
    IncrementalSweep: CheckedSweep,
    DecisionTraces: CheckedTraces,
    TargetHistory: CheckedHistory,
    ReplaceableRows: CheckedReplaceable,
    OverwritingRows: CheckedOverwriting,
    VersionedTarget: CheckedVersioned,
    InspectableRows: CheckedInspectable,
    TransactionalIdPool: CheckedPool,
    StateBackend: CheckedState,
    VerifiableTarget: CheckedVerifiable,
}

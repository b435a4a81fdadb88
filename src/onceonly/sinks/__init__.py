"""One folder per sink, and `staging`, which they share. Exports what other packages need (docs/add-a-sink.md)."""

from onceonly.checkpoint.last_decision import LastDecision
from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    Answer,
    Changes,
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
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.sinks.context import Context

__all__ = [
    "Answer",
    "Changes",
    "Context",
    "DecisionTraces",
    "Handle",
    "History",
    "IncrementalSweep",
    "InspectableRows",
    "LastDecision",
    "Outcome",
    "OverwritingRows",
    "PooledTransaction",
    "Publication",
    "Receipts",
    "ReplaceableRows",
    "RowLocation",
    "Sink",
    "SinkConfig",
    "StateBackend",
    "TargetHistory",
    "Trace",
    "Transaction",
    "TransactionalIdPool",
    "VersionedTarget",
]

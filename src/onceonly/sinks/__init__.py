"""One folder per sink, and `staging`, which they share. Exports what other packages need (docs/add-a-sink.md)."""

from onceonly.checkpoint.finding_codes import FindingCode
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
from onceonly.checkpoint.verification import Depth, Finding, Judgement, Published, VerifiableTarget
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.sinks.context import Context

__all__ = [
    "Answer",
    "Changes",
    "Context",
    "DecisionTraces",
    "Depth",
    "Finding",
    "FindingCode",
    "Handle",
    "History",
    "IncrementalSweep",
    "InspectableRows",
    "Judgement",
    "LastDecision",
    "Outcome",
    "OverwritingRows",
    "PooledTransaction",
    "Publication",
    "Published",
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
    "VerifiableTarget",
    "VersionedTarget",
]

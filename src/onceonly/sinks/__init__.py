"""One folder per sink, and `staging`, which they share. Exports what other packages need (docs/add-a-sink.md)."""

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    Answer,
    DecisionTraces,
    History,
    IncrementalSweep,
    InspectableRows,
    Publication,
    Receipts,
    ReplaceableRows,
    Sink,
    TargetHistory,
    Trace,
)
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.sinks.context import Context

__all__ = [
    "Answer",
    "Context",
    "DecisionTraces",
    "Handle",
    "History",
    "IncrementalSweep",
    "InspectableRows",
    "Outcome",
    "Publication",
    "Receipts",
    "ReplaceableRows",
    "Sink",
    "SinkConfig",
    "TargetHistory",
    "Trace",
    "Transaction",
]

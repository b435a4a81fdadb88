"""One folder per sink, and `staging`, which they share. Exports what other packages need (docs/add-a-sink.md)."""

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    Answer,
    History,
    Inspectable,
    KeepsCopies,
    KeepsNames,
    ProvesHistory,
    Publication,
    Receipts,
    Replaceable,
    Resolvable,
    Revocable,
    ShowsEvidence,
    Sink,
    Trace,
    Traced,
)
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.sinks.context import Context

__all__ = [
    "Answer",
    "Context",
    "Handle",
    "History",
    "Inspectable",
    "KeepsCopies",
    "KeepsNames",
    "Outcome",
    "ProvesHistory",
    "Publication",
    "Receipts",
    "Replaceable",
    "Resolvable",
    "Revocable",
    "ShowsEvidence",
    "Sink",
    "SinkConfig",
    "Trace",
    "Traced",
    "Transaction",
]

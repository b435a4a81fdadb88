"""One folder per sink, and `staging`, which they share. Exports what other packages need (docs/add-a-sink.md)."""

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    Answer,
    History,
    Inspectable,
    KeepsNames,
    ProvesHistory,
    Publication,
    Receipts,
    Replaceable,
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
    "KeepsNames",
    "Outcome",
    "ProvesHistory",
    "Publication",
    "Receipts",
    "Replaceable",
    "Sink",
    "SinkConfig",
    "Trace",
    "Traced",
    "Transaction",
]

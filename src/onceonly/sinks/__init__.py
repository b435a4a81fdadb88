"""One folder per sink, and `staging`, which they share. What other sinks need is exported here (docs/add-a-sink.md)."""

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    Explaining,
    HoldsOpen,
    Inspectable,
    KeepsCopies,
    KeepsNames,
    Receipts,
    Replaceable,
    Resolvable,
    Sink,
    Trace,
    Traced,
)
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.sinks.context import Context

__all__ = [
    "Context",
    "Explaining",
    "Handle",
    "HoldsOpen",
    "Inspectable",
    "KeepsCopies",
    "KeepsNames",
    "Outcome",
    "Receipts",
    "Replaceable",
    "Resolvable",
    "Sink",
    "SinkConfig",
    "Trace",
    "Traced",
    "Transaction",
]

"""Exactly-once output for Spark batch jobs under Airflow.

A pipeline is declared with these names, and needs no other. `onceonly.airflow` makes it a DAG, `onceonly.windows` keeps
windows open between checkpoints, `onceonly.debezium` reads changes of tables, `onceonly.storage.manifests` reads a
folder of files, `onceonly.testing` has a source and a sink for tests.
"""

from typing import Any

from onceonly.errors import (
    Busy,
    CannotPublish,
    Fenced,
    InvalidPipeline,
    NotCommitted,
    OnceonlyError,
    OutcomeUnknown,
)
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Fresh, Gate
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, Merge, StateSink
from onceonly.pipeline.sources import DeltaSource, FileSource, KafkaSource

__all__ = [
    "Busy",
    "CannotPublish",
    "DeltaSink",
    "DeltaSource",
    "Fenced",
    "FileSink",
    "FileSource",
    "Fresh",
    "Gate",
    "InvalidPipeline",
    "KafkaSink",
    "KafkaSource",
    "Merge",
    "NotCommitted",
    "OnceonlyError",
    "OutcomeUnknown",
    "Pipeline",
    "StateSink",
]


def __getattr__(name: str) -> Any:
    """`__version__`, looked up when it is asked for: that takes longer than all imports above."""
    if name == "__version__":
        from importlib.metadata import version

        return version("onceonly")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

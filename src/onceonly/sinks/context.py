"""What a writer is given when it is made from its config: where things are, and how to reach services."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

from onceonly.checkpoint.sink import Sink
from onceonly.errors import InvalidPipeline
from onceonly.kafka.connection import KafkaConnection
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.settings import Settings


@dataclass(frozen=True)
class Context:
    """Nothing is looked up, and nothing started, before a writer asks for it.

    Args:
        pipeline: whose sink it is.
        settings: of this process, from its environment.
        connection: the extra of an Airflow connection, by id. Raises InvalidPipeline where there is none.
        kafka: how to reach the brokers, by such a connection or by bare addresses; None, None: those of this process.
        spark: a session, made or found.
    """

    pipeline: Pipeline
    settings: Settings
    connection: Callable[[str], Mapping[str, Any]]
    kafka: Callable[[str | None, str | None], KafkaConnection]
    spark: Callable[[], Any]

    def locate(self, path: str) -> str:
        """A path of the config as an absolute path or URI; relative ones are below ONCEONLY_HOME."""
        return self.settings.locate(path)


def open_sink(config: SinkConfig, context: Context) -> Sink:
    """The live side of a sink, by the name that its config gives.

    Raises:
        InvalidPipeline: it cannot be imported, or is no sink.
    """
    module, _, name = config.writer.partition(":")
    try:
        make = attrgetter(name)(import_module(module))
    except (ImportError, AttributeError) as error:
        raise InvalidPipeline(
            f"sink '{config.name}': what writes it cannot be imported.",
            f"{config.writer}: {error}.",
            f"Install what the sink of the kind '{config.kind}' needs. Nothing was written.",
        ) from error
    made = make(config, context)
    if not isinstance(made, Sink):
        raise InvalidPipeline(
            f"sink '{config.name}': {config.writer} made a {type(made).__name__}.",
            "What writes has to be a Sink (onceonly.sinks.Sink).",
            "Fix the package that brings it (docs/add-a-sink.md). Nothing was written.",
        )
    return made

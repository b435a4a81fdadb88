"""What a writer gets when it is created from its config: locations, and access to services."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

from onceonly.checkpoint.sink import Sink
from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.registry.client import Registry
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.settings import Settings


@dataclass(frozen=True)
class Context:
    """Nothing is looked up or started before the writer calls for it.

    Args:
        pipeline: the pipeline of the sink.
        settings: of this process, from its environment.
        connection: returns the extra of an Airflow connection, by id. Raises InvalidPipeline if there is none.
        kafka: returns the connection to the brokers, by the id of an Airflow connection or by addresses. (None, None):
            the brokers of this process.
        spark: returns a session, and creates it if needed.
        registry: returns the schema registry of an Airflow connection, by id.
    """

    pipeline: Pipeline
    settings: Settings
    connection: Callable[[str], Mapping[str, Any]]
    kafka: Callable[[str | None, str | None], KafkaConnection]
    spark: Callable[[], Any]
    registry: Callable[[str | None], Registry | None] = lambda _: None

    def locate(self, path: str) -> str:
        """A path of the config as an absolute path or URI. Relative paths are below ONCEONLY_HOME."""
        return self.settings.locate(path)


def open_sink(config: SinkConfig, context: Context) -> Sink:
    """The writer that the config names.

    Raises:
        InvalidPipeline: it cannot be imported, or is not a Sink.
    """
    module, _, name = config.writer.partition(":")
    try:
        factory = attrgetter(name)(import_module(module))
    except (ImportError, AttributeError) as error:
        raise InvalidPipeline(
            f"sink '{config.name}': its writer cannot be imported.",
            f"{config.writer}: {error}.",
            f"Install what the sink of the kind '{config.kind}' needs. Nothing was written.",
            code="writer-not-importable",
        ) from error
    writer = factory(config, context)
    if not isinstance(writer, Sink):
        raise InvalidPipeline(
            f"sink '{config.name}': {config.writer} created a {type(writer).__name__}.",
            "A writer must be a Sink (onceonly.sinks.Sink).",
            f"Fix the package that provides it ({name_page('add-a-sink')}). Nothing was written.",
            code="writer-unsuitable",
        )
    return writer

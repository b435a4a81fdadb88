"""What a writer gets when it is created from its config: locations, and access to services."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

from onceonly.checkpoint.sink import InspectableRows, Sink, StateBackend, TransactionalIdPool
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
        InvalidPipeline: it cannot be imported, is not a Sink, or cannot do what its config says.
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
    missing = ", ".join(f"{method}()" for method in sorted(getattr(factory, "__abstractmethods__", ())))
    if missing:
        raise _unsuitable_writer_error(config, f"{config.writer} lacks {missing}.")
    writer = factory(config, context)
    if not isinstance(writer, Sink):
        why = f"{config.writer} created a {type(writer).__name__}, which is no Sink (onceonly.sinks.Sink)."
        raise _unsuitable_writer_error(config, why)
    _check_capabilities(config, writer)
    return writer


def _check_capabilities(config: SinkConfig, writer: Sink) -> None:
    """Refuse a writer that lacks a capability which its config promises, or has one of which its config says nothing.

    Pipelines are checked by the config alone, long before a writer exists.
    """
    for name, is_promised, capability in (
        ("inspectable", config.inspectable, InspectableRows),
        ("keeps_state", config.keeps_state, StateBackend),
    ):
        if is_promised != isinstance(writer, capability):
            has = "has no" if is_promised else "has"
            why = f"{type(config).__name__}.{name} is {is_promised}, and {config.writer} {has} {capability.__name__}."
            raise _unsuitable_writer_error(config, why)
    if config.slots() is not None and not isinstance(writer, TransactionalIdPool):
        why = f"{type(config).__name__}.slots() is {config.slots()}, and {config.writer} has no TransactionalIdPool."
        raise _unsuitable_writer_error(config, why)


def _unsuitable_writer_error(config: SinkConfig, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{config.name}': its writer cannot be used.",
        why,
        f"Fix the package that provides it ({name_page('add-a-sink')}). Nothing was written.",
        code="writer-unsuitable",
    )

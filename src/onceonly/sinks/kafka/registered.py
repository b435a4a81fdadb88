"""The ids that written values begin with: of the sink's schema, as a version of each topic's subject in a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import KafkaSink
from onceonly.registry.client import Registry

KIND = "AVRO"
HEAD = 5  # bytes: a zero byte, and the id
Heads = Mapping[str, bytes]  # by topic


def check(config: KafkaSink, registry: Registry, schema: str) -> list[str]:
    """What `heads` would do; registers nothing.

    Raises:
        InvalidPipeline: `heads` would refuse it; or the registry refuses the credentials.
        NotCommitted: the registry does not answer.
    """
    notes = []
    for topic, subject in _subjects(config, schema).items():
        id = registry.registered(subject, KIND, schema)
        if id is None and not (config.register and registry.accepts(subject, KIND, schema)):
            raise _refused(config, registry, subject)
        how = f"have schema {id}" if id is not None else "get a schema that staging will register"
        notes.append(f"{config.name}: values in '{topic}' {how}, subject '{subject}'")
    return notes


def heads(config: KafkaSink, registry: Registry, schema: str) -> Heads:
    """What each value in a topic begins with. Registering is repeated with the same result, and harms no reader.

    Raises:
        InvalidPipeline: the schema is not registered, or not compatible with the versions that are.
    """
    return {
        topic: b"\0" + _id(config, registry, subject, schema).to_bytes(HEAD - 1, "big")
        for topic, subject in _subjects(config, schema).items()
    }


def framed(config: KafkaSink, value: Any, heads: Heads) -> Any:
    """The column with its head; null stays null."""
    from pyspark.sql import functions as F

    if config.topic:
        return F.concat(F.lit(heads[config.topic]), value)
    head = F.lit(None).cast("binary")  # of a topic that is not allowed: that row is refused, and named, by `limits`
    for topic, each in heads.items():
        head = F.when(F.col("topic") == topic, F.lit(each)).otherwise(head)
    return F.when(value.isNotNull(), F.concat(F.coalesce(head, F.lit(b"")), value))


def _id(config: KafkaSink, registry: Registry, subject: str, schema: str) -> int:
    id = registry.registered(subject, KIND, schema)
    if id is None and config.register and registry.accepts(subject, KIND, schema):
        id = registry.register(subject, KIND, schema)
    if id is None:
        raise _refused(config, registry, subject)
    return id


def _subjects(config: KafkaSink, schema: str) -> dict[str, str]:
    record = _record(config, schema)
    names = {"topic": "{topic}-value", "record": "{record}", "topic-record": "{topic}-{record}"}
    return {topic: names[config.subjects].format(topic=topic, record=record) for topic in config.allowed}


def _record(config: KafkaSink, schema: str) -> str:
    """The full name of the record."""
    parsed = json.loads(schema)
    name = str(parsed.get("name", "")) if isinstance(parsed, dict) else ""
    if not name and config.subjects != "topic":
        raise InvalidPipeline(
            f"sink '{config.name}': subjects={config.subjects!r} needs the name of a record.",
            f"The schema '{config.schema}' is not a record.",
            "Use subjects='topic'. Nothing was written.",
        )
    space = parsed.get("namespace") if name and "." not in name else None
    return f"{space}.{name}" if space else name


def _refused(config: KafkaSink, registry: Registry, subject: str) -> InvalidPipeline:
    where = f"subject '{subject}' of the registry {registry.connection.describe()}"
    if config.register:
        return InvalidPipeline(
            f"sink '{config.name}': the schema '{config.schema}' cannot be registered.",
            f"It is not compatible with the versions of {where}.",
            "Change it so that readers of both can go on, or relax the subject's compatibility. Nothing was written.",
        )
    return InvalidPipeline(
        f"sink '{config.name}': the schema '{config.schema}' is not registered.",
        f"It is no version of {where}.",
        "Register it there, or let the sink do so: KafkaSink(register=True). Nothing was written.",
    )

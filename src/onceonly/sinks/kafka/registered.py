"""The ids that written keys and values begin with: of the sink's schemas, as versions of subjects in a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onceonly.errors import InvalidPipeline
from onceonly.kafka import avro
from onceonly.pipeline.sinks import KafkaSink
from onceonly.registry import json_schema, protobuf
from onceonly.registry.client import Registry, Schema
from onceonly.registry.wire import KINDS, head_of
from onceonly.spark import arrow

KEY, VALUE = "key", "value"
Heads = Mapping[str, bytes]  # by topic


@dataclass(frozen=True)
class Part:
    """The keys, or the values, of a sink, where they have a schema.

    Args:
        file: of the schema, for messages.
        text: as a registry holds it.
        record: its full name; '' if it has none.
        files: of Protobuf: as from `onceonly.registry.protobuf.files`.
    """

    name: str
    format: str
    file: str
    text: str
    record: str
    files: bytes = b""

    @property
    def indexes(self) -> bytes:
        """Between the id and the message."""
        if self.format != "protobuf":
            return b""
        found = protobuf.indexes_of(self.files, self.record)
        assert found is not None
        return protobuf.indexes_text(found)


def parts(config: KafkaSink, root: Path) -> list[Part]:
    """What it writes with a schema of a registry.

    Raises:
        InvalidPipeline: a schema file cannot be used.
    """
    if config.registry is None:
        return []
    given = [(KEY, config.key_format, config.key_schema, None), (VALUE, config.format, config.schema, config.message)]
    return [_part(config, root, name, kind, file, message) for name, kind, file, message in given if file]


def check(config: KafkaSink, registry: Registry, parts: Sequence[Part]) -> list[str]:
    """What `heads` would do; registers nothing.

    Raises:
        InvalidPipeline: `heads` would refuse it; or the registry refuses the credentials.
        NotCommitted: the registry does not answer.
    """
    notes = []
    if any(part.format != "avro" for part in parts):
        arrow.require()
    for part in parts:
        for topic, subject in _subjects(config, part).items():
            id = registry.registered(subject, KINDS[part.format], part.text)
            if id is None and not (config.register and registry.accepts(subject, KINDS[part.format], part.text)):
                raise _refused(config, part, registry, subject)
            how = f"have schema {id}" if id is not None else "get a schema that staging will register"
            notes.append(f"{config.name}: {part.name}s in '{topic}' {how}, subject '{subject}'")
    return notes


def heads(config: KafkaSink, registry: Registry, part: Part) -> Heads:
    """What each key or value in a topic begins with. Registering is repeated with the same result, and harms no reader.

    Raises:
        InvalidPipeline: the schema is not registered, or not compatible with the versions that are.
    """
    return {
        topic: head_of(_id(config, registry, subject, part)) + part.indexes
        for topic, subject in _subjects(config, part).items()
    }


def _id(config: KafkaSink, registry: Registry, subject: str, part: Part) -> int:
    kind = KINDS[part.format]
    id = registry.registered(subject, kind, part.text)
    if id is None and config.register and registry.accepts(subject, kind, part.text):
        id = registry.register(subject, kind, part.text)
    if id is None:
        raise _refused(config, part, registry, subject)
    return id


def _subjects(config: KafkaSink, part: Part) -> dict[str, str]:
    if not part.record and config.subjects != "topic":
        raise InvalidPipeline(
            f"sink '{config.name}': subjects={config.subjects!r} needs the name of a record.",
            f"The schema '{part.file}' is not a record, or has no title.",
            "Use subjects='topic'. Nothing was written.",
        )
    names = {"topic": "{topic}-{part}", "record": "{record}", "topic-record": "{topic}-{record}"}
    given = {"part": part.name, "record": part.record}
    return {topic: names[config.subjects].format(topic=topic, **given) for topic in config.allowed}


# ---- schema files


def _part(config: KafkaSink, root: Path, name: str, format: str, file: str, message: str | None) -> Part:
    try:
        data = (root / file).read_bytes()
        if format == "protobuf":
            return _protobuf(name, file, data, message)
        text = data.decode()
        return Part(name, format, file, text, _avro(text) if format == "avro" else _json(text))
    except (OSError, ValueError, protobuf.Unusable, json_schema.NoType) as error:
        raise InvalidPipeline(
            f"sink '{config.name}': the schema '{file}' cannot be used.",
            f"{type(error).__name__}: {error}.",
            f"Correct the file, or the path in KafkaSink, which is relative to {root}. Nothing was written.",
        ) from error


def _avro(text: str) -> str:
    if flaw := avro.flaw(text):
        raise ValueError(f"{type(flaw).__name__}: {flaw}")
    parsed = json.loads(text)
    name = str(parsed.get("name", "")) if isinstance(parsed, dict) else ""
    space = parsed.get("namespace") if name and "." not in name else None
    return f"{space}.{name}" if space else name


def _json(text: str) -> str:
    json_schema.rules(Schema(0, "JSON", text))
    parsed = json.loads(text)
    return str(parsed.get("title", "")) if isinstance(parsed, dict) else ""


def _protobuf(name: str, file: str, data: bytes, message: str | None) -> Part:
    text, files = protobuf.of_set(data)
    record = message or protobuf.message_at(files, (0,))
    if protobuf.indexes_of(files, record) is None:
        raise protobuf.Unusable(f"it has no message '{record}'")
    protobuf.spark_type(files, record)
    return Part(name, "protobuf", file, text, record, files)


def _refused(config: KafkaSink, part: Part, registry: Registry, subject: str) -> InvalidPipeline:
    where = f"subject '{subject}' of the registry {registry.connection.describe()}"
    if config.register:
        return InvalidPipeline(
            f"sink '{config.name}': the schema '{part.file}' cannot be registered.",
            f"It is not compatible with the versions of {where}.",
            "Change it so that readers of both keep working, or relax the subject's compatibility. Nothing was "
            "written.",
        )
    return InvalidPipeline(
        f"sink '{config.name}': the schema '{part.file}' is not registered.",
        f"It is not a version of {where}.",
        "Register it there, or let the sink do so: KafkaSink(register=True). Nothing was written.",
    )

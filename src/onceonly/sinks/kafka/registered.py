"""The ids that written keys and values begin with: of the sink's schemas, as versions of subjects in a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onceonly.errors import InvalidPipeline
from onceonly.kafka.registry import avro_schema, json_schema, protobuf
from onceonly.kafka.registry.client import Registry, Schema
from onceonly.kafka.registry.wire import KINDS, head_of
from onceonly.pipeline.sinks import KafkaSink
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
        files: of Protobuf: as from `onceonly.kafka.registry.protobuf.files`.
    """

    name: str
    format: str
    file: str
    text: str
    record: str
    files: bytes = b""

    @property
    def indexes(self) -> bytes:
        """The bytes between the id and the message."""
        if self.format != "protobuf":
            return b""
        message_indexes = protobuf.indexes_of(self.files, self.record)
        assert message_indexes is not None
        return protobuf.indexes_text(message_indexes)


def parts(config: KafkaSink, root: Path) -> list[Part]:
    """Return what the sink writes with a schema of a registry.

    Raises:
        InvalidPipeline: a schema file cannot be used.
    """
    if config.registry is None:
        return []
    sink_parts = []
    if config.key_schema:
        sink_parts.append(_read_part(config, root, KEY, config.key_format, config.key_schema, None))
    if config.schema:
        sink_parts.append(_read_part(config, root, VALUE, config.format, config.schema, config.message))
    return sink_parts


def check(config: KafkaSink, registry: Registry, parts: Sequence[Part]) -> list[str]:
    """Return notes on what `heads` would do; register nothing.

    Raises:
        InvalidPipeline: `heads` would refuse it; or the registry refuses the credentials.
        NotCommitted: the registry does not answer.
    """
    notes = []
    if any(part.format != "avro" for part in parts):
        arrow.require()
    for part in parts:
        for topic, subject in _subjects(config, part).items():
            id = registry.find_id(subject, KINDS[part.format], part.text)
            if id is not None:
                how = f"have schema {id}"
            elif config.register and registry.accepts(subject, KINDS[part.format], part.text):
                how = "get a schema that staging will register"
            else:
                raise _schema_refused(config, part, registry, subject)
            notes.append(f"{config.name}: {part.name}s in '{topic}' {how}, subject '{subject}'")
    return notes


def heads(config: KafkaSink, registry: Registry, part: Part) -> Heads:
    """Return what each key or value in a topic begins with; register the schema where that was chosen.

    Registering is repeated with the same result, and harms no reader.

    Raises:
        InvalidPipeline: the schema is not registered, or not compatible with the versions that are.
    """
    heads_by_topic: dict[str, bytes] = {}
    for topic, subject in _subjects(config, part).items():
        heads_by_topic[topic] = head_of(_find_or_register(config, registry, subject, part)) + part.indexes
    return heads_by_topic


def _find_or_register(config: KafkaSink, registry: Registry, subject: str, part: Part) -> int:
    """Return the id of the part's schema in the registry."""
    kind = KINDS[part.format]
    id = registry.find_id(subject, kind, part.text)
    if id is None and config.register and registry.accepts(subject, kind, part.text):
        id = registry.register(subject, kind, part.text)
    if id is None:
        raise _schema_refused(config, part, registry, subject)
    return id


def _subjects(config: KafkaSink, part: Part) -> dict[str, str]:
    """Return the subject of the part's schema, by topic. Raises InvalidPipeline: it needs a record's name."""
    if not part.record and config.subjects != "topic":
        raise InvalidPipeline(
            f"sink '{config.name}': subjects={config.subjects!r} needs the name of a record.",
            f"The schema '{part.file}' is not a record, or has no title.",
            "Use subjects='topic'. Nothing was written.",
            code="option-invalid",
        )
    patterns = {"topic": "{topic}-{part}", "record": "{record}", "topic-record": "{topic}-{record}"}
    pattern = patterns[config.subjects]
    return {topic: pattern.format(topic=topic, part=part.name, record=part.record) for topic in config.allowed}


# ---- schema files


def _read_part(config: KafkaSink, root: Path, name: str, format: str, file: str, message: str | None) -> Part:
    """Read a schema file. Raises InvalidPipeline: it cannot be used."""
    try:
        data = (root / file).read_bytes()
        if format == "protobuf":
            return _protobuf_part(name, file, data, message)
        text = data.decode()
        record = _avro_record(text) if format == "avro" else _json_record(text)
        return Part(name, format, file, text, record)
    except (OSError, ValueError, protobuf.Unusable, json_schema.NoType) as error:
        raise InvalidPipeline(
            f"sink '{config.name}': the schema '{file}' cannot be used.",
            f"{type(error).__name__}: {error}.",
            f"Correct the file, or the path in KafkaSink, which is relative to {root}. Nothing was written.",
            code="schema-unusable",
        ) from error


def _avro_record(text: str) -> str:
    """Return the full name of a schema's record; empty if it has none. Raises ValueError: Spark cannot use it."""
    if flaw := avro_schema.find_flaw(text):
        raise ValueError(f"{type(flaw).__name__}: {flaw}")
    parsed = json.loads(text)
    if not isinstance(parsed, dict):
        return ""
    name = str(parsed.get("name", ""))
    if name and "." not in name:
        namespace = parsed.get("namespace")
        if namespace:
            return f"{namespace}.{name}"
    return name


def _json_record(text: str) -> str:
    """Return the title of a schema; empty if it has none."""
    json_schema.rules(Schema(0, "JSON", text))
    parsed = json.loads(text)
    if not isinstance(parsed, dict):
        return ""
    return str(parsed.get("title", ""))


def _protobuf_part(name: str, file: str, data: bytes, message: str | None) -> Part:
    """Return the part for a message of a file set, by default its first one. Raises Unusable."""
    text, files = protobuf.of_set(data)
    record = message or protobuf.message_at(files, (0,))
    if protobuf.indexes_of(files, record) is None:
        raise protobuf.Unusable(f"it has no message '{record}'")
    protobuf.spark_type(files, record)
    return Part(name, "protobuf", file, text, record, files)


def _schema_refused(config: KafkaSink, part: Part, registry: Registry, subject: str) -> InvalidPipeline:
    """Return the error for a schema that the registry does not accept, or does not have."""
    where = f"subject '{subject}' of the registry {registry.connection.describe()}"
    if config.register:
        return InvalidPipeline(
            f"sink '{config.name}': the schema '{part.file}' cannot be registered.",
            f"It is not compatible with the versions of {where}.",
            "Change it so that readers of both keep working, or relax the subject's compatibility. Nothing was "
            "written.",
            code="schema-incompatible",
        )
    return InvalidPipeline(
        f"sink '{config.name}': the schema '{part.file}' is not registered.",
        f"It is not a version of {where}.",
        "Register it there, or let the sink do so: KafkaSink(register=True). Nothing was written.",
        code="schema-not-registered",
    )

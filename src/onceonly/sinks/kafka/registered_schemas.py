"""Keys and values with schemas of a registry: the ids that they begin with, and their bytes.

Rows are encoded on Spark's workers: JSON Schema and Protobuf need this package there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from onceonly.errors import InvalidPipeline
from onceonly.kafka.registry import SCHEMA_TYPES, avro_schema, json_schema, make_head, protobuf
from onceonly.kafka.registry.client import Registry, Schema
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.staging.worker_errors import worker_error
from onceonly.spark import arrow
from onceonly.spark.row_files import MICROSECOND_FORMATS

KEY, VALUE = "key", "value"
Heads = Mapping[str, bytes]  # by topic


@dataclass(frozen=True)
class SchemaPart:
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


def read_parts(config: KafkaSink, root: Path) -> list[SchemaPart]:
    """Read what the sink writes with a schema of a registry.

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


def read_value_part(config: KafkaSink, root: Path) -> SchemaPart:
    """Read the schema of the sink's values, which it has. Raises InvalidPipeline: the file cannot be used."""
    return next(part for part in read_parts(config, root) if part.name == VALUE)


def check(config: KafkaSink, registry: Registry, parts: Sequence[SchemaPart]) -> list[str]:
    """Return notes on what `require_heads` would do; register nothing.

    Raises:
        InvalidPipeline: `require_heads` would refuse it; or the registry refuses the credentials.
        NotCommitted: the registry does not answer.
    """
    notes = []
    if any(part.format != "avro" for part in parts):
        arrow.require()
    for part in parts:
        for topic, subject in _subjects(config, part).items():
            id = registry.find_id(subject, SCHEMA_TYPES[part.format], part.text)
            if id is not None:
                how = f"have schema {id}"
            elif config.register and registry.accepts(subject, SCHEMA_TYPES[part.format], part.text):
                how = "get a schema that staging will register"
            else:
                raise _schema_error(config, part, registry, subject)
            notes.append(f"{config.name}: {part.name}s in '{topic}' {how}, subject '{subject}'")
    return notes


def require_heads(config: KafkaSink, registry: Registry, part: SchemaPart) -> Heads:
    """Return what each key or value in a topic begins with; register the schema where that was chosen.

    Registering is repeated with the same result, and harms no reader.

    Raises:
        InvalidPipeline: the schema is not registered, or not compatible with the versions that are.
    """
    heads_by_topic: dict[str, bytes] = {}
    for topic, subject in _subjects(config, part).items():
        heads_by_topic[topic] = make_head(_find_or_register(config, registry, subject, part)) + part.indexes
    return heads_by_topic


def _find_or_register(config: KafkaSink, registry: Registry, subject: str, part: SchemaPart) -> int:
    """Return the id of the part's schema in the registry."""
    kind = SCHEMA_TYPES[part.format]
    id = registry.find_id(subject, kind, part.text)
    if id is None and config.register and registry.accepts(subject, kind, part.text):
        id = registry.register(subject, kind, part.text)
    if id is None:
        raise _schema_error(config, part, registry, subject)
    return id


def _subjects(config: KafkaSink, part: SchemaPart) -> dict[str, str]:
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
    subjects = {}
    for topic in config.written_topics():
        subjects[topic] = pattern.format(topic=topic, part=part.name, record=part.record)
    return subjects


# ---- schema files


def _read_part(config: KafkaSink, root: Path, name: str, format: str, file: str, message: str | None) -> SchemaPart:
    """Read a schema file. Raises InvalidPipeline: it cannot be used."""
    try:
        data = (root / file).read_bytes()
        if format == "protobuf":
            return _protobuf_part(name, file, data, message)
        text = data.decode()
        record = _avro_record(text) if format == "avro" else _json_record(text)
        return SchemaPart(name, format, file, text, record)
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


def _protobuf_part(name: str, file: str, data: bytes, message: str | None) -> SchemaPart:
    """Return the part for a message of a file set, by default its first one. Raises Unusable."""
    text, files = protobuf.parse_descriptor_set(data)
    record = message or protobuf.message_at(files, (0,))
    if protobuf.indexes_of(files, record) is None:
        raise protobuf.Unusable(f"it has no message '{record}'")
    protobuf.spark_type(files, record)
    return SchemaPart(name, "protobuf", file, text, record, files)


def _schema_error(config: KafkaSink, part: SchemaPart, registry: Registry, subject: str) -> InvalidPipeline:
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


# ---- rows as bytes


def encode_column(config: KafkaSink, part: SchemaPart, rows: Any, heads: Heads) -> Any:
    """Return the column of that part, encoded and with its head; null stays null.

    Raises:
        InvalidPipeline: rows of its type cannot have that schema.
    """
    encode = {"avro": _encode_avro, "json": _encode_json, "protobuf": _encode_protobuf}[part.format]
    return _prepend_head(config, encode(config, part, rows), heads)


def _prepend_head(config: KafkaSink, encoded: Any, heads: Heads) -> Any:
    """Return the column with the head of its topic before each value; null stays null."""
    from pyspark.sql import functions as F

    if config.topic:
        return F.concat(F.lit(heads[config.topic]), encoded)
    head = F.lit(None).cast("binary")  # of a topic that is not allowed: that row is refused, and named, by `limits`
    for topic, topic_head in heads.items():
        head = F.when(F.col("topic") == topic, F.lit(topic_head)).otherwise(head)
    return F.when(encoded.isNotNull(), F.concat(F.coalesce(head, F.lit(b"")), encoded))


def _encode_avro(config: KafkaSink, part: SchemaPart, rows: Any) -> Any:
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import to_avro

    return F.when(F.col(part.name).isNotNull(), to_avro(F.col(part.name), part.text))


def _encode_json(config: KafkaSink, part: SchemaPart, rows: Any) -> Any:
    from pyspark.sql import functions as F

    from onceonly.kafka.registry import json_schema
    from onceonly.kafka.registry.client import Schema

    kind = rows.schema[part.name].dataType.typeName()
    if kind not in ("struct", "map", "array"):
        raise _unfit_rows_error(config, part, f"'{part.name}' is {kind}, and JSON needs a struct, a map or an array")
    rules, sink = json_schema.rules(Schema(0, "JSON", part.text)), config.name

    def encode_texts(values: pa.Array) -> pa.Array:
        from onceonly.kafka.registry import json_schema

        return _encode_values(values, json_schema.writer(rules), sink, part)

    text = F.to_json(F.col(part.name), {"ignoreNullFields": "false", **MICROSECOND_FORMATS})
    return arrow.udf(encode_texts, "binary")(text)


def _encode_protobuf(config: KafkaSink, part: SchemaPart, rows: Any) -> Any:
    from pyspark.sql import functions as F

    from onceonly.kafka.registry import protobuf, protobuf_writer

    column_type = rows.schema[part.name].dataType.jsonValue()
    if why := protobuf_writer.find_misfit(column_type, protobuf.spark_type(part.files, part.record), part.name):
        raise _unfit_rows_error(config, part, why)
    sink = config.name

    def encode_messages(values: pa.Array) -> pa.Array:
        from onceonly.kafka.registry import protobuf_writer

        return _encode_values(values, protobuf_writer.writer(part.files, part.record), sink, part)

    return arrow.udf(encode_messages, "binary")(F.col(part.name))


def _encode_values(values: pa.Array, write: Callable[[Any], bytes], sink: str, part: SchemaPart) -> pa.Array:
    """Return the bytes that `write` makes of each value; null stays null. Runs on a worker.

    Raises:
        RuntimeError: as from `worker_error`: a value cannot be written by the schema.
    """
    from onceonly.kafka.registry.protobuf_writer import Unwritable

    try:
        return pa.array([None if value is None else write(value) for value in values.to_pylist()], pa.binary())
    except (Unwritable, ValueError) as error:
        why = f"{error}." if isinstance(error, Unwritable) else str(error)
        raise worker_error(_unfit_row_error(sink, part, why)) from None


def _unfit_rows_error(config: KafkaSink, part: SchemaPart, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{config.name}': the rows cannot be written by the schema '{part.file}'.",
        f"{why}.",
        "Correct the transform or the schema. Nothing was staged.",
        code="schema-does-not-fit",
    )


def _unfit_row_error(sink: str, part: SchemaPart, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{sink}': the {part.name} of a row cannot be written by the schema '{part.file}'.",
        why,
        "Correct the transform or the schema. Nothing was published.",
        code="schema-does-not-fit",
    )

"""Keys and values whose schemas are in a registry: the schemas are pinned, looked up again, and decode the bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from onceonly.counts import count
from onceonly.errors import BadRecord, InvalidPipeline
from onceonly.json_values.columns import parse_columns
from onceonly.kafka.registry import HEAD, SCHEMA_TYPES, avro_schema, json_schema, protobuf, read_id
from onceonly.kafka.registry.client import Registry, Schema
from onceonly.pipeline.sources import FAIL, KafkaSource
from onceonly.spark import arrow

PinnedSchemas = Mapping[str, Any]  # schemas/state-row.v2.json, `decoding`


@dataclass(frozen=True)
class PartSchemas:
    """The schemas of one topic's keys, or values.

    Args:
        topic: its name, or the pattern of all topics that are read as one.
        part: 'key' or 'value'.
        subject: the one in which the latest version is looked up; '': the reader's schema is in a file.
    """

    topic: str
    part: str
    format: str
    subject: str
    registry: Registry

    @property
    def _is_compiled(self) -> bool:
        return self.format == "protobuf"

    def _read_latest(self) -> dict[str, Any]:
        """Read the latest version of the subject, as it is pinned. Raises InvalidPipeline: there is none."""
        latest = self.registry.find_latest(self.subject, self._is_compiled)
        if latest is None:
            raise InvalidPipeline(
                f"topic '{self.topic}' has no schema with which to read each {self.part}.",
                f"The registry {self.registry.connection.describe()} has no subject '{self.subject}'.",
                "Correct KafkaSource(subject=…), or give the reader's schema as a file. Nothing was written.",
                code="subject-missing",
            )
        schema = latest.schema
        self._check_kind(schema)
        return {"subject": latest.subject, "version": latest.version, "id": schema.id, "sha256": schema.sha256}

    def _read_reader(self, pins: PinnedSchemas) -> Schema:
        return self._read_pinned(pins["reader"]["id"], pins["reader"]["sha256"])

    def _read_writers(self, pins: PinnedSchemas) -> dict[int, Schema]:
        """Read the writers' schemas that were pinned, by their ids."""
        schemas: dict[int, Schema] = {}
        for id, sha256 in pins["writers"].items():
            schemas[int(id)] = self._read_pinned(int(id), sha256)
        return schemas

    def _read_avro_writers(self, pins: PinnedSchemas) -> dict[int, str]:
        """Read the writers' schemas, without references, by their ids."""
        schemas: dict[int, str] = {}
        for id, sha256 in pins["writers"].items():
            schemas[int(id)] = self._resolve_avro(self._read_pinned(int(id), sha256))
        return schemas

    def _resolve_avro(self, schema: Schema) -> str:
        """Return the schema without references.

        Raises:
            InvalidPipeline: it cannot be used, whichever records name it.
        """
        text = avro_schema.inline_references(schema)
        try:
            avro_schema.parse(text)
        except avro_schema.Unusable as error:
            raise self._unusable_schema_error(schema, error) from None
        return text

    def _unusable_schema_error(self, schema: Schema, why: Exception) -> InvalidPipeline:
        return InvalidPipeline(
            f"each {self.part} of topic '{self.topic}' cannot be decoded.",
            f"Schema {schema.id} ({schema.kind}) in {self.registry.connection.describe()} cannot be used: {why}.",
            "Correct it there, or name another: KafkaSource(schema=…, subject=…, message=…); or read it raw. Nothing "
            "was written.",
            code="schema-unusable",
        )

    def _read_pinned(self, id: int, sha256: str) -> Schema:
        """Read a schema that was pinned. Raises InvalidPipeline: the registry has none of that id, or another one."""
        schema = self.registry.find_schema(id, self._is_compiled)
        if schema is None or schema.sha256 != sha256:
            raise InvalidPipeline(
                f"schema {id} of topic '{self.topic}' is not the one that was pinned.",
                f"The registry {self.registry.connection.describe()} has {'another' if schema else 'none'} of that id: "
                "it is another registry, or was restored.",
                "Correct the connection or the registry and retry. Nothing was written.",
                code="registry-changed",
            )
        return schema

    def _read_schema(self, id: int) -> Schema:
        """Read a schema that is known to exist."""
        schema = self.registry.find_schema(id, self._is_compiled)
        assert schema is not None
        return schema

    def _check_kind(self, schema: Schema) -> None:
        """Refuse a schema of another format. Raises InvalidPipeline."""
        if schema.kind != SCHEMA_TYPES[self.format]:
            raise InvalidPipeline(
                f"each {self.part} of topic '{self.topic}' cannot be read as {self.format}.",
                f"Its schema {schema.id} is {schema.kind}.",
                "Correct the format in KafkaSource, or read it raw. Nothing was written.",
                code="format-differs",
            )


KEY, VALUE = "key", "value"
UNUSED_ID = 0  # which no schema has


def list_registered_parts(config: KafkaSource, registry: Registry | None, file: str | None) -> list[RegisteredPart]:
    """Return the parts of the topic's records that have a schema in the registry.

    Args:
        file: text of the reader's schema of values.
    """
    if registry is None:
        return []
    lenient = config.on_bad_record != FAIL
    key_subject = _usual_subject(config.topic, KEY)
    value_subject = config.subject or _usual_subject(config.topic, VALUE)
    key = RegisteredPart(config.input_name, KEY, config.key_format, key_subject, registry, None, None, lenient)
    value = RegisteredPart(
        config.input_name, VALUE, config.format, value_subject, registry, file, config.message, lenient
    )
    return [part for part in (key, value) if part.format != "raw"]


def _usual_subject(topic: str, part: str) -> str:
    """Return the usual name of the subject; a pattern of topics has none."""
    return f"{topic}-{part}" if topic else ""


@dataclass(frozen=True)
class RegisteredPart(PartSchemas):
    """The decoder of the keys, or the values, of one topic, or of all topics of a pattern.

    Args:
        file: text of the reader's schema; None: the latest version of the subject.
        message: of Protobuf: the full name of the one that is read; None: the first one of the reader's schema.
        lenient: a schema that cannot be used makes the records bad that name it, and fails nothing.
    """

    file: str | None
    message: str | None
    lenient: bool = False

    def check(self) -> list[str]:
        """Check that the part can be read, and return a note.

        Raises:
            InvalidPipeline: there is no reader's schema, or the registry refuses the credentials.
            NotCommitted: the registry does not answer.
        """
        if self.format == "protobuf" or (self.format == "json" and self.file is None):
            arrow.require()
        if self.file is None:
            latest = self._read_latest()
            schema = self._read_schema(latest["id"])
            if self.format == "json":
                self._rules(schema)
            self._check_type(schema)
            version = f"version {latest['version']} of subject '{self.subject}' (id {latest['id']}), the latest"
            return [f"each {self.part} of topic '{self.topic}' is read as {version}"]
        if self.subject:  # it answers, and grants it; other schemas may well be all there is
            self.registry.find_latest(self.subject, self._is_compiled)
        else:
            self.registry.find_schema(UNUSED_ID)
        return []

    def pins(self, rows: Any) -> PinnedSchemas:
        """Return every schema that `rows` (undecoded) name, and the version that is the latest now.

        Raises:
            BadRecord: a record names a schema that the registry does not have.
            InvalidPipeline: a schema is of another format, or there are too many for one registry.
        """
        from onceonly.spark import decoding

        ids = decoding.collect_ids(rows, self.part)
        if ids is None:
            raise self._too_many_ids_error(decoding.MAX_IDS)
        writers = {}
        for id in ids:
            schema = self._find_writer(id, rows)
            if schema:
                writers[str(id)] = schema.sha256
        if self.file is not None:
            return {"writers": writers}
        return {"writers": writers, "reader": self._read_latest()}

    def decode(self, rows: Any, pins: PinnedSchemas) -> Any:
        """Return the rows, decoded; one that cannot be decoded fails the query.

        Raises:
            InvalidPipeline: the registry is another one than when this was pinned.
        """
        from onceonly.spark.decode_results import fail_bad_rows

        why = f"_onceonly_why_{self.part}"
        return fail_bad_rows(self.judge(rows, why, pins), self.part, why)

    def judge(self, rows: Any, why: str, pins: PinnedSchemas) -> Any:
        """Return the rows, decoded, and a text `why` one was not. Raises as `decode`."""
        from onceonly.spark import decoding

        decoder = self.json(pins)
        if decoder:
            return decoder.decode(rows, why)
        return decoding.decode_registered(rows, self.part, self._make_decoding(pins), why)

    def json(self, pins: PinnedSchemas) -> Any:
        """Return the `JsonDecoder` of JSON; None for other formats. Raises as `decode`."""
        from onceonly.spark.decoding import JsonDecoder

        if self.format != "json":
            return None
        rules = []
        for id, schema in self._read_writers(pins).items():
            rules.append((id, self._rules(schema)))
        return JsonDecoder(self._json_type(pins), self.part, tuple(rules))

    def _json_type(self, pins: PinnedSchemas) -> Any:
        """Return the type of decoded JSON."""
        if self.file is not None:
            return parse_columns(self.file)
        return self._reader_type(self._read_reader(pins))

    def explain_failure(self, bytes_: bytes, pins: PinnedSchemas) -> str | None:
        """Return what is wrong with bytes that Spark could not decode; None if it cannot be told."""
        from fastavro import parse_schema, schemaless_reader

        id = read_id(bytes_)
        if self.format != "avro" or id is None or str(id) not in pins["writers"]:
            return None
        try:
            writer_text, reader_text = self._read_avro_writers(pins)[id], self._avro_reader(pins)
            writer, reader = parse_schema(json.loads(writer_text)), parse_schema(json.loads(reader_text))
            schemaless_reader(io.BytesIO(bytes_[HEAD:]), writer, reader)
        except Exception as error:  # a decoder may raise anything for malformed bytes
            return f"{type(error).__name__}: {error}."
        return None

    # ---- how it is decoded

    def _make_decoding(self, pins: PinnedSchemas) -> Any:
        from onceonly.spark import decoding

        if self.format == "avro":
            return self._make_avro_decoding(pins)
        writers = self._read_writers(pins)
        reader = self._read_reader(pins)
        with self._refusing_unusable(reader):
            reader_files = protobuf.files(reader)
            message = self._message_name(reader_files)
        allowed, unfit = self._split_by_fit(writers, reader_files, message)
        return decoding.make_protobuf_decoding(allowed, reader_files, message, self._protobuf_type(pins), unfit)

    def _make_avro_decoding(self, pins: PinnedSchemas) -> Any:
        from onceonly.spark import decoding

        writers, reader = self._read_avro_writers(pins), self._avro_reader(pins)
        allowed: dict[int, str] = {}
        unfit: dict[int, str] = {}
        for id, writer in writers.items():
            why = _why_unfit(writer, reader)
            if why:
                unfit[id] = why
            else:
                allowed[id] = writer
        if unfit and not self.lenient:
            raise self._unfit_schema_error(*min(unfit.items()))
        return decoding.make_avro_decoding(allowed, reader, unfit)

    def _unfit_schema_error(self, id: int, why: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"each {self.part} of topic '{self.topic}' cannot become what the reader's schema asks for.",
            f"Schema {id} in {self.registry.connection.describe()}: {why}.",
            "Give a reader's schema that fits all of them: KafkaSource(schema=…, subject=…); or read it raw. Nothing "
            "was written.",
            code="schema-unfit",
        )

    def _rules(self, schema: Schema) -> str | None:
        """Return the rules that JSON values of that schema have to follow; None where a file gives the columns."""
        if self.file is not None:
            return None
        try:
            return json_schema.rules(schema)
        except json_schema.NoType as error:  # the schema's fault, and not that of the records that name it
            raise InvalidPipeline(
                f"each {self.part} of topic '{self.topic}' cannot be checked.",
                f"The rules of schema {schema.id} in {self.registry.connection.describe()} cannot be used: {error}.",
                "Register a corrected schema, or give the columns as a file: KafkaSource(schema='….ddl'). "
                "Nothing was written.",
                code="schema-unusable",
            ) from None

    def _message_name(self, files: bytes) -> str:
        return self.message or protobuf.message_at(files, (0,))

    def _split_by_fit(
        self, writers: Mapping[int, Schema], reader_files: bytes, message: str
    ) -> tuple[dict[int, tuple[int, ...]], dict[int, str]]:
        """Split the writers' schemas of Protobuf into those whose values can be read as the reader's, and the others.

        Returns:
            by schema id, the indexes of the message in the writer's file; and why another schema's values cannot be
            read.
        Raises:
            InvalidPipeline: a schema cannot be used; or unless lenient, its values cannot be read as the reader's.
        """
        allowed: dict[int, tuple[int, ...]] = {}
        unfit: dict[int, str] = {}
        for id, schema in sorted(writers.items()):
            with self._refusing_unusable(schema):
                files = protobuf.files(schema)
                indexes = protobuf.indexes_of(files, message)
                why = None
                if indexes is not None:
                    why = protobuf.find_misfit(files, reader_files, message)
            if why and not self.lenient:
                raise self._unfit_schema_error(id, why)
            if why:
                unfit[id] = why
            else:
                allowed[id] = indexes or ()
        return allowed, unfit

    @contextmanager
    def _refusing_unusable(self, schema: Schema) -> Iterator[None]:
        """Turn the error of a schema of Protobuf into the project's."""
        try:
            yield
        except protobuf.Unusable as error:
            raise self._unusable_schema_error(schema, error) from None

    def _avro_reader(self, pins: PinnedSchemas) -> str:
        """Return the reader's schema of Avro."""
        if self.file is not None:
            return self.file
        return self._resolve_avro(self._read_reader(pins))

    def _protobuf_type(self, pins: PinnedSchemas) -> Any:
        """Return the reader's type of Protobuf, in Spark."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(self._reader_type(self._read_reader(pins)))

    def _check_type(self, schema: Schema) -> None:
        """Refuse a reader's schema that has no type. Raises InvalidPipeline."""
        if self.format == "avro":
            self._resolve_avro(schema)
        else:
            self._reader_type(schema)

    def _reader_type(self, schema: Schema) -> Any:
        """Return the type of the reader's schema of JSON or Protobuf, in the JSON form of Spark's types.

        Raises:
            InvalidPipeline: it has none.
        """
        if self.format == "protobuf":
            with self._refusing_unusable(schema):
                files = protobuf.files(schema)
                return protobuf.spark_type(files, self._message_name(files))
        try:
            spark_type = json_schema.spark_type(schema)
            if isinstance(spark_type, dict) and spark_type["type"] == "struct":
                return spark_type
            why = "it is not an object with properties"
        except json_schema.NoType as error:
            why = str(error)
        raise InvalidPipeline(
            f"each {self.part} of topic '{self.topic}' cannot get one type for all.",
            f"The reader's schema {schema.id} has no equivalent type in Spark: {why}.",
            "Give the columns as a file: KafkaSource(schema='….ddl'). Nothing was written.",
            code="schema-unusable",
        )

    # ---- the schemas that records name

    def _find_writer(self, id: int, rows: Any) -> Schema | None:
        """Read the schema of that id. None if there is none of that format, and the records that name it are bad."""
        schema = self.registry.find_schema(id, self._is_compiled)
        if self.lenient and (schema is None or schema.kind != SCHEMA_TYPES[self.format]):
            return None
        if schema is None:
            raise self._unknown_id_error(id, rows)
        self._check_kind(schema)
        return schema

    def _unknown_id_error(self, id: int, rows: Any) -> BadRecord:
        """Return the error of a schema that the registry does not have, with the first record that names it."""
        from onceonly.spark import decoding

        columns = ("topic", "partition", "offset")
        first = decoding.select_id(rows, self.part, id).select(*columns).sort(*columns).first()
        position = "topic '{}' partition {} offset {}".format(*first) if first else f"topic '{self.topic}'"
        return BadRecord(
            f"{position}: the schema of the {self.part} is not known.",
            f"The registry {self.registry.connection.describe()} has no schema with its id {id}.",
            "Register it there, correct the connection, or read the topic with format='raw'. Nothing was written.",
            code="schema-unknown",
        )

    def _too_many_ids_error(self, most: int) -> InvalidPipeline:
        return InvalidPipeline(
            f"topic '{self.topic}' cannot be read with a schema registry.",
            f"Each {self.part} would name one of more than {count(most, 'schema')}, so it is something else.",
            "Correct the format in KafkaSource, or remove registry=…. Nothing was written.",
            code="format-differs",
        )


def _why_unfit(writer: str, reader: str) -> str | None:
    """Return why no value of the writer's schema can become one of the reader's, as a clause; None: they fit."""
    try:
        avro_schema.resolve_writer(avro_schema.parse(writer), avro_schema.parse(reader))
    except avro_schema.Unfit as error:
        return str(error)
    return None

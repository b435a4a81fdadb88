"""Keys and values whose schemas are in a registry: by which they are decoded, pinned and looked up again."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from onceonly.counts import count
from onceonly.errors import BadRecord, InvalidPipeline
from onceonly.json_values.columns import columns as json_columns
from onceonly.pipeline.sources import FAIL, KafkaSource
from onceonly.registry import avro_schema, json_schema, protobuf
from onceonly.registry.client import Registry, Schema
from onceonly.registry.wire import HEAD, KINDS, id_of
from onceonly.sources.registered_schemas import Pins, Schemas
from onceonly.spark import arrow

KEY, VALUE = "key", "value"
NO_ID = 0  # which no schema has


def parts_of(config: KafkaSource, registry: Registry | None, file: str | None) -> list[Registered]:
    """What of the topic's records has a schema in the registry. `file`: the text of the reader's schema of values."""
    if registry is None:
        return []
    lenient, subject = config.on_bad_record != FAIL, config.subject or _subject(config.topic, VALUE)
    key = Registered(config.called, KEY, config.key_format, _subject(config.topic, KEY), registry, None, None, lenient)
    value = Registered(config.called, VALUE, config.format, subject, registry, file, config.message, lenient)
    return [part for part in (key, value) if part.format != "raw"]


def _subject(topic: str, part: str) -> str:
    """By its usual name; of a pattern of topics there is none."""
    return f"{topic}-{part}" if topic else ""


@dataclass(frozen=True)
class Registered(Schemas):
    """Decodes the keys, or the values, of one topic, or of all topics of a pattern.

    Args:
        file: text of the reader's schema; None: the latest version of the subject.
        message: of Protobuf: the full name of the one that is read; None: the first one of the reader's schema.
        lenient: a schema that cannot be used makes the records bad that name it, and fails nothing.
    """

    file: str | None
    message: str | None
    lenient: bool = False

    def check(self) -> list[str]:
        """A note.

        Raises:
            InvalidPipeline: there is no reader's schema, or the registry refuses the credentials.
            NotCommitted: the registry does not answer.
        """
        if self.format == "protobuf" or (self.format == "json" and self.file is None):
            arrow.require()
        if self.file is None:
            latest = self._latest()
            schema = self._schema(latest["id"])
            if self.format == "json":
                self._rules(schema)
            self._type(schema)
            named = f"version {latest['version']} of subject '{self.subject}' (id {latest['id']}), the latest"
            return [f"each {self.part} of topic '{self.topic}' is read as {named}"]
        if self.subject:  # it answers, and grants it; other schemas may well be all there is
            self.registry.latest(self.subject, self._compiled)
        else:
            self.registry.schema(NO_ID)
        return []

    def pins(self, rows: Any) -> Pins:
        """Every schema that `rows` (undecoded) name, and the version that is the latest now.

        Raises:
            BadRecord: a record names a schema that the registry does not have.
            InvalidPipeline: a schema is of another format, or there are too many for one registry.
        """
        from onceonly.spark import registered

        found = registered.ids(rows, self.part)
        if found is None:
            raise self._too_many(registered.MOST)
        writers = {str(id): schema.sha256 for id in found if (schema := self._writer(id, rows))}
        return {"writers": writers} | ({} if self.file is not None else {"reader": self._latest()})

    def decode(self, rows: Any, pins: Pins) -> Any:
        """The rows, decoded; one that cannot be decoded fails the query.

        Raises:
            InvalidPipeline: the registry is another one than when this was pinned.
        """
        from onceonly.spark import registered

        why = f"_onceonly_why_{self.part}"
        return registered.failing(self.judge(rows, why, pins), self.part, why)

    def judge(self, rows: Any, why: str, pins: Pins) -> Any:
        """The rows, decoded, and a text `why` one was not. Raises as `decode`."""
        from onceonly.spark import registered

        if decoder := self.json(pins):
            return decoder.decode(rows, why)
        return registered.decoded(rows, self.part, self._decoding(pins), why)

    def json(self, pins: Pins) -> Any:
        """The `JsonDecoder` of JSON; None for other formats. Raises as `decode`."""
        from onceonly.spark.json_decoding import JsonDecoder

        if self.format != "json":
            return None
        writers = {int(id): self._pinned(int(id), sha256) for id, sha256 in pins["writers"].items()}
        rules = tuple((id, self._rules(schema)) for id, schema in writers.items())
        return JsonDecoder(self._columns(pins), self.part, rules)

    def _columns(self, pins: Pins) -> Any:
        """What JSON becomes."""
        return self._type(self._reader(pins)) if self.file is None else json_columns(self.file)

    def exactly(self, bytes_: bytes, pins: Pins) -> str | None:
        """What is wrong with bytes that Spark could not decode, if it can be told."""
        from fastavro import parse_schema, schemaless_reader

        id = id_of(bytes_)
        if self.format != "avro" or id is None or str(id) not in pins["writers"]:
            return None
        try:
            written, wanted = (parse_schema(json.loads(text)) for text in (self._writers(pins)[id], self._avro(pins)))
            schemaless_reader(io.BytesIO(bytes_[HEAD:]), written, wanted)
        except Exception as error:  # a decoder may raise anything for malformed bytes
            return f"{type(error).__name__}: {error}."
        return None

    # ---- how it is decoded

    def _decoding(self, pins: Pins) -> Any:
        from onceonly.spark import registered

        if self.format == "avro":
            return self._avro_decoding(pins)
        schemas = {int(id): self._pinned(int(id), sha256) for id, sha256 in pins["writers"].items()}
        with self._usable(reader := self._reader(pins)):
            read = protobuf.files(reader)
            name = self._message(read)
        allowed, unfit = self._allowed(schemas, read, name)
        return registered.protobuf(allowed, read, name, self._struct(pins), unfit)

    def _avro_decoding(self, pins: Pins) -> Any:
        from onceonly.spark import registered

        writers, reader = self._writers(pins), self._avro(pins)
        unfit = {id: why for id, text in writers.items() if (why := _why_unfit(text, reader))}
        if unfit and not self.lenient:
            raise self._unfit(*min(unfit.items()))
        return registered.avro({id: text for id, text in writers.items() if id not in unfit}, reader, unfit)

    def _unfit(self, id: int, why: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"each {self.part} of topic '{self.topic}' cannot become what the reader's schema asks for.",
            f"Schema {id} in {self.registry.connection.describe()}: {why}.",
            "Give a reader's schema that fits all of them: KafkaSource(schema=…, subject=…); or read it raw. Nothing "
            "was written.",
            code="schema-unfit",
        )

    def _rules(self, schema: Schema) -> str | None:
        """Of JSON: what values of that schema have to follow; nothing where the reader gives columns of its own."""
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

    def _message(self, files: bytes) -> str:
        return self.message or protobuf.message_at(files, (0,))

    def _allowed(
        self, schemas: Mapping[int, Schema], read: bytes, name: str
    ) -> tuple[dict[int, tuple[int, ...]], dict[int, str]]:
        """By schema id: the indexes of the message in the writer's file; and why a schema's values cannot be read.

        Raises:
            InvalidPipeline: a schema cannot be used; or unless lenient, its values cannot be read as the reader's.
        """
        allowed: dict[int, tuple[int, ...]] = {}
        unfit: dict[int, str] = {}
        for id, schema in sorted(schemas.items()):
            with self._usable(schema):
                files = protobuf.files(schema)
                indexes = protobuf.indexes_of(files, name)
                why = protobuf.misfit(files, read, name) if indexes is not None else None
            if why and not self.lenient:
                raise self._unfit(id, why)
            if why:
                unfit[id] = why
            else:
                allowed[id] = indexes or ()
        return allowed, unfit

    @contextmanager
    def _usable(self, schema: Schema) -> Iterator[None]:
        try:
            yield
        except protobuf.Unusable as error:
            raise self._unusable(schema, error) from None

    def _avro(self, pins: Pins) -> str:
        """The reader's schema."""
        return self._whole_avro(self._reader(pins)) if self.file is None else self.file

    def _struct(self, pins: Pins) -> Any:
        """The reader's type in Spark, of Protobuf."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(self._type(self._reader(pins)))

    def _type(self, schema: Schema) -> Any:
        """Of JSON and Protobuf; of Avro it is only seen that there is one."""
        if self.format == "avro":
            self._whole_avro(schema)
            return None
        if self.format == "protobuf":
            with self._usable(schema):
                files = protobuf.files(schema)
                return protobuf.spark_type(files, self._message(files))
        try:
            found = json_schema.spark_type(schema)
            if isinstance(found, dict) and found["type"] == "struct":
                return found
            why = "it is not an object with properties"
        except json_schema.NoType as error:
            why = str(error)
        raise InvalidPipeline(
            f"each {self.part} of topic '{self.topic}' cannot get one type for all.",
            f"The reader's schema {schema.id} has no equivalent type in Spark: {why}.",
            "Give the columns as a file: KafkaSource(schema='….ddl'). Nothing was written.",
            code="schema-unusable",
        )

    # ---- what records name

    def _writer(self, id: int, rows: Any) -> Schema | None:
        """The schema of that id. None if there is none of that format, and the records that name it are bad."""
        schema = self.registry.schema(id, self._compiled)
        if self.lenient and (schema is None or schema.kind != KINDS[self.format]):
            return None
        if schema is None:
            raise self._unknown(id, rows)
        self._check_kind(schema)
        return schema

    def _unknown(self, id: int, rows: Any) -> BadRecord:
        from onceonly.spark import registered

        place = ("topic", "partition", "offset")
        first = registered.of_id(rows, self.part, id).select(*place).sort(*place).first()
        where = "topic '{}' partition {} offset {}".format(*first) if first else f"topic '{self.topic}'"
        return BadRecord(
            f"{where}: the schema of the {self.part} is not known.",
            f"The registry {self.registry.connection.describe()} has no schema with its id {id}.",
            "Register it there, correct the connection, or read the topic with format='raw'. Nothing was written.",
        )

    def _too_many(self, most: int) -> InvalidPipeline:
        return InvalidPipeline(
            f"topic '{self.topic}' cannot be read with a schema registry.",
            f"Each {self.part} would name one of more than {count(most, 'schema')}, so it is something else.",
            "Correct the format in KafkaSource, or remove registry=…. Nothing was written.",
        )


def _why_unfit(writer: str, reader: str) -> str | None:
    try:
        avro_schema.fitted(avro_schema.parse(writer), avro_schema.parse(reader))
    except avro_schema.Unfit as error:
        return str(error)
    return None

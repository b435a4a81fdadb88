"""Values of a topic whose schemas are in a registry: by which schemas they are decoded, pinned and looked up again."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

from onceonly.counts import count
from onceonly.errors import BadRecord, InvalidPipeline
from onceonly.pipeline.sources import KafkaSource
from onceonly.registry import avro
from onceonly.registry.client import Registry, Schema

VALUE = "value"
WHY = "_onceonly_why"
KINDS = {"avro": "AVRO"}
Pins = Mapping[str, Any]  # schemas/state-row.v2.json, `decoding`


class RegisteredValues:
    """Decodes the values of one topic.

    Args:
        file: text of the reader's schema; None: the latest version of the subject.
    """

    def __init__(self, config: KafkaSource, registry: Registry, file: str | None) -> None:
        self._config, self._registry, self._file = config, registry, file
        self._kind = KINDS[config.format]

    def check(self) -> list[str]:
        """A note.

        Raises:
            InvalidPipeline: there is no reader's schema, or the registry refuses the credentials.
            NotCommitted: the registry does not answer.
        """
        if self._file is None:
            return [f"topic '{self._config.topic}' is read as {self._named(self._latest())}"]
        self._registry.latest(self._subject)  # it answers, and grants it; other schemas may well be all there is
        return []

    def pins(self, rows: Any) -> Pins:
        """Every schema that `rows` (undecoded) name, and the version that is the latest now.

        Raises:
            BadRecord: a record names a schema that the registry does not have.
            InvalidPipeline: a schema is of another format, or there are too many for one registry.
        """
        from onceonly.spark import registered

        found = registered.ids(rows, VALUE)
        if found is None:
            raise self._too_many(registered.MOST)
        writers = {str(id): self._writer(id, rows).sha256 for id in found}
        return {"writers": writers} | ({} if self._file is not None else {"reader": self._latest()})

    def decode(self, rows: Any, pins: Pins) -> Any:
        """The rows with decoded values; one that cannot be decoded fails the query.

        Raises:
            InvalidPipeline: the registry is another one than when this was pinned.
        """
        from onceonly.spark import registered

        reader = self._reader(pins)
        decodes = {id: registered.avro(text, reader) for id, text in self._writers(pins).items()}
        made = registered.decoded(rows, VALUE, decodes, registered.avro(reader, reader), WHY)
        return registered.failing(made, VALUE, WHY)

    def bad_record(self, partition: int, offset: int, why: str, rows: Any, pins: Pins) -> BadRecord:
        """The error for a record of `rows` (undecoded) that Spark could not decode."""
        found = rows.where(f"partition = {partition} AND offset = {offset}").first()
        more = self._exactly(bytes(found[VALUE]), pins) if found else None
        return BadRecord(
            f"topic '{self._config.topic}' partition {partition} offset {offset}: the record cannot be decoded as "
            f"{self._config.format} with the schema registry {self._registry.connection.describe()}.",
            f"{why} {more or ''}".strip(),
            "Give another reader's schema, or read the topic with format='raw' and decode it in the transform. "
            "Nothing was published.",
        )

    def _exactly(self, value: bytes, pins: Pins) -> str | None:
        """What is wrong with a value that Spark could not decode, if it can be told."""
        from fastavro import parse_schema, schemaless_reader

        from onceonly.spark.registered import HEAD

        writer = self._writers(pins).get(int.from_bytes(value[1:HEAD], "big"))
        if writer is None or value[:1] != b"\0":
            return None
        try:
            written, wanted = (parse_schema(json.loads(text)) for text in (writer, self._reader(pins)))
            schemaless_reader(io.BytesIO(value[HEAD:]), written, wanted)
        except Exception as error:  # a decoder may raise anything for malformed bytes
            return f"{type(error).__name__}: {error}."
        return None

    # ---- schemas

    @property
    def _subject(self) -> str:
        return self._config.subject or f"{self._config.topic}-{VALUE}"

    def _latest(self) -> dict[str, Any]:
        found = self._registry.latest(self._subject)
        if found is None:
            raise InvalidPipeline(
                f"topic '{self._config.topic}' has no schema to be read by.",
                f"The registry {self._registry.connection.describe()} has no subject '{self._subject}'.",
                "Correct KafkaSource(subject=…), or give the reader's schema as a file. Nothing was written.",
            )
        self._check_kind(found.schema)
        return {
            "subject": found.subject,
            "version": found.version,
            "id": found.schema.id,
            "sha256": found.schema.sha256,
        }

    def _reader(self, pins: Pins) -> str:
        if self._file is not None:
            return self._file
        return avro.whole(self._pinned(pins["reader"]["id"], pins["reader"]["sha256"]))

    def _writers(self, pins: Pins) -> dict[int, str]:
        return {int(id): avro.whole(self._pinned(int(id), sha256)) for id, sha256 in pins["writers"].items()}

    def _pinned(self, id: int, sha256: str) -> Schema:
        schema = self._registry.schema(id)
        if schema is None or schema.sha256 != sha256:
            raise InvalidPipeline(
                f"schema {id} of topic '{self._config.topic}' is not the one that was pinned.",
                f"The registry {self._registry.connection.describe()} has {'another' if schema else 'none'} of that "
                "id: it is another registry, or was restored.",
                "Correct the connection or the registry and retry. Nothing was written.",
            )
        return schema

    def _writer(self, id: int, rows: Any) -> Schema:
        schema = self._registry.schema(id)
        if schema is None:
            raise self._unknown(id, rows)
        self._check_kind(schema)
        return schema

    def _check_kind(self, schema: Schema) -> None:
        if schema.kind != self._kind:
            raise InvalidPipeline(
                f"topic '{self._config.topic}' cannot be read as {self._config.format}.",
                f"Its schema {schema.id} is {schema.kind}.",
                "Correct KafkaSource(format=…), or read it with format='raw'. Nothing was written.",
            )

    def _unknown(self, id: int, rows: Any) -> BadRecord:
        from onceonly.spark import registered

        first = registered.of_id(rows, VALUE, id).select("partition", "offset").sort("partition", "offset").first()
        where = f" partition {first['partition']} offset {first['offset']}" if first else ""
        return BadRecord(
            f"topic '{self._config.topic}'{where}: the record's schema is not known.",
            f"The registry {self._registry.connection.describe()} has no schema of its id {id}.",
            "Register it there, correct the connection, or read the topic with format='raw'. Nothing was written.",
        )

    def _too_many(self, most: int) -> InvalidPipeline:
        return InvalidPipeline(
            f"topic '{self._config.topic}' cannot be read with a schema registry.",
            f"Its values would name more than {count(most, 'schema')}, so they are something else.",
            "Correct KafkaSource(format=…), or remove registry=…. Nothing was written.",
        )

    def _named(self, reader: Mapping[str, Any]) -> str:
        return f"version {reader['version']} of subject '{reader['subject']}' (id {reader['id']}), the latest"

"""The schemas of one topic's keys, or values: those that a registry has now, and those that were pinned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.kafka.registry import avro, avro_schema
from onceonly.kafka.registry.client import Registry, Schema
from onceonly.kafka.registry.wire import KINDS

Pins = Mapping[str, Any]  # schemas/state-row.v2.json, `decoding`


@dataclass(frozen=True)
class Schemas:
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
        latest = self.registry.latest(self.subject, self._is_compiled)
        if latest is None:
            raise InvalidPipeline(
                f"topic '{self.topic}' has no schema with which to read each {self.part}.",
                f"The registry {self.registry.connection.describe()} has no subject '{self.subject}'.",
                "Correct KafkaSource(subject=…), or give the reader's schema as a file. Nothing was written.",
            )
        schema = latest.schema
        self._check_kind(schema)
        return {"subject": latest.subject, "version": latest.version, "id": schema.id, "sha256": schema.sha256}

    def _read_reader(self, pins: Pins) -> Schema:
        return self._read_pinned(pins["reader"]["id"], pins["reader"]["sha256"])

    def _read_writers(self, pins: Pins) -> dict[int, Schema]:
        """Read the writers' schemas that were pinned, by their ids."""
        schemas: dict[int, Schema] = {}
        for id, sha256 in pins["writers"].items():
            schemas[int(id)] = self._read_pinned(int(id), sha256)
        return schemas

    def _read_avro_writers(self, pins: Pins) -> dict[int, str]:
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
        text = avro.whole(schema)
        try:
            avro_schema.parse(text)
        except avro_schema.Unusable as error:
            raise self._refuse_unusable(schema, error) from None
        return text

    def _refuse_unusable(self, schema: Schema, why: Exception) -> InvalidPipeline:
        return InvalidPipeline(
            f"each {self.part} of topic '{self.topic}' cannot be decoded.",
            f"Schema {schema.id} ({schema.kind}) in {self.registry.connection.describe()} cannot be used: {why}.",
            "Correct it there, or name another: KafkaSource(schema=…, subject=…, message=…); or read it raw. Nothing "
            "was written.",
            code="schema-unusable",
        )

    def _read_pinned(self, id: int, sha256: str) -> Schema:
        """Read a schema that was pinned. Raises InvalidPipeline: the registry has none of that id, or another one."""
        schema = self.registry.schema(id, self._is_compiled)
        if schema is None or schema.sha256 != sha256:
            raise InvalidPipeline(
                f"schema {id} of topic '{self.topic}' is not the one that was pinned.",
                f"The registry {self.registry.connection.describe()} has {'another' if schema else 'none'} of that id: "
                "it is another registry, or was restored.",
                "Correct the connection or the registry and retry. Nothing was written.",
            )
        return schema

    def _read_schema(self, id: int) -> Schema:
        """Read a schema that is known to exist."""
        schema = self.registry.schema(id, self._is_compiled)
        assert schema is not None
        return schema

    def _check_kind(self, schema: Schema) -> None:
        """Refuse a schema of another format. Raises InvalidPipeline."""
        if schema.kind != KINDS[self.format]:
            raise InvalidPipeline(
                f"each {self.part} of topic '{self.topic}' cannot be read as {self.format}.",
                f"Its schema {schema.id} is {schema.kind}.",
                "Correct the format in KafkaSource, or read it raw. Nothing was written.",
            )

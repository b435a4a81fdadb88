"""The schemas of one topic's keys, or values, as a registry has them now, and as they were pinned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.registry import avro, avro_schema
from onceonly.registry.client import Registry, Schema
from onceonly.registry.wire import KINDS

Pins = Mapping[str, Any]  # schemas/state-row.v2.json, `decoding`


@dataclass(frozen=True)
class Schemas:
    """
    Args:
        topic: or the pattern of all topics that are read as one.
        part: 'key' or 'value'.
        subject: in which the latest version is looked up; '': the reader's schema is in a file.
    """

    topic: str
    part: str
    format: str
    subject: str
    registry: Registry

    @property
    def _compiled(self) -> bool:
        return self.format == "protobuf"

    def _latest(self) -> dict[str, Any]:
        found = self.registry.latest(self.subject, self._compiled)
        if found is None:
            raise InvalidPipeline(
                f"topic '{self.topic}' has no schema with which to read each {self.part}.",
                f"The registry {self.registry.connection.describe()} has no subject '{self.subject}'.",
                "Correct KafkaSource(subject=…), or give the reader's schema as a file. Nothing was written.",
            )
        self._check_kind(found.schema)
        known = found.schema
        return {"subject": found.subject, "version": found.version, "id": known.id, "sha256": known.sha256}

    def _reader(self, pins: Pins) -> Schema:
        return self._pinned(pins["reader"]["id"], pins["reader"]["sha256"])

    def _writers(self, pins: Pins) -> dict[int, str]:
        return {int(id): self._whole_avro(self._pinned(int(id), sha256)) for id, sha256 in pins["writers"].items()}

    def _whole_avro(self, schema: Schema) -> str:
        """Raises InvalidPipeline: it cannot be used, whichever records name it."""
        text = avro.whole(schema)
        try:
            avro_schema.parse(text)
        except avro_schema.Unusable as error:
            raise self._unusable(schema, error) from None
        return text

    def _unusable(self, schema: Schema, why: Exception) -> InvalidPipeline:
        return InvalidPipeline(
            f"each {self.part} of topic '{self.topic}' cannot be decoded.",
            f"Schema {schema.id} ({schema.kind}) in {self.registry.connection.describe()} cannot be used: {why}.",
            "Correct it there, or name another: KafkaSource(schema=…, subject=…, message=…); or read it raw. Nothing "
            "was written.",
            code="schema-unusable",
        )

    def _pinned(self, id: int, sha256: str) -> Schema:
        schema = self.registry.schema(id, self._compiled)
        if schema is None or schema.sha256 != sha256:
            raise InvalidPipeline(
                f"schema {id} of topic '{self.topic}' is not the one that was pinned.",
                f"The registry {self.registry.connection.describe()} has {'another' if schema else 'none'} of that id: "
                "it is another registry, or was restored.",
                "Correct the connection or the registry and retry. Nothing was written.",
            )
        return schema

    def _schema(self, id: int) -> Schema:
        schema = self.registry.schema(id, self._compiled)
        assert schema is not None
        return schema

    def _check_kind(self, schema: Schema) -> None:
        if schema.kind != KINDS[self.format]:
            raise InvalidPipeline(
                f"each {self.part} of topic '{self.topic}' cannot be read as {self.format}.",
                f"Its schema {schema.id} is {schema.kind}.",
                "Correct the format in KafkaSource, or read it raw. Nothing was written.",
            )

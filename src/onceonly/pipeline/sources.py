"""What a pipeline reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from onceonly.pipeline.checks import TOPIC, check_connection, invalid


@dataclass(frozen=True)
class KafkaSource:
    """A topic to read.

    Args:
        format: what `value` becomes: the raw bytes, or a struct decoded by `schema`.
        schema: file with the record's schema, relative to the project: Avro (.avsc), or for JSON Spark DDL (.ddl).
        max_records: chained mode only: most offsets in one checkpoint.
        grace: interval mode only: seconds after its end for which an interval waits for late records before it is
            pinned. What comes later is read by the next interval.
        bootstrap: broker addresses; by default ONCEONLY_KAFKA_BOOTSTRAP or the embedded broker.
        connection: id of the Airflow connection that says how to reach and to authenticate (docs/connections.md),
            instead of `bootstrap`.
    """

    topic: str
    format: Literal["raw", "json", "avro"] = "raw"
    schema: str | None = None
    max_records: int | None = None
    bootstrap: str | None = None
    connection: str | None = None
    grace: float = 0.0

    def __post_init__(self) -> None:
        check_connection(self.connection, self.bootstrap)
        if not 0 <= self.grace <= 3600 * 24 * 366:
            raise invalid("grace", f"is {self.grace}", "Give seconds, from 0 to a year.")
        if not TOPIC.fullmatch(self.topic):
            raise invalid(f"topic '{self.topic}'", "is no Kafka topic name", "Use letters, digits, '.', '_' and '-'.")
        if self.format not in ("raw", "json", "avro"):
            raise invalid(f"format '{self.format}'", "is not known", "Use 'raw', 'json' or 'avro'.")
        suffix = {"json": ".ddl", "avro": ".avsc"}.get(self.format)
        if (suffix is None) != (self.schema is None) or (suffix and not str(self.schema).endswith(suffix)):
            needs = f"needs a schema file ending in {suffix}" if suffix else "takes no schema"
            raise invalid(f"format '{self.format}' with schema {self.schema!r}", needs, "Set KafkaSource(schema=…).")
        if self.max_records is not None and self.max_records < 1:
            raise invalid("max_records", f"is {self.max_records}", "Use a number above 0, or leave it out.")


def source_json(source: KafkaSource) -> dict[str, Any]:
    """Without a grace, as it always was."""
    data = {"kind": "kafka", **asdict(source)}
    return data if source.grace else {name: value for name, value in data.items() if name != "grace"}

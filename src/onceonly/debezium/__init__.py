"""Rows for `DeltaSink(merge=…)` from what Debezium writes about a table in PostgreSQL.

    customers = Changes("id BIGINT, name STRING, balance DECIMAL(12, 2)", keys=["id"])

    def transform(batch):
        return customers.rows(batch)

    DeltaSink("customers", path="lake/customers", merge=Merge(keys=["id"], order_by=ORDER, deletes=DELETED))

The order is that of the commits in PostgreSQL. The position of a change in the log (`source.lsn`) alone is another
order: of two transactions that are open at once, the later one may have written first, also to the same key. So a
change is ordered by the commit before its transaction (`source.sequence`), then by its own position, then by its offset
in Kafka. What was read before the first commit, a snapshot among it, has no such position: it comes first, by offset.
Source: Debezium, "PostgreSQL connector"; docs/how-to/cdc.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceonly.errors import InvalidPipeline

__all__ = ["DELETED", "ORDER", "Changes"]

ORDER = ("_commit", "_lsn", "_offset")
DELETED = "_deleted"
ENCODINGS = ("string", "base64", "hex", "millis", "micros", "nanos", "iso")


@dataclass(frozen=True)
class Changes:
    """One table, each of whose changes becomes a row: its columns, then those of `ORDER`, then `DELETED`.

    `value` may be bytes (JSON, with or without Debezium's schemas) or a struct (Avro or JSON that the source has
    decoded). Of a deleted row only the keys are kept; a record without a value is left out.

    Args:
        columns: Spark DDL of the table's columns.
        keys: its primary key.
        encodings: column -> how its values are written, if the records do not say it: 'string' of a DECIMAL;
            'base64' or 'hex' of BINARY; 'millis', 'micros' or 'nanos' of times that are numbers.
        without: columns that are left out. Any other that is not in `columns` is refused.
    """

    columns: str
    keys: Sequence[str]
    encodings: Mapping[str, str] = field(default_factory=dict)
    without: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or isinstance(self.without, str):
            raise InvalidPipeline(
                "Changes(keys=…, without=…) takes lists.",
                "A single text was given.",
                "Write keys=['id'].",
                code="option-invalid",
            )
        for column, encoding in self.encodings.items():
            if encoding not in ENCODINGS:
                raise InvalidPipeline(
                    f"Changes(encodings={{'{column}': '{encoding}'}}) is not known.",
                    f"Known are {', '.join(ENCODINGS)}.",
                    "Take the one that fits the connector's settings.",
                    code="option-invalid",
                )

    def rows(self, batch: Any) -> Any:
        """Return a row for each change. A record that says something else fails the stage, which names it.

        Args:
            batch: the transform's input.
        Raises:
            InvalidPipeline: columns, keys and the type of `value` do not fit each other.
        """
        from onceonly.debezium import rows

        return rows.read_rows(self, batch)

    def split(self, batch: Any) -> tuple[Any, Any]:
        """Return what `rows` returns, and what is refused: topic, partition, offset and error, for dead letters.

        The table lacks a change that is refused, until a later one of the same key.
        """
        from onceonly.debezium import rows

        return rows.split(self, batch)

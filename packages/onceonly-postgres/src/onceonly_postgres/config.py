"""What users write in `sinks=[…]`. It imports no driver, because DAG files import it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from onceonly import Merge
from onceonly.errors import InvalidPipeline
from onceonly.sinks import SinkConfig

MAX_NAME_BYTES = 63  # PostgreSQL cuts longer names off, without an error
CONNECTION_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")
DEFAULT_SCHEMA = "public"


@dataclass(frozen=True)
class PostgresSink(SinkConfig):
    """A PostgreSQL table to append to, or to merge changes into.

    Args:
        table: 'schema.table', or a table of the schema 'public'. It exists already.
        connection: the Airflow connection whose extra has the settings of libpq: host, port, dbname, user, password,
            sslmode … The definition contains its id alone, and no secret.
        merge: rows are changes, of which the table keeps the newest of each key. A unique index is on the keys. By
            default rows are appended.
        checkpoint_column: a text column in which each row gets the name of the transaction that has published it. By it
            rows are found when they are processed again, taken back or verified.
        schema: where the ledger and the staging tables are.
    """

    table: str = ""
    connection: str = ""
    merge: Merge | None = None
    checkpoint_column: str | None = None
    schema: str = "onceonly"

    kind = "postgres"
    writer = "onceonly_postgres.writer:PostgresWriter.make"
    inspectable = True
    unstored_defaults: ClassVar[Mapping[str, Any]] = {"merge": None, "checkpoint_column": None, "schema": "onceonly"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.merge, Mapping):  # read from a stored definition
            object.__setattr__(self, "merge", Merge(**self.merge))
        for part in (*self.table.split(".", 1), self.schema):
            if not part or "\0" in part or "." in part or len(part.encode()) > MAX_NAME_BYTES:
                raise self._option_error(
                    f"names the table {self.table!r} and the schema {self.schema!r}",
                    f"Write 'schema.table', each name of at most {MAX_NAME_BYTES} bytes and without dots.",
                )
        if not CONNECTION_ID.fullmatch(self.connection):  # not repeated: it may contain a secret
            raise self._option_error("has no connection id", "Pass an id, as in connection='shop_database'.")
        if self.merge and self.checkpoint_column:
            raise self._option_error(
                "has checkpoint_column and merge: what merged rows have replaced no longer exists, so they stay",
                "Remove one of the two.",
            )

    def targets(self) -> tuple[str, ...]:
        return (f"table '{'.'.join(self.table_name)}' of connection '{self.connection}'",)

    def merges_changes(self) -> bool:
        return self.merge is not None

    @property
    def table_name(self) -> tuple[str, str]:
        """The schema of the table, and its name in it."""
        schema, dot, table = self.table.partition(".")
        return (schema, table) if dot else (DEFAULT_SCHEMA, schema)

    def _option_error(self, why: str, todo: str) -> InvalidPipeline:
        return InvalidPipeline(f"sink '{self.name}' {why}.", todo=todo, code="option-invalid")

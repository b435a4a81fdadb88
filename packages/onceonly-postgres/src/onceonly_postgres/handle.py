"""What is recorded of staged rows.

(No `from __future__ import annotations` here: `TypedDict` has to see `NotRequired`.)
"""

import hashlib
import secrets
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from onceonly.sinks.toolkit import TXN, Count, Like


class StagedTable(TypedDict):
    name: Annotated[str, Like("s_[0-9a-f]{24}_[0-9a-f]{12}")]
    rows: Count


class StagedColumn(TypedDict):
    name: str
    type: str


class PublishedRows(TypedDict):
    """What is recorded of rows that are taken out."""

    txn: TXN
    checkpoint_column: str


class MergeColumns(TypedDict):
    keys: list[str]
    order_by: list[str]


class PostgresHandle(TypedDict):
    kind: Literal["postgres"]
    target: str
    txn: TXN
    tables: list[StagedTable]
    columns: list[StagedColumn]
    schema: Any
    rows: Count
    bytes: Count
    checkpoint_column: NotRequired[str]
    merge: NotRequired[MergeColumns]
    replaces: NotRequired[PublishedRows]
    retracts: NotRequired[list[PublishedRows]]


def stem(txn_name: str) -> str:
    """Return how the names of a transaction's staging tables begin: PostgreSQL has 63 bytes for the whole name."""
    return f"s_{hashlib.sha256(txn_name.encode()).hexdigest()[:24]}_"


def new_table_name(txn_name: str) -> str:
    """Return a name for the table of one attempt of one task."""
    return stem(txn_name) + secrets.token_hex(6)

"""The list of a transaction's files, with their metrics: a file of its own, until the publication is recorded.

It is written empty before any row, and again when all rows are staged. So whatever has no list is either published and
recorded, or was never begun; recovery asks for the lists alone, whose number does not grow with the table.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from onceonly.pipeline.shapes import Below, Count, problem
from onceonly.sinks import Transaction
from onceonly_iceberg.file_store import FileStore
from onceonly_iceberg.layout import source_type
from onceonly_iceberg.metrics import FileMetrics, encode

FOLDER = "onceonly-staged"  # of the lists, in the folder of the table's data
FORMAT = 1


@dataclass(frozen=True)
class StagedFile:
    """One Parquet file.

    Args:
        path: below the folder of the table's data.
        partition: its values as Iceberg serializes them; None: null.
    """

    path: str
    size: int
    partition: Sequence[bytes | None]
    metrics: FileMetrics

    def to_json(self) -> dict[str, Any]:
        metrics = self.metrics
        return {
            "path": self.path,
            "bytes": self.size,
            "rows": metrics.rows,
            "partition": [None if value is None else _text(value) for value in self.partition],
            "column_sizes": metrics.column_sizes,
            "values": metrics.value_counts,
            "nulls": metrics.null_counts,
            "nans": metrics.nan_counts,
            "lower": {column: _text(value) for column, value in metrics.lower.items()},
            "upper": {column: _text(value) for column, value in metrics.upper.items()},
            "splits": metrics.split_offsets,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StagedFile:
        if damage := problem(data["path"], Below) or problem(data["bytes"], Count) or problem(data["rows"], Count):
            raise ValueError(damage)
        metrics = FileMetrics(
            data["rows"],
            _by_column(data["column_sizes"]),
            _by_column(data["values"]),
            _by_column(data["nulls"]),
            _by_column(data["nans"]),
            {column: _value(text) for column, text in _by_column(data["lower"]).items()},
            {column: _value(text) for column, text in _by_column(data["upper"]).items()},
            data["splits"],
        )
        partition = [None if value is None else _value(value) for value in data["partition"]]
        return cls(data["path"], data["bytes"], partition, metrics)

    def to_data_file(self, store: FileStore, spec: PartitionSpec, schema: Schema, sort_order: int | None) -> DataFile:
        """Return the file as a manifest names it."""
        values: list[Any] = []
        for part, value in zip(spec.fields, self.partition, strict=True):
            kind = part.transform.result_type(source_type(schema, part))
            assert isinstance(kind, PrimitiveType)
            values.append(None if value is None else from_bytes(kind, value))
        metrics = self.metrics
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=store.uri(self.path),
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            record_count=metrics.rows,
            file_size_in_bytes=self.size,
            column_sizes=metrics.column_sizes,
            value_counts=metrics.value_counts,
            null_value_counts=metrics.null_counts,
            nan_value_counts=metrics.nan_counts,
            lower_bounds=metrics.lower,
            upper_bounds=metrics.upper,
            key_metadata=None,
            split_offsets=metrics.split_offsets,
            equality_ids=None,
            sort_order_id=sort_order,
        )
        file.spec_id = spec.spec_id
        return file


def encode_partition(spec: PartitionSpec, schema: Schema, values: Sequence[Any]) -> list[bytes | None]:
    encoded: list[bytes | None] = []
    for part, value in zip(spec.fields, values, strict=True):
        kind = part.transform.result_type(source_type(schema, part))
        assert isinstance(kind, PrimitiveType)
        encoded.append(None if value is None else encode(kind, value))
    return encoded


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _value(text: str) -> bytes:
    return base64.b64decode(text)


def _by_column(data: Mapping[str, Any]) -> dict[int, Any]:
    return {int(column): value for column, value in data.items()}


@dataclass(frozen=True)
class StagedList:
    """All files of one transaction.

    Args:
        schema_id, spec_id, sort_order_id: of the table, with which they were written. sort_order_id None: unsorted.
        has_ids: all columns of all files carry field ids. Otherwise readers need the table's name mapping.
    """

    schema_id: int
    spec_id: int
    sort_order_id: int | None
    has_ids: bool
    files: Sequence[StagedFile] = ()

    @property
    def rows(self) -> int:
        return sum(file.metrics.rows for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def to_bytes(self) -> bytes:
        content = {
            "format": FORMAT,
            "schema_id": self.schema_id,
            "spec_id": self.spec_id,
            "sort_order_id": self.sort_order_id,
            "has_ids": self.has_ids,
            "files": [file.to_json() for file in self.files],
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> StagedList:
        data = json.loads(content)
        files = [StagedFile.from_json(file) for file in data["files"]]
        return cls(data["schema_id"], data["spec_id"], data["sort_order_id"], data["has_ids"], files)


def list_path(txn: str) -> str:
    return f"{FOLDER}/{txn}.json"


def begin(store: FileStore, txn: Transaction) -> None:
    """Leave the transaction's name before any row is written, so that recovery finds what a dead process has left."""
    store.write(list_path(txn.name), b"")


def save(store: FileStore, txn: Transaction, staged: StagedList) -> str:
    """Write the list, and return its digest."""
    content = staged.to_bytes()
    store.write(list_path(txn.name), content)
    return digest_of(content)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def load(store: FileStore, txn: str, digest: str) -> StagedList | None:
    """Return the list that was recorded; None: it is not there, or is another one."""
    content = store.read(list_path(txn))
    if content is None or digest_of(content) != digest:
        return None
    return StagedList.from_bytes(content)


def exists(store: FileStore, txn: str) -> bool:
    return store.find_sizes([list_path(txn)])[0] is not None


def list_transactions(store: FileStore, prefix: str) -> list[Transaction]:
    """List the transactions whose list is there, and whose names begin with that prefix."""
    transactions = []
    for name in store.list_names(FOLDER):
        txn = Transaction.parse(name.removesuffix(".json"))
        if txn and txn.name.startswith(f"{prefix}-"):
            transactions.append(txn)
    return transactions

"""Tables for the tests, in a SQLite catalog below a folder, and a sink that stages few rows in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.types import IntegerType, NestedField

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import Sink
from onceonly.testing import contract
from onceonly.testing.contract import SINK
from onceonly_iceberg import IcebergSink
from onceonly_iceberg.catalogs import TableOpener
from onceonly_iceberg.sink import IcebergWriter

TABLE = "lake.flights"
NUMBERS = Schema(NestedField(1, "n", IntegerType(), required=False))


def sql_properties(folder: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def open_catalog(folder: str, properties: Mapping[str, str] | None = None) -> Any:
    return load_catalog("default", **(properties or sql_properties(folder)))


def create_table(
    folder: str | Path,
    schema: Schema = NUMBERS,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    order: SortOrder = UNSORTED_SORT_ORDER,
    properties: Mapping[str, str] | None = None,
    catalog_properties: Mapping[str, str] | None = None,
) -> Table:
    Path(folder).mkdir(exist_ok=True)
    catalog = open_catalog(str(folder), catalog_properties)
    catalog.create_namespace_if_not_exists("lake")
    table: Table = catalog.create_table(
        TABLE, schema, partition_spec=spec, sort_order=order, properties=dict(properties or {})
    )
    return table


@dataclass(frozen=True)
class ArrowRows:
    """Rows as a DataFrame hands them to this process."""

    table: pa.Table

    def toArrow(self) -> pa.Table:
        return self.table


def numbers(*values: int) -> ArrowRows:
    return ArrowRows(pa.table({"n": pa.array(values, pa.int32())}))


class InProcess(IcebergWriter):
    """Stages all rows as few ones."""

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        return self.stage_small_batch(txn, rows)


class Place:
    """Where a table is: below a folder, with its catalog."""

    folder: str

    def catalog_properties(self) -> dict[str, str]:
        return sql_properties(self.folder)

    def catalog(self) -> Any:
        return open_catalog(self.folder, self.catalog_properties())

    def path_of(self, uri: str) -> Path:
        """Return where the disk has what the table calls so."""
        return Path(uri.removeprefix("file://"))

    def table(self) -> Table:
        table: Table = self.catalog().load_table(TABLE)
        return table


@dataclass(frozen=True)
class IcebergTarget(Place, contract.Target):
    """A table below a folder."""

    folder: str
    branch: str = "main"

    def sink(self) -> Sink:
        config = IcebergSink(SINK, TABLE, properties=sql_properties(self.folder), branch=self.branch)
        return InProcess(config, TableOpener(config, config.properties))

    def published(self) -> list[int]:
        table = self.table()
        snapshot = table.metadata.snapshot_by_name(self.branch)
        if snapshot is None:
            return []
        return sorted(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()["n"].to_pylist())

    def traces(self, txn: Transaction) -> list[Any]:
        return [path for path in Path(self.folder).rglob("*") if txn.name in path.name]

"""What is refused, before anything is staged, decided or published."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from codes import raises
from iceberg_damages import lose_catalog, partition_anew, remove_file, replace_table
from iceberg_tables import (
    TABLE,
    ArrowRows,
    IcebergTarget,
    InProcess,
    create_table,
    numbers,
    open_catalog,
    sql_properties,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import UpgradeFormatVersionUpdate
from pyiceberg.transforms import UnknownTransform
from pyiceberg.types import IntegerType, ListType, NestedField, StructType, TimeType, UUIDType
from test_iceberg_races import Lake

from onceonly.checkpoint.model import Transaction
from onceonly.errors import ActionNeeded, CannotPublish, InvalidPipeline, NotCommitted, OutcomeUnknown, StageAgain
from onceonly.testing.contract import SINK
from onceonly_iceberg import IcebergSink
from onceonly_iceberg.catalogs import TableOpener
from onceonly_iceberg.name_mapping import PROPERTY

TXN = Transaction("ab", "flights", SINK, 1, 1, "000100010000")


def lake_with(tmp_path: Path, *columns: NestedField) -> Lake:
    create_table(tmp_path, Schema(*columns)) if columns else create_table(tmp_path)
    return Lake(str(tmp_path), sql_properties(str(tmp_path)))


def sink_of(lake: Lake, **settings: Any) -> InProcess:
    config = IcebergSink(SINK, TABLE, properties=lake.properties, **settings)
    return InProcess(config, TableOpener(config, config.properties))


@pytest.mark.parametrize("kind", [TimeType(), UUIDType(), ListType(2, TimeType())])
def test_types_that_spark_lacks(tmp_path: Path, kind: Any) -> None:
    with raises(InvalidPipeline, "iceberg-column"):
        lake_with(tmp_path, NestedField(1, "v", kind, required=False)).sink().check()


@pytest.mark.parametrize("is_nested", [False, True])
def test_names_that_differ_only_in_case(tmp_path: Path, is_nested: bool) -> None:
    twins = [NestedField(2, "a", IntegerType(), required=False), NestedField(3, "A", IntegerType(), required=False)]
    columns = twins
    if is_nested:
        columns = [NestedField(1, "v", ListType(4, StructType(*twins), element_required=False), required=False)]
    with raises(InvalidPipeline, "iceberg-column"):
        lake_with(tmp_path, *columns).sink().check()


def test_missing_table_and_name_without_namespace(tmp_path: Path) -> None:
    lake = lake_with(tmp_path)
    open_catalog(lake.folder).drop_table(TABLE)
    with raises(InvalidPipeline, "iceberg-table-missing"):
        lake.sink().check()
    with raises(InvalidPipeline, "iceberg-table-name"):
        IcebergSink(SINK, "flights")


def test_catalog_that_does_not_answer_while_nothing_is_published(tmp_path: Path) -> None:
    lake = lake_with(tmp_path)
    lose_catalog(IcebergTarget(lake.folder), {}, TXN)
    with raises(NotCommitted, "iceberg-no-answer"):
        lake.sink().check()
    with raises(NotCommitted, "iceberg-no-answer"):
        lake.stage(1, 1)


def test_catalog_whose_client_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.sql", None)
    lake = Lake(str(tmp_path), sql_properties(str(tmp_path)))
    with raises(InvalidPipeline, "iceberg-package-missing", match="pip install"):
        lake.sink().check()


def test_committer_without_that_client_does_not_say_that_nothing_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine may have published it."""
    lake = lake_with(tmp_path)
    handle = lake.stage(1, 1)
    lake.commit(handle, 1)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.sql", None)
    with raises(OutcomeUnknown, "iceberg-package-missing"):
        lake.commit(handle, 1)


def test_format_versions(tmp_path: Path) -> None:
    lake = lake_with(tmp_path)
    open_catalog(lake.folder).drop_table(TABLE)
    create_table(tmp_path, properties={"format-version": "1"})
    with raises(InvalidPipeline, "iceberg-format"):
        lake.sink().check()
    with lake.table().transaction() as transaction:
        transaction._apply((UpgradeFormatVersionUpdate(format_version=2),))
    assert lake.sink().check()


def test_unknown_transform(tmp_path: Path) -> None:
    lake = lake_with(tmp_path)
    table = lake.table()
    spec = PartitionSpec(PartitionField(1, 1000, UnknownTransform("zorder"), "z"), spec_id=1)
    metadata = table.metadata.model_copy(update={"partition_specs": [spec], "default_spec_id": 1})
    unknown = Table(("lake", "flights"), metadata, table.metadata_location, table.io, table.catalog)
    from onceonly_iceberg.layout import check_table

    with raises(InvalidPipeline, "iceberg-transform"):
        check_table(SINK, unknown)


def test_tag_is_no_branch(tmp_path: Path) -> None:
    lake = lake_with(tmp_path)
    lake.publish(1, 1)
    lake.table().manage_snapshots().create_tag(lake.table().metadata.current_snapshot_id or 0, "v1").commit()
    with raises(ActionNeeded, "iceberg-branch-is-tag"):
        sink_of(lake, branch="v1").check()


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ({"n": pa.array([1], pa.int64())}, "iceberg-column-type"),
        ({"n": pa.array([1], pa.int32()), "other": [1]}, "iceberg-column-unknown"),
    ],
)
def test_rows_that_do_not_fit(tmp_path: Path, rows: dict[str, Any], code: str) -> None:
    with raises(InvalidPipeline, code):
        lake_with(tmp_path).sink().stage(TXN, ArrowRows(pa.table(rows)))


def test_nulls_in_required_columns(tmp_path: Path) -> None:
    lake = lake_with(tmp_path, NestedField(1, "n", IntegerType(), required=True))
    with raises(InvalidPipeline, "iceberg-null-in-required"):
        lake.sink().stage(TXN, ArrowRows(pa.table({"n": pa.array([1, None], pa.int32())})))
    with raises(InvalidPipeline, "iceberg-column-required"):
        lake.sink().stage(TXN, ArrowRows(pa.table({})))


def test_rehearsal_says_what_changed(tmp_path: Path) -> None:
    lake = lake_with(tmp_path)
    handle = lake.stage(1, 1)
    partition_anew(lake, handle, TXN)
    with raises(StageAgain, "iceberg-spec-changed"):
        lake.sink().rehearse(handle, 1)
    replace_table(lake, handle, TXN)
    with raises(ActionNeeded, "iceberg-table-replaced"):
        lake.sink().rehearse(handle, 1)
    with raises(CannotPublish, "target-recreated"):
        lake.commit(handle, 1)


def test_commit_without_its_files(tmp_path: Path) -> None:
    lake = lake_with(tmp_path)
    handle = lake.stage(1, 1)
    remove_file(lake, handle, TXN)
    with raises(CannotPublish, "staged-files-missing"):
        lake.commit(handle, 1)
    assert lake.published() == []


def test_altered_evidence(tmp_path: Path) -> None:
    lake = lake_with(tmp_path)
    handle = lake.stage(1, 1)
    with lake.table().transaction() as transaction:
        transaction.set_properties({"onceonly.ab.flights.lake": "7"})
    with raises(CannotPublish, "iceberg-evidence-altered"):
        lake.commit(handle, 1)


def test_metadata_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_with(tmp_path)
    handle = lake.stage(1, 1)
    monkeypatch.setattr(Table, "specs", lambda table: {})
    with raises(CannotPublish, "iceberg-metadata-removed"):
        lake.commit(handle, 1)


def test_files_without_ids_need_the_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As files with lists that Spark has written."""
    monkeypatch.setattr("onceonly_iceberg.staging._has_ids", lambda columns: False)
    lake = lake_with(tmp_path)
    handle = lake.stage(1, 1)
    with lake.table().transaction() as transaction:
        transaction.set_properties({PROPERTY: "[]"})
    with raises(ActionNeeded, "iceberg-name-mapping"):
        lake.sink().rehearse(handle, 1)
    with lake.table().transaction() as transaction:
        transaction.remove_properties(PROPERTY)
    with lake.table().update_schema() as update:
        update.rename_column("n", "m")
    with raises(StageAgain, "iceberg-columns-changed"):
        lake.sink().rehearse(handle, 1)


def test_fence_needs_the_table(tmp_path: Path) -> None:
    lake = lake_with(tmp_path)
    handle = lake.stage(1, 1)
    open_catalog(lake.folder).drop_table(TABLE)
    with raises(OutcomeUnknown, "open-decision"):
        lake.sink().fence(handle, 1)


def test_mixed_partition_is_never_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps rows of partitions apart: a file's own bounds are believed."""
    lake = lake_with(tmp_path)
    partition_anew(lake, {}, TXN)
    monkeypatch.setattr("onceonly_iceberg.staging.split_by_partition", lambda rows, spec, schema: [rows])
    with raises(NotCommitted, "iceberg-partition-mixed"):
        lake.sink().stage(TXN, numbers(1, 2))

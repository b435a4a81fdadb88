"""Rows and tables that do not go together: refused before anything is staged, by name; no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from unit.lightdelta import LightDelta, no_spark, transaction

from onceonly.errors import InvalidPipeline, OutcomeUnknown
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.sinks.delta import changes, schema, staged_table
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.staging import row_types

OLD = {"minReaderVersion": 1, "minWriterVersion": 2}
GENERATED, IDENTITY, DEFAULT = "delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT"


class Rows:
    """A DataFrame's columns: names and types in Spark's JSON."""

    def __init__(self, *columns: tuple[str, Any]) -> None:
        self._fields = columns
        self.schema = self
        self.names = self.columns = [name for name, _ in columns]

    def json(self) -> str:
        return json.dumps({"type": "struct", "fields": [field(name, kind) for name, kind in self._fields]})


def field(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def create(folder: Path, *fields: dict[str, Any], **protocol: Any) -> str:
    """A table, by its log."""
    entry = folder / "_delta_log" / f"{0:020}.json"
    entry.parent.mkdir(parents=True)
    shape = json.dumps({"type": "struct", "fields": list(fields)})
    about = {"id": "5c5ea0a5", "format": {"provider": "parquet", "options": {}}, "schemaString": shape}
    about |= {"partitionColumns": [], "configuration": {}, "createdTime": 1}
    entry.write_text("\n".join(map(json.dumps, [{"protocol": {**OLD, **protocol}}, {"metaData": about}])))
    return str(folder)


def writer(uri: str, **options: Any) -> DeltaWriter:
    return DeltaWriter(DeltaSink("lake", uri, **options), uri, no_spark)


# ---- rows


@pytest.mark.parametrize("names", [("a", "a"), ("a", "A")])
def test_two_columns_of_one_name_are_refused(names: tuple[str, str]) -> None:
    with pytest.raises(InvalidPipeline) as refused:
        row_types.refuse_duplicates("lake", Rows(*((name, "long") for name in names)))
    assert (refused.value.code, "'a'" in refused.value.why) == ("duplicate-column", True)


@pytest.mark.parametrize(
    "kind",
    [
        "interval day to second",
        {"type": "array", "elementType": "interval year", "containsNull": True},
        {"type": "struct", "fields": [field("x", "interval month")]},
        {"type": "map", "keyType": "string", "valueType": "time(6)", "valueContainsNull": True},
    ],
)
def test_types_that_delta_does_not_have_are_named(kind: Any) -> None:
    with pytest.raises(InvalidPipeline) as refused:
        schema.check_rows(DeltaSink("lake", "lake"), Rows(("i", kind)))
    assert (refused.value.code, "'i' is" in refused.value.why) == ("column-type", True)


# ---- tables


@pytest.mark.parametrize("key", [GENERATED, IDENTITY, DEFAULT])
def test_columns_without_their_feature_are_not_filled_in(tmp_path: Path, key: str) -> None:
    """Writers would store null."""
    uri = create(tmp_path, field("v", "long"), field("w", "long", **{key: "1"}))
    with pytest.raises(InvalidPipeline) as refused:
        schema.check(DeltaSink("lake", uri), DeltaTable(uri), Rows(("v", "long")))
    assert (refused.value.code, "'w' is missing (to fill it in" in refused.value.why) == ("columns-differ", True)


@pytest.mark.parametrize(("key", "version"), [(GENERATED, 4), (IDENTITY, 6)])
def test_columns_with_their_feature_may_be_missing(tmp_path: Path, key: str, version: int) -> None:
    uri = create(tmp_path, field("v", "long"), field("w", "long", **{key: "1"}), minWriterVersion=version)
    schema.check(DeltaSink("lake", uri), DeltaTable(uri), Rows(("v", "long")))
    assert schema.left_out(DeltaTable(uri), Rows(("v", "long"))) == ["w"]


def test_a_column_that_needs_a_feature_is_not_added(tmp_path: Path) -> None:
    """delta-rs would change the table's protocol beside what the rows were staged for."""
    uri = create(tmp_path, field("v", "long"))
    rows = Rows(("v", "long"), ("t", {"type": "array", "elementType": "timestamp_ntz", "containsNull": True}))
    with pytest.raises(InvalidPipeline) as refused:
        schema.check(DeltaSink("lake", uri, add_columns=True), DeltaTable(uri), rows)
    assert (refused.value.code, "does not have timestampNtz" in refused.value.why) == ("columns-differ", True)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("kind", "feature"), [("timestamp_ntz", "timestampNtz"), ("variant", "variantType")])
def test_a_staged_table_can_have_its_columns(tmp_path: Path, kind: str, feature: str, deep: bool) -> None:
    column: Any = {"type": "struct", "fields": [field("x", kind)]} if deep else kind
    features = [feature, "columnMapping"]
    uri = create(
        tmp_path,
        field("v", column),
        minReaderVersion=3,
        minWriterVersion=7,
        readerFeatures=features,
        writerFeatures=features,
    )
    staged = DeltaTable(staged_table.create(DeltaTable(uri), "staged-x", False, [], {}))
    assert feature in (staged.protocol().writer_features or [])
    assert "columnMapping" not in (staged.protocol().writer_features or [])


def test_a_table_that_nobody_can_write_is_refused(tmp_path: Path) -> None:
    uri = create(tmp_path, field("n", "long"), minWriterVersion=7, writerFeatures=["appendOnly", "featureOfTomorrow"])
    with pytest.raises(InvalidPipeline) as checked:
        writer(uri).check()
    with pytest.raises(InvalidPipeline) as staged:
        writer(uri).stage(transaction(), Rows(("n", "long")))
    assert (checked.value.code, staged.value.code) == ("table-not-writable", "table-not-writable")
    assert "featureOfTomorrow" in checked.value.why
    assert not list(tmp_path.glob("staged-*"))


@pytest.mark.parametrize("damage", ['{"add":', '{"protocol":{"minReaderVersion":"x"}}', "not JSON"])
def test_a_damaged_log_is_called_that(tmp_path: Path, damage: str) -> None:
    lake = LightDelta(tmp_path / "lake")
    lake.commit(lake.stage(transaction(1), [1]), 1, {})
    handle = lake.stage(transaction(2), [2])
    (tmp_path / "lake" / "_delta_log" / f"{2:020}.json").write_text(damage + "\n")
    with pytest.raises(InvalidPipeline) as checked:
        lake.check()
    with pytest.raises(OutcomeUnknown) as committed:
        lake.commit(handle, 2, {})
    assert (checked.value.code, committed.value.code) == ("table-unreadable", "table-unreadable")


# ---- partitions of a table that is merged into


@pytest.mark.parametrize(
    ("kind", "value", "is_refused"),
    [
        ("decimal(9,2)", "-1.50", True),
        ("decimal(9,2)", "1.50", False),
        ("date", "+10000-01-01", True),
        ("date", "2024-01-01", False),
        ("timestamp", "-0001-01-01 00:00:00", True),
        ("integer", "-1", False),
        ("string", "-1", False),
        ("decimal(9,2)", None, False),
    ],
)
def test_partition_values_that_cannot_be_read_back_are_refused(
    tmp_path: Path, kind: str, value: str | None, is_refused: bool
) -> None:
    uri = create(tmp_path, field("id", "long"), field("p", kind))
    config = DeltaSink("lake", uri, partition_by=["p"], merge=Merge(["id"], ["at"]))
    adds = [{"partitionValues": {"p": value}}]
    if not is_refused:
        return changes.check_staged(config, DeltaTable(uri), adds)
    with pytest.raises(InvalidPipeline) as refused:
        changes.check_staged(config, DeltaTable(uri), adds)
    assert (refused.value.code, str(value) in refused.value.why) == ("merge-partition-value", True)


def test_a_file_without_bounds_of_its_keys_is_merged_with(tmp_path: Path) -> None:
    """The log says nothing of the column, because the table's owner chose other columns when the file was written."""
    from unit.lightdelta import LightMerge

    lake = LightMerge(tmp_path / "lake")
    change = (1, 1, "one", "")
    lake.commit(lake.stage(transaction(1), [change]), 1, {})
    entry = next(Path(lake.uri, "_delta_log").glob("*1.json"))
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            stats = json.loads(action["add"]["stats"])
            for side in ("minValues", "maxValues", "nullCount"):
                del stats[side]["n"]
            action["add"]["stats"] = json.dumps(stats)
    entry.write_text("\n".join(map(json.dumps, actions)) + "\n")
    lake.commit(lake.stage(transaction(2), [(1, 2, "two", "")]), 2, {})
    assert lake.content() == {1: (2, "two")}

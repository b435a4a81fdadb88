"""Tables by name, as definitions have them."""

from __future__ import annotations

from typing import Any

import pytest
from codes import raises

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.pipeline.catalogs import CatalogTable
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.requirements import list_named_tables, place_tables
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource, KafkaSource
from onceonly.spark import catalog


def pipeline(source: Any = None, sinks: Any = None) -> Pipeline:
    read = source or KafkaSource(topic="orders")
    written = sinks or [DeltaSink("orders", table="lake.sales.orders")]
    return Pipeline(name="orders", source=read, transform="jobs.orders:rows", sinks=written)


def test_what_is_found_becomes_part_of_the_definition() -> None:
    named = pipeline(DeltaSource(table="lake.events"))
    assert list_named_tables(named) == {"lake.events", "lake.sales.orders"}
    found = {"lake.events": CatalogTable("/lake/a", "id-a"), "lake.sales.orders": CatalogTable("s3://lake/b", "id-b")}
    located = place_tables(named, found)
    assert Pipeline.from_json(located.to_json()) == located
    [sink], [source] = located.sinks, located.sources
    assert isinstance(sink, DeltaSink) and isinstance(source, DeltaSource)
    assert (sink.path, sink.table_id, source.path, source.table_id) == ("s3://lake/b", "id-b", "/lake/a", "id-a")
    assert source.topic == "events", "the transform's input is called as before"
    assert place_tables(located, found) == located


def test_assets_are_of_the_name_before_and_after_the_plan() -> None:
    named = pipeline(DeltaSource(table="lake.events"))
    located = place_tables(
        named, {"lake.events": CatalogTable("/a", "x"), "lake.sales.orders": CatalogTable("/b", "y")}
    )
    for each in (named, located):
        assert each.sink("orders").asset_uris() == ("catalog://lake/sales/orders",)
        assert each.tables == {"events": "catalog://lake/events"}
    assert located.sink("orders").targets() == DeltaSink("other", path="/b").targets()


def test_definitions_without_names_are_stored_as_before() -> None:
    plain = pipeline(DeltaSource("lake/events"), [DeltaSink("orders", path="lake/orders")]).to_json()
    assert not {"table", "table_id"} & (plain["source"].keys() | plain["sinks"][0].keys())


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": "orders"},
        {"table": "s3://lake/orders"},
        {"table": "a.b.c.d"},
        {"table": "lake.`orders`"},
        {"table": ""},
        {"table": 7},
        {"table": "lake.orders", "path": "lake/orders"},
        {"table": "lake.orders", "table_id": "an-id"},
        {"table_id": "an-id", "path": "lake/orders"},
        {},
    ],
)
def test_anything_but_a_path_or_a_name_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidPipeline):
        DeltaSink("orders", **wrong)
    with pytest.raises(InvalidPipeline):
        DeltaSource(**wrong)


def test_a_pipeline_does_not_read_the_table_that_it_writes_to() -> None:
    with raises(InvalidPipeline, "own-output-read", match=r"table 'lake\.orders', which it writes to"):
        pipeline(DeltaSource(table="lake.orders"), [DeltaSink("orders", table="lake.orders")])
    other = pipeline(DeltaSource("/lake/orders"), [DeltaSink("orders", table="lake.orders")])
    with raises(InvalidPipeline, "own-output-read", match="'/lake/orders', which it writes to"):
        place_tables(other, {"lake.orders": CatalogTable("/lake/orders", "an-id")})


class Session:
    """Spark, as far as a lookup asks it."""

    def __init__(self, **detail: Any) -> None:
        self.detail, self.asked = {"format": "delta", "id": "an-id", "tableFeatures": [], **detail}, ""

    def sql(self, text: str) -> Session:
        self.asked = text
        return self

    def collect(self) -> list[Session]:
        return [self]

    def asDict(self) -> dict[str, Any]:
        if error := self.detail.get("error"):
            raise RuntimeError(error)
        return self.detail


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("file:/lake/my orders", "/lake/my orders"),
        ("file:/lake/50%20off#1", "/lake/50%20off#1"),
        ("file:///lake/orders", "/lake/orders"),
        ("s3a://lake/orders", "s3://lake/orders"),
        ("s3://lake/orders", "s3://lake/orders"),
        ("abfss://lake@account.dfs.core.windows.net/orders", "abfss://lake@account.dfs.core.windows.net/orders"),
        ("hdfs://namenode:8020/orders", "hdfs://namenode:8020/orders"),
    ],
)
def test_locations_become_what_delta_rs_reaches(location: str, path: str) -> None:
    session = Session(location=location)
    assert catalog.find(session, ["lake.my-schema.orders"]) == {"lake.my-schema.orders": CatalogTable(path, "an-id")}
    assert session.asked == "DESCRIBE DETAIL `lake`.`my-schema`.`orders`"


def test_a_location_of_its_platform_alone_is_refused() -> None:
    with raises(InvalidPipeline, "storage-unsupported"):
        catalog.find(Session(location="dbfs:/lake/orders"), ["lake.orders"])


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"])
def test_a_table_of_which_the_catalog_decides_is_refused(feature: str) -> None:
    session = Session(location="s3://lake/orders", tableFeatures=["appendOnly", feature])
    with raises(InvalidPipeline, "table-managed", match=rf"managed by its catalog \({feature}\)"):
        catalog.find(session, ["lake.orders"])


def test_no_answer_is_not_taken_for_no_table() -> None:
    with raises(NotCommitted, "catalog-unreachable", match="Connection refused"):
        catalog.find(Session(error="Connection refused"), ["lake.orders"])

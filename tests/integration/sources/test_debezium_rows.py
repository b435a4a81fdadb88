"""Rows of what a real Debezium has said, on Spark: from bytes, and from values that were decoded before."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest
from integration.debezium.recorded import COLUMNS, comparable, encodings, said, table

from onceonly.debezium import DELETED, ORDER, Changes
from onceonly.errors import InvalidPipeline

pytestmark = pytest.mark.integration
BATCH = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT"
ROW = COLUMNS["lines"].replace("amount DECIMAL(10, 2)", "amount STRING")
ENVELOPE = (
    f"STRUCT<before: STRUCT<{ROW}>, after: STRUCT<{ROW}>, op: STRING, source: STRUCT<lsn: BIGINT, sequence: STRING>>"
)


def batch(spark: Any, name: str) -> Any:
    records = [event.record(schemas=False) for event in said("text", name)]
    return spark.createDataFrame([(*both, "shop", 0, offset) for offset, both in enumerate(records)], BATCH)


def newest(rows: list[Any], keys: list[str]) -> list[dict[str, Any]]:
    last = {tuple(row[key] for key in keys): row for row in sorted(rows, key=lambda row: [row[name] for name in ORDER])}
    return [comparable(_aware(last[key].asDict())) for key in sorted(last) if not last[key][DELETED]]


def _aware(row: dict[str, Any]) -> dict[str, Any]:
    if row.get("changed") is not None:
        row["changed"] = row["changed"].astimezone(UTC)
    return row


def test_every_type_from_bytes(spark: Any) -> None:
    read = Changes(COLUMNS["customers"], ["id"], encodings("text", "customers"))
    rows = read.rows(batch(spark, "customers"))
    kinds = {field.name: field.dataType.simpleString() for field in rows.schema}
    assert kinds["exact"] == "decimal(38,18)" and kinds["seen"] == "timestamp_ntz" and kinds["tags"] == "array<string>"
    assert newest(rows.collect(), ["id"]) == table("customers")


def test_values_that_were_decoded_before(spark: Any) -> None:
    from pyspark.sql import functions as F

    decoded = batch(spark, "lines").withColumn("value", F.from_json(F.col("value").cast("string"), ENVELOPE))
    read = Changes(COLUMNS["lines"], ["order_id", "line"], {"amount": "string"})
    assert newest(read.rows(decoded).collect(), ["order_id", "line"]) == table("lines")


def test_a_record_that_is_refused_is_named(spark: Any) -> None:
    with pytest.raises(Exception, match=r"this record is refused: topic shop partition 0 offset 3: .*emptied"):
        Changes(COLUMNS["visits"], ["id"]).rows(batch(spark, "visits")).collect()


def test_refused_records_may_be_dead_letters(spark: Any) -> None:
    rows, refused = Changes(COLUMNS["visits"], ["id"]).split(batch(spark, "visits"))
    assert [row["id"] for row in rows.collect()] == [1, 2, 3, 1]
    assert refused.columns == ["topic", "partition", "offset", "error"]
    assert [tuple(row)[:3] for row in refused.collect()] == [("shop", 0, 3)]


def test_columns_without_the_key_or_with_other_types_are_refused(spark: Any) -> None:
    records = batch(spark, "visits")
    for columns, why in [
        ("page STRING", "no column"),
        ("id INT, page MAP<INT, INT>", "'page' is map"),
        ("id INT, _lsn INT", "_lsn"),
    ]:
        with pytest.raises(InvalidPipeline) as refused:
            Changes(columns, ["id"]).rows(records)
        assert why in refused.value.why

"""Batches of records as the workers read them, in Arrow's types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from codes import raises
from integration.debezium.recorded import COLUMNS, comparable, encodings, said, table
from pyspark.sql.types import ArrayType, DataType, IntegerType, StringType, StructType
from pyspark.sql.types import _parse_datatype_json_value as parsed

from onceonly.debezium import DELETED, ORDER, Changes, rows
from onceonly.errors import InvalidPipeline

NAMES = {"BIGINT": "long", "INT": "integer", "SMALLINT": "short"}
ARRAYS: dict[str, DataType] = {"ARRAY<STRING>": ArrayType(StringType()), "ARRAY<INT>": ArrayType(IntegerType())}


def type_of(ddl: str) -> StructType:
    """Spark parses it in its JVM, which is not there."""
    made = StructType()
    for name, kind in (
        part.split(" ", 1) for part in ddl.replace(", ", ";").replace(";2)", ",2)").replace(";18)", ",18)").split(";")
    ):
        made = made.add(name, ARRAYS.get(kind) or parsed(NAMES.get(kind, kind.lower())))
    return made


def read(name: str, recording: str, how: Any) -> list[dict[str, Any]]:
    changes = Changes(COLUMNS[name], ["id"], encodings(recording, name))
    type_ = type_of(COLUMNS[name])
    whole = StructType(list(type_))
    for each in ORDER:
        whole = whole.add(each, "long")
    whole = whole.add(DELETED, "boolean").add(rows.ERROR_COLUMN, "string")
    records = [event.record(schemas=False) for event in said(recording, name)]
    batch = [pa.array(part) for part in zip(*[(*both, "shop", 0, at) for at, both in enumerate(records)], strict=True)]
    found = rows._reader(rows.partial(how, rows.make_reader(changes, type_)), whole)(*batch)
    return [row for row in found.to_pylist() if row is not None]


def test_every_type() -> None:
    last = {row["id"]: row for row in read("customers", "text", rows._row_or_fail)}
    assert [comparable(last[id]) for id in sorted(last) if not last[id][DELETED]] == table("customers")


def test_a_record_that_is_refused_is_named_or_told_apart() -> None:
    with pytest.raises(ValueError, match=r"this record is refused: topic shop partition 0 offset 3: .*emptied"):
        read("visits", "default", rows._row_or_fail)
    found = read("visits", "default", rows._row_or_error)
    assert [row["id"] for row in found if row[rows.ERROR_COLUMN] is None] == [1, 2, 3, 1]
    assert [row[DELETED] for row in found if row[rows.ERROR_COLUMN]] == [None]


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        ("page STRING", {}, "no column ['id']"),
        ("id INT, _lsn INT", {}, "['_lsn'] have another meaning"),
        ("id INT", {"encodings": {"seen": "micros"}}, "no column ['seen']"),
        ("id INT", {"without": ["id"]}, "['id'] have another meaning"),
        ("id INT", {"keys": []}, "no keys"),
    ],
)
def test_columns_that_are_no_table_with_a_key_are_refused(columns: str, options: Any, why: str) -> None:
    with raises(InvalidPipeline, "changes-invalid") as refused:
        rows.make_reader(Changes(columns, **{"keys": ["id"], **options}), type_of(columns))
    assert why in refused.value.why


def test_a_type_that_no_value_becomes_is_refused() -> None:
    with raises(InvalidPipeline, "changes-invalid") as refused:
        rows.make_reader(Changes("", ["id"]), StructType().add("id", StructType()))
    assert "'id' is struct<>" in refused.value.why


def test_the_sink_says_which_record_was_refused_and_what_to_do() -> None:
    from onceonly.pipeline.sinks import REFUSED_RECORD, DeltaSink, Merge
    from onceonly.sinks.delta import changes

    sink = DeltaSink("lake", "lake", merge=Merge(["id"], list(ORDER), DELETED))
    raised = ValueError(f"Job aborted: {REFUSED_RECORD}topic shop partition 0 offset 3: it is emptied.\n  at Worker")
    found = changes._explain(sink, raised)
    assert isinstance(found, InvalidPipeline)
    assert found.why == "topic shop partition 0 offset 3: it is emptied."
    assert "Changes(…)" in found.todo
    unordered = changes._explain(sink, ValueError(f"Job aborted: {changes.BAD_CHANGE}'id' is null, {{}}\n  at Worker"))
    assert isinstance(unordered, InvalidPipeline)
    assert (unordered.why, unordered.todo) == ("'id' is null, {}", changes.TODOS[changes.BAD_CHANGE])
    other = OSError("disk full")
    assert changes._explain(sink, other) is other

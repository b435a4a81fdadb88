"""What a gate sees of rows that wait for Kafka."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from codes import raises
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.kafka.registry.test_protobuf_rows import EMPTY, FULL, files, order

from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.gate import bounds
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.registry import HEAD, protobuf_writer
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka import gate_view, registered_schemas
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.kafka.spool import SPOOL_SCHEMA, SpoolFile

STATE = "0123456789abcdef"
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Late",
        "fields": [{"name": "minutes", "type": "int"}, {"name": "key", "type": "string"}],
    }
)


def spooled(folder, *values: bytes | None):
    file = SpoolFile(str(folder), 0)
    rows = [
        {"topic": "late", "partition": None, "key": b"UA", "value": v, "timestamp": 1, "headers": None} for v in values
    ]
    file.write(pa.RecordBatch.from_pylist(rows, SPOOL_SCHEMA))
    file.close()
    return gate_view.SpooledRows(str(folder), (file.name,), len(rows))


def avro(minutes: int) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(json.loads(AVRO)), {"minutes": minutes, "key": "mine"})
    return out.getvalue()


def seen(handle, format: str, schema: str | None = None) -> list[dict]:
    return gate_view.batches(handle, format, schema).read_all().to_pylist()


def test_json_shows_its_fields_and_a_tombstone_has_none(tmp_path):
    rows = seen(spooled(tmp_path, b'{"minutes": 61}', None), "json")
    assert [(row["minutes"], row["key"], row["topic"]) for row in rows] == [(61, "UA", "late"), (None, "UA", "late")]


def test_avro_shows_its_fields_in_place_of_columns_of_the_same_name(tmp_path):
    [row] = seen(spooled(tmp_path, avro(61)), "avro", AVRO)
    assert (row["minutes"], row["key"]) == (61, "mine")
    assert set(gate_view.columns("avro", AVRO) or ()) == set(row)


def test_raw_values_are_shown_as_text(tmp_path):
    rows = seen(spooled(tmp_path, b"61", b"\xff"), "raw")
    assert [row["value"] for row in rows] == ["61", "\ufffd"]
    assert gate_view.columns("raw", None) == list(rows[0])


def test_json_tells_its_columns_only_row_by_row(tmp_path):
    assert gate_view.columns("json", None) is None
    with raises(InvalidPipeline, "rows-unreadable-on-spark"):
        gate_view.frame(spooled(tmp_path, b"{}"), "json", None, None)


# ---- with the types of what was staged


def field(name: str, kind: object) -> dict:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def typed(handle, kind: object):
    return replace(handle, schema={"type": "struct", "fields": [field("value", kind)]})


def record(**kinds: object) -> dict:
    return {"type": "struct", "fields": [field(name, kind) for name, kind in kinds.items()]}


def test_a_batch_that_begins_with_a_tombstone_is_seen(tmp_path):
    handle = spooled(tmp_path, None, b'{"delay": 99999}', b'{"delay": -77777, "exact": 0.10}')
    assert [row.get("delay") for row in seen(handle, "json")] == [None, 99999, -77777], "also where no type is known"
    rows = seen(typed(handle, record(delay="integer", exact="decimal(5,2)")), "json")
    assert [(row["delay"], row["exact"]) for row in rows] == [(None, None), (99999, None), (-77777, Decimal("0.10"))]
    assert [row["value"] for row in seen(spooled(tmp_path, None, b"BAD"), "raw")] == [None, "BAD"]


def test_a_map_shows_the_fields_of_every_row(tmp_path):
    handle = spooled(tmp_path, b'{"a": "1"}', b'{"a": "2", "secret": "X"}')
    for rows in (
        seen(handle, "json"),
        seen(typed(handle, {"type": "map", "keyType": "string", "valueType": "string"}), "json"),
    ):
        assert [row["secret"] for row in rows] == [None, "X"]


def test_times_are_times(tmp_path):
    handle = spooled(tmp_path, b'{"at": "2013-01-01T00:00:00.000001Z"}')
    [row] = seen(typed(handle, record(at="timestamp")), "json")
    assert row["at"] == datetime(2013, 1, 1, 0, 0, 0, 1, UTC)
    first = datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)
    assert row["timestamp"] == first
    assert bounds.find_newest(gate_view.batches(handle, "json", None), "late", "timestamp") == first


def test_a_type_that_arrow_has_not_is_left_to_spark(tmp_path):
    assert gate_view.batches(typed(spooled(tmp_path, b"{}"), record(a="variant")), "json", None) is None


def test_rows_are_not_all_in_memory(tmp_path):
    batches = gate_view.batches(typed(spooled(tmp_path, *[b'{"n": 1}'] * 10_000), record(n="long")), "json", None)
    assert max(batch.num_rows for batch in batches) < 5_000


def test_protobuf_shows_the_fields_of_its_message(tmp_path):
    made = order()
    part = registered_schemas.SchemaPart("value", "protobuf", "order.desc", "", "shop.Order", files(made))
    write = protobuf_writer.writer(part.files, part.record)
    values = [b"\0\0\0\0\7" + part.indexes + write(row) for row in (FULL, EMPTY)]
    rows = gate_view.batches(spooled(tmp_path, *values, None), "protobuf", part, HEAD).read_all()
    assert rows.column_names == gate_view.columns("protobuf", part)
    fields = list(FULL)
    assert rows.select(fields).to_pylist() == [FULL, {**dict.fromkeys(fields), **EMPTY}, dict.fromkeys(fields)]
    assert [row["topic"] for row in rows.to_pylist()] == ["late"] * 3


TEXT = st.text(st.sampled_from('a"\n\\é\u2028\x01'), max_size=3)
VALUES = st.fixed_dictionaries(
    {
        "text": st.none() | TEXT,
        "large": st.none() | st.integers(-(2**63), 2**63 - 1),
        "double": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "many": st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=2),
        "named": st.none() | st.dictionaries(TEXT, st.none() | st.booleans(), max_size=2),
    }
)
KINDS = {
    "text": "string",
    "large": "long",
    "double": "double",
    "many": {"type": "array", "elementType": "integer"},
    "named": {"type": "map", "keyType": "string", "valueType": "boolean"},
}
NULLABLE = {
    "text": "string",
    "large": "long",
    "double": "double",
    "many": {"type": "array", "items": ["null", "int"]},
    "named": {"type": "map", "values": ["null", "boolean"]},
}
EVERY = {
    "type": "record",
    "name": "Every",
    "fields": [{"name": name, "type": ["null", kind]} for name, kind in NULLABLE.items()],
}


@pytest.mark.parametrize("format", ["json", "avro"])
@settings(deadline=None, max_examples=30)
@given(rows=st.lists(st.none() | VALUES, min_size=1, max_size=5))
def test_what_is_seen_is_what_was_spooled(tmp_path_factory, format, rows):
    write = (lambda row: json.dumps(row).encode()) if format == "json" else every
    handle = spooled(tmp_path_factory.mktemp("spool"), *(row and write(row) for row in rows))
    found = seen(typed(handle, record(**KINDS)), format, json.dumps(EVERY) if format == "avro" else None)
    for one, row in zip(found, rows, strict=True):
        expected = row or dict.fromkeys(KINDS)
        named = expected["named"]
        assert {name: one[name] for name in KINDS} == {
            **expected,
            "named": named if named is None else list(named.items()),
        }


def every(row: dict) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(EVERY), row)
    return out.getvalue()


def recorded(rows: gate_view.SpooledRows, txn: str) -> dict:
    """The handle of a transaction with these rows, which was staged in late mode."""
    return {
        "txn": txn,
        "guarantee": "exactly-once",
        "cluster": "cluster",
        "topics": {"late": "id"},
        "slot": None,
        "folder": rows.folder,
        "rows": rows.rows,
        "parts": [{"spool": file, "rows": rows.rows, "tx": None} for file in rows.files],
    }


@pytest.mark.parametrize("txn", ["../victim", f"{STATE}-flights-late-1-1-0123456789ab"])
def test_another_spool_is_not_looked_at(tmp_path, txn):
    """Whoever can write to the state table could else have any Parquet file shown in the Data Docs."""
    sink = KafkaWriter(
        KafkaSink(name="late", topic="late"), KafkaConnection.plaintext("127.0.0.1:1"), True, str(tmp_path), tmp_path
    )
    own = spooled(tmp_path / f"{STATE}-flights-late-1-1-0123456789ab", b"7")
    victim = spooled(tmp_path / "victim", b"secret")
    if txn == "../victim":
        with raises(CannotPublish, "handle-damaged"):
            sink.read_staged(recorded(victim, txn))
    else:
        forged = recorded(replace(own, folder=victim.folder), txn)
        assert [row["value"] for row in sink.read_staged(forged).read_all().to_pylist()] == ["7"]

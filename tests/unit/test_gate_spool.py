"""What a gate sees of rows that wait for Kafka."""

import io
import json

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from onceonly.errors import InvalidPipeline
from onceonly.sinks import kafkalook
from onceonly.sinks.kafkaspool import SCHEMA, SpoolFile

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
    file.write(pa.RecordBatch.from_pylist(rows, SCHEMA))
    file.close()
    return {"folder": str(folder), "rows": len(rows), "parts": [{"spool": file.name, "rows": len(rows), "tx": None}]}


def avro(minutes: int) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(json.loads(AVRO)), {"minutes": minutes, "key": "mine"})
    return out.getvalue()


def seen(handle, format: str, schema: str | None = None) -> list[dict]:
    return kafkalook.batches(handle, format, schema).read_all().to_pylist()


def test_json_shows_its_fields_and_a_tombstone_has_none(tmp_path):
    rows = seen(spooled(tmp_path, b'{"minutes": 61}', None), "json")
    assert [(row["minutes"], row["key"], row["topic"]) for row in rows] == [(61, "UA", "late"), (None, "UA", "late")]


def test_avro_shows_its_fields_in_place_of_columns_of_the_same_name(tmp_path):
    [row] = seen(spooled(tmp_path, avro(61)), "avro", AVRO)
    assert (row["minutes"], row["key"]) == (61, "mine")
    assert set(kafkalook.columns("avro", AVRO) or ()) == set(row)


def test_raw_values_are_shown_as_text(tmp_path):
    rows = seen(spooled(tmp_path, b"61", b"\xff"), "raw")
    assert [row["value"] for row in rows] == ["61", "\ufffd"]
    assert kafkalook.columns("raw", None) == list(rows[0])


def test_json_tells_its_columns_only_row_by_row(tmp_path):
    assert kafkalook.columns("json", None) is None
    with pytest.raises(InvalidPipeline, match=r"Raise Gate\(in_process_rows"):
        kafkalook.frame(spooled(tmp_path, b"{}"), "json", None, None)

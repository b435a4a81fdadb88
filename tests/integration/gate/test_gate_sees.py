"""What a gate sees is what was staged: every sink, every format and every type that it can carry, here and on Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pyarrow as pa
import pytest
from codes import raises
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from integration.readers.kafka_reader import new_topic
from pyspark.errors import PySparkException
from unit.file_handles import make_handle

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import Sink
from onceonly.errors import InvalidPipeline
from onceonly.kafka.connection import KafkaConnection
from onceonly.pipeline.registry import OWN
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.files import gate_view as filelook
from onceonly.sinks.files.sink import FileWriter
from onceonly.sinks.kafka import gate_view as kafkalook
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.kafka.spool import SPOOL_SCHEMA, SpoolFile
from onceonly.sinks.staging import row_types

pytestmark = [pytest.mark.integration]
CENTS_IN_AVRO = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
AVRO = {
    "type": "record",
    "name": "Every",
    "fields": [
        {"name": name, "type": ["null", kind]}
        for name, kind in {
            "truth": "boolean",
            "tiny": "int",
            "small": "int",
            "whole": "int",
            "large": "long",
            "single": "float",
            "double": "double",
            "cents": CENTS_IN_AVRO,
            "exact": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18},
            "text": "string",
            "day": {"type": "int", "logicalType": "date"},
            "at": {"type": "long", "logicalType": "timestamp-micros"},
            "local": {"type": "long", "logicalType": "local-timestamp-micros"},
            "bytes": "bytes",
            "words": {"type": "array", "items": ["null", "string"]},
            "pair": {
                "type": "record",
                "name": "Pair",
                "fields": [
                    {
                        "name": "cents",
                        "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}],
                    },
                    {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
                    {"name": "some", "type": ["null", {"type": "array", "items": ["null", "double"]}]},
                ],
            },
            "named": {
                "type": "map",
                "values": [
                    "null",
                    {
                        "type": "record",
                        "name": "Named",
                        "fields": [
                            {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
                            {"name": "raw", "type": ["null", "bytes"]},
                        ],
                    },
                ],
            },
        }.items()
    ],
}
Rows = list[dict[str, Any]]

TEXT = st.text(st.sampled_from("a7,;\"'\\ \t\n\r#|é\u2028\ufeff{}[]="), max_size=6)
TIME = st.datetimes(datetime(1700, 1, 1), datetime(2900, 1, 1))
CENTS = st.decimals(Decimal(-999), Decimal(999), places=2)
FLOAT = st.floats(width=32)
PLAIN: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "truth": ("boolean", st.booleans()),
    "tiny": ("tinyint", st.integers(-128, 127)),
    "small": ("smallint", st.integers(-(2**15), 2**15 - 1)),
    "whole": ("int", st.integers(-(2**31), 2**31 - 1)),
    "large": ("bigint", st.integers(-(2**63), 2**63 - 1)),
    "single": ("float", FLOAT),
    "double": ("double", st.floats()),
    "cents": ("decimal(5,2)", CENTS),
    "exact": ("decimal(38,18)", st.decimals(Decimal(-(10**19)), Decimal(10**19), places=18)),
    "text": ("string", TEXT),
    "day": ("date", st.dates(date(1, 1, 1), date(9999, 12, 31))),
    "at": ("timestamp", TIME.map(lambda at: at.replace(tzinfo=UTC))),
    "local": ("timestamp_ntz", TIME),
}
NESTED: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "bytes": ("binary", st.binary(max_size=4)),
    "words": ("array<string>", st.lists(st.none() | TEXT, max_size=2)),
    "pair": (
        "struct<cents: decimal(5,2), at: timestamp, some: array<double>>",
        st.fixed_dictionaries(
            {
                "cents": st.none() | CENTS,
                "at": st.none() | PLAIN["at"][1],
                "some": st.none() | st.lists(st.none() | st.floats(), max_size=2),
            }
        ),
    ),
    "named": (
        "map<string, struct<day: date, raw: binary>>",
        st.dictionaries(
            TEXT,
            st.none()
            | st.fixed_dictionaries({"day": st.none() | PLAIN["day"][1], "raw": st.none() | st.binary(max_size=2)}),
            max_size=2,
        ),
    ),
}
BY: dict[str, tuple[str, st.SearchStrategy[Any]]] = {  # columns to partition by
    "code": ("string", st.sampled_from(["007", "a/b +%#="])),
    "hour": ("timestamp", st.just(datetime(2013, 1, 1, 12, 30, 1, 5, UTC))),
}
ALL = PLAIN | NESTED | BY
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
FORMATS: dict[str, tuple[str, ...]] = {  # as the code has them: a new one has to be looked at here
    "files": get_args(get_type_hints(FileSink)["format"]),
    # Protobuf is written with a registry only, and shown undecoded: tests/integration/sources/test_registered_values.py
    "kafka": tuple(name for name in get_args(get_type_hints(KafkaSink)["format"]) if name != "protobuf"),
    "delta": ("",),
}
EACH = [(kind, format) for kind in OWN if kind != "state" for format in FORMATS[kind]]


def columns(kind: str, format: str) -> dict[str, tuple[str, st.SearchStrategy[Any]]]:
    match kind, format:
        case "files", "csv":
            return PLAIN | BY
        case "kafka", "raw":
            return {"value": ("string", TEXT)}
        case "kafka", _:
            return PLAIN | NESTED
    return ALL


@pytest.mark.parametrize(("kind", "format"), EACH)
def test_the_gate_sees_what_is_staged(kind: str, format: str, place: Place) -> None:
    """Nulls, and for Kafka tombstones, come first and last: whoever looks at the first rows alone learns nothing."""
    held = columns(kind, format)
    row = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in held.items()})
    nothing = dict.fromkeys(held)

    @settings(max_examples=1, derandomize=True, deadline=None, phases=[Phase.generate])
    @given(st.lists(row, min_size=4, max_size=4))
    def check(some: Rows) -> None:
        rows = [nothing, *some, nothing]
        expected, staged = place.kafka(format, rows) if kind == "kafka" else place.table(kind, format, rows)
        handle, sink = staged
        here = sink.read_staged(handle)
        assert (here is None) == ((kind, format) == ("files", "avro"))
        if here is not None:
            assert seen(here.read_all()) == expected
        assert seen(sink.staged_frame(handle, place.spark).toArrow()) == expected

    check()


class Place:
    """Where everything is staged."""

    def __init__(self, folder: Path, spark: Any, broker: str) -> None:
        self.folder, self.spark, self.broker = folder, spark, broker
        self.number = 0

    def table(self, kind: str, format: str, rows: Rows) -> tuple[list[str], tuple[Handle, Sink]]:
        held, by = columns(kind, format), list(BY)
        sink: Sink
        if kind == "delta":
            path = str(self.folder / f"delta{self.number}")
            sink = DeltaWriter(DeltaSink("lake", path, partition_by=by), path, pytest.fail)
        else:
            path = str(self.folder / "files")
            sink = FileWriter(FileSink("lake", path, format=format, partition_by=by), path)  # type: ignore[arg-type]
        table = self.arrow(rows, held)
        return seen(table), (self.stage(sink, self.frame(table).repartition(2)), sink)

    def kafka(self, format: str, rows: Rows) -> tuple[list[str], tuple[Handle, Sink]]:
        """Each row with a key that need not be text; the first and the last one are tombstones."""
        table = self.arrow(rows, columns("kafka", format))
        keys = [b"ok", None, b"\xff", *([b"k"] * len(rows))][: len(rows)]
        beside = {"k": pa.array(keys, pa.binary()), "sent": pa.array([NOON] * len(rows), pa.timestamp("us", "UTC"))}
        frame = self.frame(pa.table({**dict(zip(table.column_names, table.columns, strict=True)), **beside}))
        tombstone = " AND ".join(f"{name} IS NULL" for name in table.column_names)
        value = (
            "value"
            if format == "raw"
            else f"CASE WHEN NOT ({tombstone}) THEN struct({', '.join(table.column_names)}) END"
        )
        sink = self.kafka_sink(format)
        texts = [key and key.decode(errors="replace") for key in keys]
        about = [{"topic": sink.config.topic, "partition": None, "key": key, "timestamp": NOON} for key in texts]
        expected = [shown(one | row) for one, row in zip(about, table.to_pylist(), strict=True)]
        return sorted(expected), (
            self.stage(sink, frame.selectExpr("k AS key", "sent AS timestamp", f"{value} AS value")),
            sink,
        )

    def kafka_sink(self, format: str) -> KafkaWriter:
        schema = "every.avsc" if format == "avro" else None
        (self.folder / "every.avsc").write_text(json.dumps(AVRO))
        topic = new_topic(self.broker, 1)
        config = KafkaSink(name="lake", topic=topic, format=format, schema=schema, mode="late")  # type: ignore[arg-type]
        connection = KafkaConnection.plaintext(self.broker)
        return KafkaWriter(config, connection, True, str(self.folder / "spool"), self.folder)

    def arrow(self, rows: Rows, held: dict[str, tuple[str, Any]]) -> pa.Table:
        ddl = ", ".join(f"{name} {kind}" for name, (kind, _) in held.items())
        return pa.Table.from_pylist(rows, row_types.arrow(row_types.read_schema(self.spark.createDataFrame([], ddl))))

    def frame(self, table: pa.Table) -> Any:
        """Spark takes a time without a zone for one with a zone, unless it is told."""
        frame = self.spark.createDataFrame(table)
        return frame.withColumn("local", frame["local"].cast("timestamp_ntz")) if "local" in frame.columns else frame

    def stage(self, sink: Sink, rows: Any) -> Handle:
        self.number += 1
        txn = Transaction("0123456789ab", "flights", "lake", self.number, 1, f"nonce{self.number}")
        handle: Handle = json.loads(json.dumps(sink.stage(txn, rows)))
        return handle


@pytest.fixture
def place(tmp_path: Path, spark: Any, broker: str) -> Place:
    return Place(tmp_path, spark, broker)


def seen(table: pa.Table) -> list[str]:
    return sorted(map(shown, table.to_pylist()))


def shown(row: dict[str, Any]) -> str:
    return repr([(name, plain(row[name])) for name in sorted(row)])


def plain(value: Any) -> Any:
    """A time says its zone in one way; maps are in no order."""
    match value:
        case datetime():
            return value.isoformat()
        case dict():
            return {name: plain(value[name]) for name in sorted(value)}
        case [tuple(), *_]:
            return sorted((key, repr(plain(each))) for key, each in value)
        case list():
            return [plain(item) for item in value]
    return value


def test_a_map_shows_each_field_of_any_row(place: Place) -> None:
    """None of them is in the first row, and no type is told by the second one."""
    maps = [None, {"a": None}, {"b": Decimal("0.10")}, {}]
    sink, none = place.kafka_sink("json"), {"a": None, "b": None}
    rows = place.spark.createDataFrame([(entries,) for entries in maps], "value map<string, decimal(5,2)>").coalesce(1)
    handle = place.stage(sink, rows)
    about = {"topic": sink.config.topic, "partition": None, "key": None, "timestamp": None}
    expected = sorted(shown(about | none | (entries or {})) for entries in maps)
    assert seen(sink.read_staged(handle).read_all()) == expected
    assert seen(sink.staged_frame(handle, place.spark).toArrow()) == expected


def test_types_that_only_spark_has_are_looked_at_there(place: Place) -> None:
    path = str(place.folder / "files")
    sink = FileWriter(FileSink("lake", path, format="csv"), path)
    handle = place.stage(sink, place.spark.sql("SELECT INTERVAL '1 02' DAY TO HOUR AS span, 1 AS n"))
    assert sink.read_staged(handle) is None
    assert sink.staged_frame(handle, place.spark).where("span IS NOT NULL").count() == 1


def test_what_csv_would_lose_is_refused(place: Place) -> None:
    """A row whose only column is null would be no row."""
    path = str(place.folder / "files")
    sink = FileWriter(FileSink("lake", path, format="csv"), path)
    with raises(InvalidPipeline, "columns-unsuitable", match="'text' is the only column in the files"):
        place.stage(sink, place.spark.createDataFrame([(None,), ("a",)], "text STRING"))
    texts = [" a ", "", "a"]
    frame = place.spark.createDataFrame([(text, None) for text in texts], "text STRING, empty STRING").coalesce(1)
    [file] = place.stage(sink, frame)["files"]
    [folder] = Path(f"{place.folder}/.files.staged").iterdir()
    assert (folder / "data" / file["staged"]).read_text() == 'text,empty\n a ,\n"",\na,\n'


DAMAGED = {"csv": "n,text\nx,a\n", "json": '{"n": "x", "text": "a"}\n'}
OF_NUMBERS = {
    "type": "struct",
    "fields": [
        {"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in {"n": "integer", "text": "string"}.items()
    ],
}


@pytest.mark.parametrize("format", DAMAGED)
def test_what_spark_cannot_read_of_files_is_an_error_and_no_null(spark: Any, tmp_path: Path, format: str) -> None:
    (tmp_path / f"a.{format}").write_text(DAMAGED[format])
    with pytest.raises(PySparkException, match=r"MALFORMED|FAILFAST"):
        filelook.frame(make_handle(format, OF_NUMBERS), str(tmp_path), spark).toArrow()


def test_so_it_is_of_json_for_kafka(spark: Any, tmp_path: Path) -> None:
    file = SpoolFile(str(tmp_path), 0)
    row = {"topic": "t", "partition": None, "key": None, "timestamp": 1, "headers": None}
    file.write(pa.RecordBatch.from_pylist([{**row, "value": b'{"n": "x", "text": "a"}'}], SPOOL_SCHEMA))
    file.close()
    schema = {"fields": [{"name": "value", "type": OF_NUMBERS}]}
    spooled = kafkalook.SpooledRows(str(tmp_path), (file.name,), 1, schema)
    with pytest.raises(PySparkException, match=r"MALFORMED|FAILFAST"):
        kafkalook.frame(spooled, "json", None, spark).toArrow()


def test_text_that_is_none_is_shown_in_files_and_tables(spark: Any, tmp_path: Path) -> None:
    """As a cast of bytes leaves it."""
    rows = spark.sql("SELECT CAST(X'636166E9' AS STRING) AS text, array(CAST(X'E9' AS STRING)) AS texts")
    files, lake = str(tmp_path / "files"), str(tmp_path / "lake")
    for number, sink in enumerate(
        [FileWriter(FileSink("lake", files), files), DeltaWriter(DeltaSink("lake", lake), lake, pytest.fail)]
    ):
        txn = Transaction("0123456789ab", "flights", "lake", number + 1, 1, f"nonce{number}")
        found = sink.read_staged(json.loads(json.dumps(sink.stage(txn, rows)))).read_all()
        assert found.to_pylist() == [{"text": "caf\ufffd", "texts": ["\ufffd"]}]

"""Spark's JVM and its Python workers stage the same: the same records, the same spool, and the same refusals."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from codes import raises
from integration.readers.kafka_reader import committed, new_topic
from xxhash64 import xxhash64

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.errors import InvalidPipeline
from onceonly.kafka.connection import KafkaConnection
from onceonly.pipeline.sinks import KafkaSink
from onceonly.settings import Settings, Writer
from onceonly.sinks.kafka import jvm_writer, spool
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.spark import jvm_jar
from onceonly.testing.fakes import FakeReceipts

pytestmark = pytest.mark.integration
NOW = datetime.now(UTC).replace(microsecond=0)
HEADERS = "headers array<struct<key:string,value:binary>>"
TYPES = f"topic STRING, partition INT, key BINARY, value BINARY, timestamp TIMESTAMP, {HEADERS}"
ROOT = Path(__file__).parents[3]


class Staged:
    """One sink, staged by one writer.

    Args:
        topics: that the sink has; the rows name them.
    """

    def __init__(self, folder: Path, bootstrap: str, topics: list[str], writer: Writer, **sink: Any) -> None:
        config = KafkaSink(name="out", topics=topics, format="raw", **sink)
        self.bootstrap, self.topics, self.folder = bootstrap, topics, folder
        connection = KafkaConnection.plaintext(bootstrap)
        self.sink = KafkaWriter(config, connection, False, str(folder / writer), folder, writer=writer)
        self.txn = Transaction(uuid.uuid4().hex[:12], "copying", "out", 1, 1, uuid.uuid4().hex[:12])

    def stage(self, rows: Any) -> Handle:
        return self.sink.stage(self.txn, rows)

    def commit(self, handle: Handle) -> list[Any]:
        """Publish, and return what a plain consumer finds, without the times that brokers and clients gave."""
        self.sink.commit(handle, 1, FakeReceipts(self.folder))
        found = []
        for topic in self.topics:
            for record in committed(self.bootstrap, topic):
                time = record.timestamp if record.timestamp < NOW.timestamp() * 1000 else None
                found.append((topic, record.partition, record.key, record.value, time, record.headers))
        return found

    def spooled(self, handle: Handle) -> list[dict[str, Any]]:
        rows = []
        for part in handle["parts"]:
            rows += pa.Table.from_batches(spool.read(handle["folder"], part["spool"])).to_pylist()
        return rows


def rows_of(spark: Any, topics: list[str]) -> Any:
    """Every part of a record, present and absent, with whatever bytes."""
    one, two = topics
    old = NOW - timedelta(hours=1)
    header = [("trace", b"\x00\xff"), ("trace", None), ("", b""), ("ключ", "знач".encode())]
    rows = [
        (one, None, b"a", b"1", None, None),
        (one, None, b"", b"", None, []),
        (one, 0, None, None, old, header),
        (two, 1, b"k" * 300, b"\x80\x81" * 50_000, old + timedelta(milliseconds=7), None),
        (two, None, b"b", None, None, [("h", None)]),
    ]
    rows += [(one if n % 3 else two, None, b"key %d" % n, b"value %d" % n, None, None) for n in range(400)]
    return spark.createDataFrame(rows, TYPES).repartition(3, "value")


def staged_by_each(tmp_path: Path, broker: str, spark: Any, **sink: Any) -> list[tuple[list[Any], list[Any]]]:
    found, digests = [], []
    for writer in ("jvm", "python"):
        topics = [new_topic(broker, 4), new_topic(broker, 2)]
        staged = Staged(tmp_path, broker, topics, writer, **sink)  # type: ignore[arg-type]
        handle = staged.stage(rows_of(spark, topics))
        assert handle["writer"] == writer
        digests.append(handle["digest"])
        names = {topic: f"topic {number}" for number, topic in enumerate(topics)}
        spooled = [
            {**row, "topic": names[row["topic"]], "headers": row["headers"] or []} for row in staged.spooled(handle)
        ]
        records = [(names[topic], *record) for topic, *record in staged.commit(handle)]
        found.append((sorted(records, key=repr), sorted(spooled, key=repr)))
        assert len(records) == 405
        assert handle["digest"] == digest_of(records)
    assert digests[0] == digests[1]
    return found


def digest_of(records: list[Any]) -> str:
    total = 0
    for _, _, key, value, *_ in records:
        hash = 42
        for part in (key, value):
            if part is not None:
                hash = xxhash64(part, hash)
        total += hash
    return f"{total % 2**64:016x}"


@pytest.mark.parametrize("ids", ["unique", "pool"])
def test_records_and_spools_are_the_same(tmp_path: Path, broker: str, spark: Any, ids: str) -> None:
    (by_jvm, spooled_by_jvm), (by_python, spooled_by_python) = staged_by_each(tmp_path, broker, spark, ids=ids)
    assert by_jvm == by_python
    assert spooled_by_jvm == spooled_by_python


MANY = """SELECT IF(id % 1000 < 500, '{one}', IF(id % 2 = 0, '{one}', '{two}')) AS topic,
    CAST(IF(id % 9 = 0, 0, NULL) AS INT) AS partition,
    IF(id % 7 = 0, NULL, CAST(CAST(id AS STRING) AS BINARY)) AS key,
    IF(id % 11 = 0, NULL, CAST(repeat(sha2(CAST(id AS STRING), 256), CAST(id % 20 AS INT)) AS BINARY)) AS value,
    IF(id % 4 = 0, NULL, TIMESTAMP '{now}' - make_interval(0, 0, 0, 0, 0, 0, id % 3600)) AS timestamp,
    CASE id % 5 WHEN 0 THEN NULL WHEN 1 THEN array()
        WHEN 2 THEN array(named_struct('key', 'h', 'value', CAST(NULL AS BINARY)))
        ELSE array(named_struct('key', 'h', 'value', X'00FF'), named_struct('key', '', 'value', X'')) END AS headers
    FROM range(0, 30000, 1, 2)"""


@pytest.mark.parametrize(
    "parts", [["topic", "key", "value"], ["topic", "partition", "key", "value", "timestamp", "headers"]]
)
def test_every_reader_finds_the_same_in_spools_of_the_jvm(
    tmp_path: Path, broker: str, spark: Any, parts: list[str]
) -> None:
    """Of several row groups, with parts absent and present in turns; `headers` of no element are null there."""
    topics = [new_topic(broker, 2), new_topic(broker, 2)]
    query = MANY.format(one=topics[0], two=topics[1], now=NOW.strftime("%Y-%m-%d %H:%M:%S"))
    rows = spark.sql(query).select(*parts)
    staged = Staged(tmp_path, broker, topics, "jvm")
    handle = staged.stage(rows)
    files = [str(Path(handle["folder"]) / part["spool"]) for part in handle["parts"]]
    assert min(pq.ParquetFile(file).num_row_groups for file in files) > 1
    expected = sorted((spooled_form(record) for record in rows.toArrow().to_pylist()), key=repr)
    with duckdb.connect() as connection:
        by_duckdb = connection.read_parquet(files).to_arrow_table()
    found = {
        "pyarrow": pa.concat_tables(pq.read_table(file) for file in files),
        "DuckDB": by_duckdb,
        "Spark": spark.read.parquet(*files).toArrow(),
    }
    for reader, table in found.items():
        read = sorted((tuple(record[name] for name in parts) for record in table.to_pylist()), key=repr)
        assert read == expected, reader


def spooled_form(record: dict[str, Any]) -> tuple[Any, ...]:
    if record.get("timestamp") is not None:
        record["timestamp"] = round(record["timestamp"].timestamp() * 1000)
    return tuple(value if value != [] else None for value in record.values())


def row(**parts: Any) -> Callable[[list[str]], tuple[Any, ...]]:
    def make(topics: list[str]) -> tuple[Any, ...]:
        plain = {"topic": topics[0], "partition": None, "key": b"k", "value": b"v", "timestamp": None, "headers": None}
        return tuple({**plain, **parts}.values())

    return make


STAMPED = {"message_timestamp_type": "LogAppendTime"}
ONE_DAY = {"message_timestamp_before_max_ms": "86400000"}
REFUSED: Mapping[str, tuple[Callable[[list[str]], tuple[Any, ...]], dict[str, str]]] = {
    "topic": (row(topic="elsewhere"), {}),
    "no topic": (row(topic=None), {}),
    "partition": (row(partition=2), {}),
    "partition below": (row(partition=-1), {}),
    "key": (row(key=None), {"cleanup_policy": "compact"}),
    "before_1970": (row(timestamp=datetime(1969, 12, 31, tzinfo=UTC)), {}),
    "before_1970 by a stamp": (
        row(timestamp=datetime(1969, 12, 31, tzinfo=UTC)),
        {"message_timestamp_type": "LogAppendTime"},
    ),
    "start_of_1970": (row(timestamp=datetime(1970, 1, 1, tzinfo=UTC)), {}),
    "too_old": (row(timestamp=NOW - timedelta(days=2)), ONE_DAY),
    "too_far_ahead": (row(timestamp=NOW + timedelta(hours=2)), {}),
    "header": (row(headers=[("ok", b""), (None, b"")]), {}),
    "header with zero": (row(headers=[("a\0b", b"")]), {}),
    "size": (row(value=b"x" * 2_000_000), {}),
    "size of headers": (row(headers=[("h", b"x" * 1_048_600)]), {}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_are_the_same(tmp_path: Path, broker: str, spark: Any, what: str) -> None:
    make, config = REFUSED[what]
    messages = []
    for writer in ("jvm", "python"):
        topics = [new_topic(broker, 2, **config)]
        staged = Staged(tmp_path, broker, topics, writer)  # type: ignore[arg-type]
        good = row(value=b"good")(topics)
        rows = spark.createDataFrame([good, good, make(topics)], TYPES).coalesce(1)
        with raises(InvalidPipeline, "row-not-accepted") as refusal:
            staged.stage(rows)
        messages.append(without_times(str(refusal.value)).replace(topics[0], "TOPIC"))
        assert committed(broker, topics[0]) == []
    assert messages[0] == messages[1]
    assert "row 2 of Spark partition 0" in messages[0]


def without_times(message: str) -> str:
    """Without the limit that each computes from its clock."""
    words = message.split()
    return " ".join(word for word in words if not word.startswith(str(NOW.year)))


def test_each_rule_of_the_jvm_has_words() -> None:
    source = (ROOT / "src/java/onceonly/kafka/RecordLimits.java").read_text("utf-8")
    rules = {part.split('"')[0] for part in source.split('refusal("')[1:]}
    assert rules == {what.split()[0] for what in REFUSED if what != "no topic"}


def test_sizes_at_the_limit_are_the_same(tmp_path: Path, broker: str, spark: Any) -> None:
    """Around the largest row that fits, both refuse the same ones, and the brokers take the others."""
    verdicts: dict[str, list[bool]] = {"jvm": [], "python": []}
    for writer, accepted in verdicts.items():
        topics = [new_topic(broker, 1, max_message_bytes="5000")]
        for size in range(4915, 4935):
            staged = Staged(tmp_path, broker, topics, writer)  # type: ignore[arg-type]
            rows = spark.createDataFrame([row(value=b"x" * size, headers=[("h", b"v")])(topics)], TYPES)
            try:
                staged.commit(staged.stage(rows))
                accepted.append(True)
            except InvalidPipeline as error:
                assert error.code == "row-not-accepted"
                accepted.append(False)
    assert verdicts["jvm"] == verdicts["python"]
    assert set(verdicts["jvm"]) == {True, False}


def test_plan_and_settings_show_no_login(
    tmp_path: Path, broker: str, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a job runs, only the session's setting holds it; afterwards nothing does."""
    topics, seen = [new_topic(broker, 1)], []
    describe = jvm_writer._describe_job

    def described(*arguments: Any) -> dict[str, Any]:
        seen.append(json.dumps(describe(*arguments)))
        return describe(*arguments)

    monkeypatch.setattr(jvm_writer, "_describe_job", described)
    staged = Staged(tmp_path, broker, topics, "jvm")
    staged.stage(spark.createDataFrame([row()(topics)], TYPES))
    assert len(seen) == 1
    left = spark.sql("SET").collect()
    assert not [setting for setting in left if setting[0].startswith(jvm_writer.SETTING)]
    assert not list(tmp_path.rglob("receipts-*"))


def test_a_jar_of_another_version_is_refused(
    tmp_path: Path, broker: str, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm_jar, "packaged_version", lambda: "0123456789ab")
    for writer in ("jvm", "auto"):
        staged = Staged(tmp_path, broker, [new_topic(broker, 1)], writer)  # type: ignore[arg-type]
        with raises(InvalidPipeline, "jvm-jar-differs"):
            staged.stage(spark.createDataFrame([row()(staged.topics)], TYPES))


def test_without_the_jar_python_writes(
    tmp_path: Path, broker: str, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm_jar, "packaged_version", lambda: None)
    staged = Staged(tmp_path, broker, [new_topic(broker, 1)], "auto")
    handle = staged.stage(spark.createDataFrame([row()(staged.topics)], TYPES))
    assert handle["writer"] == "python"
    assert len(staged.commit(handle)) == 1
    asked = Staged(tmp_path, broker, staged.topics, "jvm")
    with raises(InvalidPipeline, "writer-not-available"):
        asked.stage(spark.createDataFrame([row()(staged.topics)], TYPES))


@pytest.mark.parametrize("text", ["java", "JVM"])
def test_another_word_for_a_writer_is_refused(text: str) -> None:
    with raises(InvalidPipeline, "option-invalid", match=text):
        Settings.from_env({"ONCEONLY_KAFKA_WRITER": text})

"""Folders of files as sources, written by a FileSink and read by Spark: exactly the pinned decisions, as they were."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from integration.services.hdfs import Hdfs

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.offsets import FILES, TopicRange
from onceonly.errors import SourceLost
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import FileSource
from onceonly.sinks.files.sink import FileWriter
from onceonly.sources.files import FileReader
from onceonly.testing.fakes import FakeReceipts

pytestmark = pytest.mark.integration
FORMATS = get_args(get_type_hints(FileSink)["format"])
STATE = "0123456789abcdef0123456789abcdef"
COLUMNS = [
    "CAST(id AS INT) AS n",
    r"""IF(id = 1, '', IF(id = 2, NULL, 'say "no", or\n\\ ü ')) AS text""",
    "IF(id = 2, NULL, TIMESTAMP'2013-01-01 12:34:56.789012') AS at",
    "CAST(CAST(id AS DECIMAL(9, 2)) / 4 AS DECIMAL(9, 2)) AS price",
    "DATE'2013-01-01' + CAST(id AS INT) AS day",
    "IF(id = 2, NULL, 'a b/ü%={*}') AS place",
    "'007' AS code",
]
NESTED = ["CAST(id AS TINYINT) AS tiny", "named_struct('x', array(CAST(id AS INT)), 'y', map('k', X'00FF')) AS parts"]


@dataclass
class Lake:
    uri: str
    spark: Any
    receipts: Path
    webhdfs: str | None = None
    decisions: list[int] = field(default_factory=list)

    def publish(self, rows: Any, **config: Any) -> None:
        decision = len(self.decisions) + 1
        self.decisions.append(decision)
        sink = FileWriter(FileSink("lake", self.uri, **config), self.uri, self.webhdfs)
        txn = Transaction(STATE, "flights", "lake", decision, 1, uuid.uuid4().hex[:12])
        sink.commit(sink.stage(txn, rows), decision, FakeReceipts(self.receipts))

    @property
    def reader(self) -> FileReader:
        return FileReader(FileSource(self.uri, name="orders"), self.uri, self.webhdfs)

    def range(self, start: int, end: int) -> TopicRange:
        return self.reader.add_mark(TopicRange("orders", f"{STATE}-flights-lake", {0: (start, end)}, FILES), None)

    def frame(self, range_: TopicRange) -> Any:
        self.reader.verify((range_,))
        return self.reader.read(self.spark, (range_,))

    def rows(self, start: int, end: int) -> list[dict[str, Any]]:
        found = [row.asDict(recursive=True) for row in self.frame(self.range(start, end)).collect()]
        return sorted(found, key=lambda row: row["n"])


@pytest.fixture
def lake(tmp_path: Path, spark: Any) -> Lake:
    """In a folder whose name means something to a pattern of paths."""
    return Lake(str(tmp_path / "day=1 {a}[b]%20"), spark, tmp_path / "receipts")


def made(start: int, end: int) -> list[dict[str, Any]]:
    rows = []
    for n in range(start, end):
        text = {1: "", 2: None}.get(n, 'say "no", or\n\\ ü ')
        at = None if n == 2 else datetime(2013, 1, 1, 12, 34, 56, 789012)
        place = None if n == 2 else "a b/ü%={*}"
        day, price = date(2013, 1, 1 + n), Decimal(n) / 4
        rows.append({"n": n, "text": text, "at": at, "price": price, "day": day, "place": place, "code": "007"})
    return rows


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_is_read_as_it_was_written(lake: Lake, format: str) -> None:
    """Each value with its type, those of partition folders too; and only what the decisions name."""
    columns = [*COLUMNS, *(NESTED if format != "csv" else ())]
    for start in (0, 2):
        rows = lake.spark.range(start, start + 2).selectExpr(*columns).coalesce(1)
        lake.publish(rows, format=format, partition_by=["day", "place", "code"])
        foreign = next(Path(lake.uri).rglob("flights-*")).parent / "theirs.parquet"
        foreign.write_text("theirs")
    every = lake.rows(0, 3)
    expected = made(0, 4)
    if format != "csv":
        for row in expected:
            row |= {"tiny": row["n"], "parts": {"x": [row["n"]], "y": {"k": b"\x00\xff"}}}
    assert [plain(row) for row in every] == expected
    assert list(every[0]) == list(expected[0])
    if format == FORMATS[0]:
        assert [plain(row) for row in lake.rows(2, 3)] == expected[2:]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    at = row["at"]
    return {**row, "at": at.astimezone(UTC).replace(tzinfo=None) if at and at.tzinfo else at}


def test_checkpoints_of_different_columns_formats_and_folders_are_one_range(lake: Lake) -> None:
    """What a checkpoint did not have is null; the columns are in the order of the last one."""
    numbers = lake.spark.range(1, 2).selectExpr("CAST(id AS INT) AS n", "'x' AS part")
    lake.publish(numbers, partition_by=["part"])
    lake.publish(numbers.selectExpr("n + 1 AS n", "part"))
    lake.publish(numbers.selectExpr("'y' AS more", "n + 2 AS n"), format="json")
    lake.publish(numbers.where("n > 9"), format="avro")
    assert lake.rows(0, 5) == [
        {"more": None, "n": 1, "part": "x"},
        {"more": None, "n": 2, "part": "x"},
        {"more": "y", "n": 3, "part": None},
    ]
    nothing = lake.frame(lake.range(4, 5))
    assert (nothing.columns, nothing.collect()) == (["n", "part"], [])
    assert lake.frame(lake.range(5, 5)).columns == ["n", "part"]


def test_files_that_vanish_while_they_are_read_are_lost_and_not_left_out(lake: Lake) -> None:
    lake.publish(lake.spark.range(3).selectExpr("id AS n"))
    lake.publish(lake.spark.range(3).selectExpr("id AS n"))
    pinned = lake.range(2, 3)
    found = lake.frame(pinned)
    for file in Path(lake.uri).glob("flights-lake-000002-*"):
        file.unlink()
    with pytest.raises(Exception, match=r"FILE|file|PATH|path") as failed:
        found.collect()
    assert isinstance(lake.reader.diagnose(failed.value, lake.spark, (pinned,)), SourceLost)
    lake.reader.verify((lake.range(1, 2),))


def test_a_folder_on_hdfs(tmp_path: Path, spark: Any, hdfs: Hdfs) -> None:
    lake = Lake(f"{hdfs.root}/{uuid.uuid4().hex}/lake", spark, tmp_path / "receipts", hdfs.webhdfs)
    rows = spark.range(3).selectExpr("CAST(id AS INT) AS n", "'a +%#' AS place").coalesce(1)
    for _ in range(2):
        lake.publish(rows, partition_by=["place"])
    assert lake.rows(2, 3) == [{"n": n, "place": "a +%#"} for n in range(3)]
    pinned = lake.range(1, 2)
    place = lake.reader._place[0]
    (file,) = (file for manifest in lake.reader._read_pinned_manifests(pinned) for file in manifest.files)
    assert place.find_size(f"{lake.uri}/{file.path}") == file.bytes
    assert (place.find_size(lake.uri), place.find_size(f"{lake.uri}/none")) == (None, None)

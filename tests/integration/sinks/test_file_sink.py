"""Folders of files on real Spark, read by pandas and by Spark: whole, once, and never over anything."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pytest
from codes import raises
from patience import PATIENCE

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.transaction_names import manifest_path
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.sinks.files import stage
from onceonly.sinks.files.sink import FileWriter
from onceonly.storage import manifests
from onceonly.storage.local import LocalFiles
from onceonly.testing.fakes import FakeReceipts

pytestmark = pytest.mark.integration
STATE = "0123456789abcdef0123456789abcdef"


@dataclass
class Lake:
    """One target folder, its sink, and Spark."""

    folder: Path
    spark: Any

    def sink(self, **config: Any) -> FileWriter:
        return FileWriter(FileSink(name="lake", path="lake", **config), str(self.folder))

    def stage(self, rows: Any, epoch: int = 1, **config: Any) -> Handle:
        handle: Handle = json.loads(json.dumps(self.sink(**config).stage(transaction(epoch), rows)))
        return handle

    def commit(self, handle: Handle) -> Outcome:
        return self.sink().commit(handle, 1, FakeReceipts(self.folder.parent / "receipts"))

    def names(self) -> list[str]:
        """Every file in the target that a reader may see."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(str(p.relative_to(self.folder)) for p in found if p.parts[len(self.folder.parts)] != "_onceonly")

    def beside(self) -> list[str]:
        return sorted(path.name for path in self.folder.parent.iterdir())


@pytest.fixture
def lake(tmp_path: Path, spark: Any) -> Lake:
    return Lake(tmp_path / "lake", spark)


def transaction(epoch: int = 1) -> Transaction:
    return Transaction(STATE, "flights", "lake", epoch, 1, f"nonce{epoch}")


# ---- what a reader finds


def read(lake: Lake, kind: str) -> list[dict[str, Any]]:
    match kind:
        case "parquet":
            frame = pandas.read_parquet(lake.folder)
        case "json":
            frame = pandas.concat(pandas.read_json(lake.folder / name, lines=True) for name in lake.names())
        case "csv":
            frame = pandas.concat(pandas.read_csv(lake.folder / name) for name in lake.names())
        case _:
            frame = lake.spark.read.format(kind).load(str(lake.folder)).toPandas()
    return sorted(frame.to_dict("records"), key=lambda row: row["n"])


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "avro"])
def test_each_format_is_read_back_by_others(lake: Lake, kind: str) -> None:
    rows = [(1, 'say "no", or'), (2, "two\nlines"), (3, "ü \\ ,")]
    handle = lake.stage(lake.spark.createDataFrame(rows, "n INT, text STRING"), format=kind)
    assert not lake.folder.exists()
    lake.commit(handle)
    assert [(row["n"], row["text"]) for row in read(lake, kind)] == rows
    assert handle["rows"] == 3


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "avro"])
def test_each_format_can_be_looked_at_while_it_is_staged(lake: Lake, kind: str) -> None:
    rows = [(1, 'say "no", or', "a/b"), (2, "two\nlines", None), (3, "ü \\ ,", "c")]
    frame = lake.spark.createDataFrame(rows, "n INT, text STRING, place STRING")
    handle = lake.stage(frame, format=kind, partition_by=["place"])
    sink = lake.sink(format=kind, partition_by=["place"])
    if kind != "avro":
        seen = sink.read_staged(handle).read_all().select(["n", "text", "place"])
        assert sorted(tuple(row.values()) for row in seen.to_pylist()) == rows
    on_spark = sink.staged_frame(handle, lake.spark).selectExpr("CAST(n AS INT)", "text", "place").collect()
    assert sorted(map(tuple, on_spark)) == rows
    if kind != "avro":
        nothing = lake.stage(frame.where("n > 3"), epoch=2, format=kind, partition_by=["place"])
        assert sink.read_staged(nothing).read_all().num_rows == 0


def test_names_say_whose_they_are_and_folders_which_partition(lake: Lake) -> None:
    rows = lake.spark.createDataFrame([(1, "a"), (2, "b"), (3, "a/b")], "n INT, place STRING").coalesce(1)
    lake.commit(lake.stage(rows, epoch=7, partition_by=["place"]))
    stem = "flights-lake-000007-01234567"
    assert lake.names() == [
        f"place=a%2Fb/{stem}-00001.parquet",
        f"place=a/{stem}-00000.parquet",
        f"place=b/{stem}-00002.parquet",
    ]
    found = lake.spark.read.parquet(str(lake.folder)).collect()
    assert sorted((row["n"], row["place"]) for row in found) == [(1, "a"), (2, "b"), (3, "a/b")]
    again = lake.stage(rows, epoch=7, partition_by=["place"])
    assert sorted(file["final"] for file in again["files"]) == lake.names()


def test_no_reader_sees_what_is_staged(lake: Lake) -> None:
    lake.commit(lake.stage(lake.spark.range(3), 1))
    lake.stage(lake.spark.range(10, 13), 2)
    assert sorted(pandas.read_parquet(lake.folder)["id"]) == [0, 1, 2]
    assert lake.spark.read.parquet(str(lake.folder)).count() == 3
    assert lake.spark.read.option("recursiveFileLookup", "true").parquet(str(lake.folder)).count() == 3
    assert sorted(p.name for p in lake.folder.rglob("*.parquet")) == lake.names()  # and no glob does
    assert lake.beside() == [".lake.staged", "lake"]


def test_no_rows_make_no_file_but_a_manifest(lake: Lake) -> None:
    handle = lake.stage(lake.spark.range(0))
    assert (handle["rows"], handle["files"]) == (0, [])
    assert lake.commit(handle).already is False
    assert lake.commit(handle).already is True
    assert (lake.names(), manifests.files(lake.folder)) == ([], [])


def test_a_reader_by_manifest_finds_partitions_too(lake: Lake) -> None:
    rows = lake.spark.createDataFrame([(1, "a"), (2, "b")], "n INT, place STRING")
    lake.commit(lake.stage(rows, partition_by=["place"]))
    table = manifests.dataset(lake.folder).to_table()
    assert sorted(zip(table["n"].to_pylist(), table["place"].to_pylist(), strict=True)) == [(1, "a"), (2, "b")]


# ---- what is refused


def test_a_file_of_somebody_else_is_never_overwritten(lake: Lake) -> None:
    handle = lake.stage(lake.spark.range(8).repartition(2))
    lake.folder.mkdir()
    theirs = lake.folder / handle["files"][1]["final"]
    theirs.write_text("theirs")
    with pytest.raises(CannotPublish) as refused:
        lake.commit(handle)
    assert str(theirs) in refused.value.why
    assert "--give-up lake" in refused.value.todo
    assert theirs.read_text() == "theirs"
    assert manifests.files(lake.folder) == []
    theirs.unlink()
    assert lake.commit(handle).already is False
    assert sorted(pandas.read_parquet(lake.folder)["id"]) == list(range(8))


def test_a_manifest_of_somebody_else_is_never_overwritten(lake: Lake) -> None:
    handle = lake.stage(lake.spark.range(8))
    (lake.folder / "_onceonly").mkdir(parents=True)
    (lake.folder / handle["manifest"]).write_text('{"txn": "theirs"}')
    with raises(CannotPublish, "name-taken", match="with other content"):
        lake.commit(handle)


def test_a_staged_file_that_is_gone_is_not_taken_for_moved(lake: Lake) -> None:
    handle = lake.stage(lake.spark.range(8).repartition(2))
    (Path(handle["folder"]) / handle["files"][0]["staged"]).unlink()
    with raises(CannotPublish, "staged-files-missing", match="a staged file no longer exists"):
        lake.commit(handle)
    assert manifests.files(lake.folder) == []


def occupied(folder: Path) -> None:
    folder.write_text("a file")


def delta(folder: Path) -> None:
    (folder / "_delta_log").mkdir(parents=True)


def text(spark: Any) -> Any:
    return spark.sql("SELECT 1 AS n, 'x' AS place")


def nested(spark: Any) -> Any:
    return spark.sql("SELECT 1 AS n, array(1) AS list")


BAD: list[tuple[Callable[[Path], None] | None, Callable[[Any], Any], dict[str, Any], str]] = [
    (occupied, text, {}, "is not a folder"),
    (delta, text, {}, "is a Delta table"),
    (None, text, {"partition_by": ["day"]}, "no column ['day'] to partition by"),
    (None, text, {"partition_by": ["n", "place"]}, "all columns are partition columns"),
    (None, nested, {"format": "csv"}, "CSV cannot hold ['list']"),
]


@pytest.mark.parametrize(("before", "rows", "config", "why"), BAD)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    lake: Lake, before: Any, rows: Any, config: dict[str, Any], why: str
) -> None:
    if before:
        before(lake.folder)
    there = lake.beside()
    with pytest.raises(InvalidPipeline) as refused:
        lake.stage(rows(lake.spark), **config)
    assert why in refused.value.why
    assert refused.value.todo
    assert lake.beside() == there


@pytest.mark.parametrize("uri", ["swift://bucket/lake", "wasb://a@b/lake", "memory://lake", "viewfs://name/lake"])
def test_storage_without_a_known_atomic_move_is_refused(uri: str) -> None:
    with raises(InvalidPipeline, "storage-unsupported", match="files cannot be published") as refused:
        FileWriter(FileSink(name="lake", path=uri), uri).check()
    assert "DeltaSink" in refused.value.todo


def test_a_file_system_without_links_is_refused_before_any_row(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", none)
    with raises(InvalidPipeline, "target-unsuitable", match="files cannot be written"):
        lake.stage(lake.spark.range(1))
    lake.sink().discard(transaction(), None)
    assert lake.beside() == []


def test_a_file_system_of_its_own_is_refused(tmp_path: Path) -> None:
    """/dev/shm is one on every Linux."""
    with raises(InvalidPipeline, "target-unsuitable", match="the root of a file system"):
        FileWriter(FileSink(name="lake", path="/dev/shm"), "/dev/shm").check()


# ---- killed

COMMIT = """
import json, os, signal, sys
from pathlib import Path
from onceonly.testing.fakes import FakeReceipts
from onceonly import FileSink
from onceonly.sinks.files.sink import FileWriter

handle, target, step, limit = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3], int(sys.argv[4])
inner, calls = getattr(os, step), iter(range(10**9))

def counted(*arguments, **more):
    if next(calls) == limit:
        os.kill(0, signal.SIGKILL)
    return inner(*arguments, **more)

setattr(os, step, counted)
print(FileWriter(FileSink(name="lake", path=target), target).commit(handle, 1, FakeReceipts(Path(target))).already)
"""


def commit_elsewhere(lake: Lake, handle: Handle, step: str, limit: int) -> int:
    """In a process of its own, killed at the so many-th call of `step`."""
    file = lake.folder.parent / f"handle-{uuid.uuid4().hex}"
    file.write_text(json.dumps(handle))
    command = [sys.executable, "-c", COMMIT, str(file), str(lake.folder), step, str(limit)]
    return subprocess.run(command, start_new_session=True, capture_output=True, timeout=PATIENCE).returncode


def staged_by_hand(lake: Lake, count: int) -> Handle:
    """As `stage` leaves it, without ten thousand Spark tasks."""
    folder = Path(stage.staging_of(str(lake.folder)), transaction().name, "data")
    for number in range(count):
        place = folder / f"day={number % 30}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"part-{number:05d}.jsonl").write_text(json.dumps({"n": number}) + "\n")
    config = FileSink(name="lake", path="lake", format="json")
    files = stage.prepare_files(config, transaction(), LocalFiles(), str(lake.folder), str(folder), count)
    return {
        **{"kind": "files", "target": str(lake.folder), "format": "json", "txn": transaction().name},
        **{"folder": str(folder), "manifest": manifest_path(transaction()), "rows": count, "bytes": 1},
        "files": [file.to_json() for file in files],
    }


def test_ten_thousand_files_whenever_it_is_killed(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake", None)
    handle = staged_by_hand(lake, 10_000)
    chance = random.Random(2013)
    kills = [("link", chance.randrange(2000)) for _ in range(4)] + [("unlink", 1500), ("fsync", 3), ("fsync", 31)]
    for step, limit in kills:
        code = commit_elsewhere(lake, handle, step, limit)
        assert code == -signal.SIGKILL
        assert not (lake.folder.is_dir() and manifests.files(lake.folder))  # nothing, as long as it is not all
    assert commit_elsewhere(lake, handle, "link", 10**8) == 0
    found = manifests.files(lake.folder)
    assert sorted(json.loads(path.read_text())["n"] for path in found) == list(range(10_000))
    assert len(lake.names()) == 10_000
    lake.sink().release(transaction())
    assert not Path(stage.staging_of(str(lake.folder))).exists()
    assert commit_elsewhere(lake, handle, "link", 0) == 0  # once more: it touches nothing


def test_killed_around_the_manifest(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake", None)
    handle = staged_by_hand(lake, 3)
    assert commit_elsewhere(lake, handle, "link", 3) == -signal.SIGKILL  # files 0, 1, 2; then the manifest's
    assert (len(lake.names()), manifests.files(lake.folder)) == (3, [])
    assert lake.commit(handle).already is False
    assert lake.commit(handle).already is True
    assert len(manifests.files(lake.folder)) == 3


def test_what_a_killed_stage_left_is_found_and_removed(lake: Lake) -> None:
    lake.stage(lake.spark.range(3), 1)
    lake.stage(lake.spark.range(3), 2)
    prefix = transaction().prefix
    assert lake.sink().leftovers(prefix) == [transaction(1), transaction(2)]
    for txn in lake.sink().leftovers(prefix):
        lake.sink().discard(txn, None)
    assert lake.beside() == []

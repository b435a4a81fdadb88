"""One checkpoint is corrected after others have rewritten its table: exactly its rows go out, and no other changes.

Spark stages, optimizes and deletes; deltalake and DuckDB, which share no code with the sink, read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from codes import raises
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from integration.services.s3 import BUCKET, S3
from unit.lightdelta import LightDelta, transaction
from unit.sinks.test_delta_altered import vector

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.delta import active_adds, log_files
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta import replacement
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.storage.objects import Objects

pytestmark = pytest.mark.integration
NEVER: Any = None
COLUMN = "published_by"
names = count()
Row = tuple[int, str, str | None]


class Lake:
    """A table that two pipelines write to: numbers, each with a word, by country or not."""

    def __init__(self, folder: Path, spark: Any, small: bool, partition_by: list[str], **options: Any) -> None:
        self.spark, self.uri, self.small = spark, str(folder), small
        self.config = DeltaSink("lake", self.uri, partition_by, checkpoint_column=COLUMN, **options)

    def sink(self) -> DeltaWriter:
        return DeltaWriter(self.config, self.uri, lambda: self.spark)

    def transaction(self, epoch: int, pipeline: str = "flights") -> Transaction:
        return Transaction("5e1f" * 8, pipeline, "lake", epoch, 1, f"{epoch:08x}0000")

    def stage(self, txn: Transaction, rows: list[Row] | Any) -> Handle:
        if isinstance(rows, list):
            rows = self.spark.createDataFrame(rows, "n BIGINT, word STRING, country STRING")
        stage = self.sink().stage_small_batch if self.small else self.sink().stage
        handle: Handle = json.loads(json.dumps(stage(txn, rows)))
        return handle

    def publish(self, epoch: int, rows: list[Row] | Any, pipeline: str = "flights", **more: Any) -> Handle:
        """As the coordinator does it: the rehearsal's handle is decided on, by another object."""
        handle = {**self.stage(self.transaction(epoch, pipeline), rows), **more}
        handle = dict(self.sink().rehearse(handle, epoch))
        assert self.sink().commit(handle, epoch, NEVER).already is False
        assert self.sink().commit(handle, epoch, NEVER).already
        self.sink().release(self.transaction(epoch, pipeline))
        return handle

    def replace(self, old: Handle, epoch: int, rows: list[Row] | Any) -> Handle:
        self.sink().check_replace(old)
        return self.publish(epoch, rows, replaces=old)

    def sql(self, text: str) -> None:
        self.spark.sql(text.format(f"delta.`{self.uri}`")).collect()

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.uri)

    def read(self) -> Counter[Row]:
        """By deltalake, which knows deletion vectors; by DuckDB as well, where there are none; and by Spark."""
        select = "SELECT n, word, country FROM lake"
        found = pa.table(QueryBuilder().register("lake", self.delta).execute(select).read_all()).to_pylist()
        rows = Counter((row["n"], row["word"], row["country"]) for row in found)
        by_spark = self.spark.read.format("delta").load(self.uri).select("n", "word", "country").collect()
        assert Counter(tuple(row) for row in by_spark) == rows
        if "deletionVectors" not in (self.delta.protocol().reader_features or []):
            options = "union_by_name = true, hive_partitioning = false"
            files = self.delta.file_uris()
            listed = duckdb.execute(f"SELECT n, word FROM read_parquet(?, {options})", [files]).fetchall()
            assert Counter(listed) == Counter((n, word) for n, word, _ in rows.elements())
        return rows


@pytest.fixture(params=[True, False], ids=["few rows", "by Spark"])
def small(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[[], ["country"]], ids=["flat", "by country"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, spark: Any, small: bool) -> Lake:
    return Lake(tmp_path / "lake", spark, small, request.param)


def day(number: int, *countries: str | None) -> list[Row]:
    return [(10 * number + place, f"word {place}", country) for place, country in enumerate(countries)]


FIRST, SECOND, THIRD = day(1, "us", "us", None, "it's a/b %"), day(2, "us", "it's a/b %"), day(3, "us", None)
MENDED: list[Row] = [(10, "mended", "us"), (19, "new", "de")]
OPTIMIZERS = {
    "Spark": lambda lake: lake.sql("OPTIMIZE {}"),
    "deltalake": lambda lake: lake.delta.optimize.compact(),
}


@pytest.mark.parametrize(
    "optimizer", [pytest.param(name, marks=[pytest.mark.heavy] if name == "Spark" else []) for name in OPTIMIZERS]
)
def test_a_day_is_corrected_after_optimize(lake: Lake, optimizer: str) -> None:
    first = lake.publish(1, FIRST)
    lake.publish(2, SECOND)
    lake.publish(1, THIRD, "others")
    OPTIMIZERS[optimizer](lake)
    assert not any(first["folder"] in uri for uri in lake.delta.file_uris())
    before = lake.delta.version()
    mended = lake.replace(first, 3, MENDED)
    assert lake.read() == Counter([*SECOND, *THIRD, *MENDED])
    assert lake.delta.version() == before + 1
    OPTIMIZERS[optimizer](lake)
    lake.delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    lake.replace(mended, 4, FIRST)
    assert lake.read() == Counter([*FIRST, *SECOND, *THIRD])


def test_every_row_names_the_transaction_that_has_published_it(lake: Lake) -> None:
    lake.publish(1, FIRST)
    lake.publish(1, SECOND, "others")
    rows = count_by_name(lake)
    assert rows == {lake.transaction(1).name: len(FIRST), lake.transaction(1, "others").name: len(SECOND)}


def count_by_name(lake: Lake) -> dict[str, int]:
    found = QueryBuilder().register("lake", lake.delta).execute(f"SELECT {COLUMN} FROM lake").read_all()
    return dict(Counter(pa.table(found)[COLUMN].to_pylist()))


def test_the_gate_sees_the_column(lake: Lake) -> None:
    handle = lake.stage(lake.transaction(1), FIRST)
    staged = lake.sink().read_staged(handle).read_all()
    assert set(staged[COLUMN].to_pylist()) == {lake.transaction(1).name}
    assert lake.sink().staged_frame(handle, lake.spark).where(f"{COLUMN} IS NULL").count() == 0
    assert not lake.sink().stages_columns_as_returned


def test_rows_with_such_a_column_are_refused(lake: Lake) -> None:
    rows = lake.spark.createDataFrame([(1, "x")], f"n BIGINT, {COLUMN.upper()} STRING")
    with raises(InvalidPipeline, "columns-unsuitable"):
        lake.stage(lake.transaction(1), rows)


def test_a_table_of_before_gets_the_column_with_add_columns(tmp_path: Path, spark: Any, small: bool) -> None:
    plain = pa.table({"n": pa.array([1], pa.int64()), "word": ["old"], "country": ["us"]})
    write_deltalake(tmp_path / "lake", plain)
    with raises(InvalidPipeline, "columns-differ"):
        Lake(tmp_path / "lake", spark, small, []).publish(1, FIRST)
    lake = Lake(tmp_path / "lake", spark, small, [], add_columns=True)
    first = lake.publish(1, FIRST)
    more = spark.createDataFrame([(20, "word", "us", 7)], "n BIGINT, word STRING, country STRING, more INT")
    lake.publish(2, more)
    OPTIMIZERS["Spark"](lake)
    mended = spark.createDataFrame([(*row, None) for row in MENDED], "n BIGINT, word STRING, country STRING, more INT")
    lake.replace(first, 3, mended)
    assert lake.read() == Counter([(1, "old", "us"), (20, "word", "us"), *MENDED])
    kept = QueryBuilder().register("lake", lake.delta).execute("SELECT more FROM lake WHERE n = 20").read_all()
    assert pa.table(kept)["more"].to_pylist() == [7]


# ---- what others do with Spark

EDITS = {
    "DELETE": "DELETE FROM {} WHERE n = 11",
    "UPDATE": "UPDATE {} SET word = 'theirs' WHERE n = 11",
    "MERGE": "MERGE INTO {0} t USING (SELECT 11 AS k) s ON t.n = s.k WHEN MATCHED THEN UPDATE SET word = 'theirs'",
}


def edits() -> Iterator[Any]:
    """Each edit in both ways to store it; `make test` takes one edit in each."""
    for edit, way in product(EDITS, ("files", "vectors")):
        is_taken = (edit, way) in (("UPDATE", "files"), ("MERGE", "vectors"))
        yield pytest.param(edit, way == "vectors", id=f"{edit}-{way}", marks=[] if is_taken else [pytest.mark.heavy])


@pytest.mark.parametrize(("edit", "vectors"), list(edits()))
def test_what_others_did_to_its_rows_is_not_undone_silently(
    tmp_path: Path, spark: Any, edit: str, vectors: bool
) -> None:
    lake = Lake(tmp_path / "lake", spark, True, ["country"])
    first = lake.publish(1, FIRST)
    lake.publish(2, SECOND)
    if vectors:
        enable_vectors(lake)
    OPTIMIZERS["Spark"](lake)
    lake.sql(EDITS[edit])
    before = lake.read()
    with raises(InvalidPipeline, "published-rows-edited"):
        lake.sink().check_replace(first)
    new = {**lake.stage(lake.transaction(3), MENDED), "replaces": first}
    with raises(CannotPublish, "replaced-rows-changed"):
        lake.sink().rehearse(new, 3)
    with raises(CannotPublish, "replaced-rows-changed"):
        lake.sink().commit(new, 3, NEVER)
    assert lake.read() == before
    lake.sql(f"ALTER TABLE {{}} SET TBLPROPERTIES ('{replacement.CONSENT}' = '{lake.transaction(1).name}')")
    lake.sink().check_replace(first)
    lake.sink().commit(new, 3, NEVER)
    assert lake.read() == Counter([*SECOND, *MENDED])


def enable_vectors(lake: Lake) -> None:
    lake.sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")


@pytest.mark.parametrize(
    ("vectors", "expired"),
    [
        pytest.param(False, False, id="files-False", marks=pytest.mark.heavy),
        pytest.param(False, True, id="files-True"),
        pytest.param(True, False, id="vectors-False"),
        pytest.param(True, True, id="vectors-True", marks=pytest.mark.heavy),
    ],
)
def test_rows_of_others_that_were_deleted_stay_deleted(
    tmp_path: Path, spark: Any, vectors: bool, expired: bool
) -> None:
    lake = Lake(tmp_path / "lake", spark, not expired, [] if vectors else ["country"])
    first = lake.publish(1, FIRST)
    lake.publish(2, SECOND)
    if vectors:
        enable_vectors(lake)
    OPTIMIZERS["Spark"](lake)
    lake.sql("DELETE FROM {} WHERE n = 20")
    if expired:
        expire_log(lake)
    lake.replace(first, 3, MENDED)
    assert lake.read() == Counter([*SECOND[1:], *MENDED])


def expire_log(lake: Lake) -> None:
    """As a clean-up of the log does it, behind a log checkpoint."""
    lake.delta.create_checkpoint()
    for entry in Path(lake.uri, "_delta_log").glob("*.json"):
        if int(entry.stem) < lake.delta.version():
            entry.unlink()


# ---- without the column


@pytest.mark.parametrize("expired", [False, True])
def test_a_day_of_its_own_is_corrected_as_far_as_the_log_proves_it(
    tmp_path: Path, spark: Any, small: bool, expired: bool
) -> None:
    """Each day is a partition that one checkpoint has written, and OPTIMIZE puts its files together."""
    lake = Lake(tmp_path / "lake", spark, False, ["country"])
    lake.config = DeltaSink("lake", lake.uri, ["country"])
    rows = spark.createDataFrame(day(1, "us", "us", "us"), "n BIGINT, word STRING, country STRING").repartition(3)
    first = lake.publish(1, rows)
    assert first["files"] > 1
    lake.publish(2, day(2, "de"))
    OPTIMIZERS["Spark"](lake)
    lake.small = small
    if expired:
        expire_log(lake)
        with raises(InvalidPipeline, "published-rows-fixed") as refused:
            lake.sink().check_replace(first)
        assert "log no longer reaches back" in refused.value.why
        return
    lake.replace(first, 3, MENDED)
    assert lake.read() == Counter([*day(2, "de"), *MENDED])


# ---- on an object store


@pytest.mark.parametrize("vectors", [False, True], ids=["files", "vectors"])
def test_a_day_is_corrected_on_s3(s3: S3, monkeypatch: pytest.MonkeyPatch, vectors: bool) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{BUCKET}/optimized-{next(names)}"
    sink = LightDelta(uri, checkpoint_column=COLUMN)  # type: ignore[arg-type]
    first, second = (sink.stage(transaction(epoch), (10 * epoch, 10 * epoch + 1)) for epoch in (1, 2))
    for decision, handle in enumerate((first, second), 1):
        sink.commit(handle, decision, NEVER)
    DeltaTable(uri).optimize.compact()
    old, rest = first, {20, 21}
    if vectors:
        hide_first_row(uri)
        shown = set(read_numbers(uri))
        old, rest = (second, shown - {20, 21}) if {20, 21} <= shown else (first, shown - {10, 11})
    sink.check_replace(old)
    new = sink.rehearse({**sink.stage(transaction(3), (30,)), "replaces": old}, 3)
    write_deltalake(uri, pa.table({"n": pa.array([40], pa.int64()), COLUMN: ["somebody"]}), mode="append")
    for _ in range(2):
        sink.commit(new, 3, NEVER)
    assert read_numbers(uri) == sorted({30, 40, *rest})


def read_numbers(uri: str) -> list[int]:
    """As delta-rs's engine reads them, which knows deletion vectors."""
    rows = QueryBuilder().register("lake", DeltaTable(uri)).execute("SELECT n FROM lake")
    return sorted(pa.table(rows.read_all())["n"].to_pylist())


def hide_first_row(uri: str) -> None:
    """As Spark does it, with a deletion vector."""
    table = DeltaTable(uri)
    (path,) = pa.table(table.get_add_actions())["path"].to_pylist()
    add = active_adds.read(uri, table.version(), [path])[path]
    feature = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    stats = json.dumps({**json.loads(add["stats"]), "tightBounds": False})
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "DELETE"}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **feature}},
        {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True, "size": add["size"]}},
        {"add": {**add, "deletionVector": vector(), "stats": stats}},
    ]
    Objects(uri).create(log_files.entry_path(table.version() + 1), "\n".join(map(json.dumps, actions)).encode())

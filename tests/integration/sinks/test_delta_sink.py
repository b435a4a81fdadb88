"""The Delta sink with a real Spark, read back by deltalake (which shares no code with Spark's Delta)."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from codes import raises
from deltalake import DeltaTable, write_deltalake
from patience import PATIENCE

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.delta import commits
from onceonly.dev.demo.standalone import wait_until
from onceonly.errors import CannotPublish, Fenced, InvalidPipeline, StateBehind
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta.sink import DeltaWriter

pytestmark = pytest.mark.integration
ODD = ["plain", "two words", "50%", "a/b", "12:30", "a=b", "Zürich ✈", "#1?", "100%25", " ", None]


def no_spark() -> Any:
    raise AssertionError("this commit or abort needs no Spark")


NEVER: Any = None  # a Delta handle is never replaced


class Delta:
    """One target, with the Spark that stages for it."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder, self.uri = spark, folder, str(folder)

    def writer(self, *partition_by: str, spark: Callable[[], Any] = no_spark) -> DeltaWriter:
        return DeltaWriter(DeltaSink("lake", self.uri, partition_by), self.uri, spark)

    def stage(self, rows: Any, epoch: int = 1, partition_by: tuple[str, ...] = ()) -> Handle:
        return json.loads(json.dumps(self.writer(*partition_by).stage(transaction(epoch), rows)))

    def commit(self, handle: Handle, decision: int = 1) -> Any:
        return self.writer().commit(handle, decision, NEVER)

    def commit_through_spark(self, handle: Handle, decision: int = 1) -> Any:
        return self.writer(spark=lambda: self.spark).commit(handle, decision, NEVER)

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.format(t=f"delta.`{self.uri}`")).collect()

    def numbers(self, count: int, start: int = 0) -> Any:
        return self.spark.range(start, start + count).selectExpr("CAST(id AS INT) AS n")

    def read(self) -> list[dict[str, Any]]:
        """As deltalake sees it, in the order of the first column."""
        rows = DeltaTable(self.uri).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: str(next(iter(row.values()))))

    def read_by_spark(self) -> list[dict[str, Any]]:
        rows = [row.asDict() for row in self.spark.read.format("delta").load(self.uri).collect()]
        return sorted(rows, key=lambda row: str(next(iter(row.values()))))

    def ns(self) -> list[int]:
        """Column n, as Spark sees it: it reads the features that deltalake does not."""
        return sorted(row["n"] for row in self.read_by_spark())

    def staged(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("staged-*"))

    def log(self, version: int) -> list[dict[str, Any]]:
        path = self.folder / "_delta_log" / f"{version:020}.json"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def version(self) -> int:
        return len(list((self.folder / "_delta_log").glob("*.json"))) - 1


def transaction(epoch: int = 1) -> Transaction:
    return Transaction("5e1f" * 8, "flights", "lake", epoch, 1, f"{epoch:08x}0000")


@pytest.fixture
def delta(spark, tmp_path) -> Delta:
    return Delta(spark, tmp_path / "lake")


# ---- what is published is what was staged


def test_spark_and_deltalake_read_the_same_published_rows(delta):
    rows = delta.spark.sql(
        "SELECT CAST(id AS INT) AS n, CAST(id AS DECIMAL(10, 2)) AS price, DATE'2013-01-01' + CAST(id AS INT) AS day, "
        "array(id, NULL) AS list, named_struct('a', id, 'b', CAST(NULL AS STRING)) AS pair, "
        "CAST('é' AS BINARY) AS raw, map('k', id) AS kv, "
        "TIMESTAMP'2013-01-01 12:00:00.123456' AS at, id % 2 = 0 AS even, id / 3 AS third "
        "FROM range(50)"
    )
    delta.commit(delta.stage(rows, partition_by=("even",)))
    by_spark, by_deltalake = delta.read_by_spark(), delta.read()
    for row in by_deltalake:
        row["kv"] = dict(row["kv"])
    for row in by_spark:
        row.update(pair=row["pair"].asDict(), raw=bytes(row["raw"]), at=row["at"].astimezone().replace(tzinfo=None))
    for row in by_deltalake:
        row["at"] = row["at"].astimezone().replace(tzinfo=None)
    assert len(by_deltalake) == 50
    assert by_spark == by_deltalake


def test_odd_partition_values_arrive_unchanged(delta):
    rows = delta.spark.createDataFrame(list(enumerate(ODD)), "n INT, place STRING")
    handle = delta.stage(rows, partition_by=("place",))
    assert handle["rows"] == len(ODD)
    delta.commit(handle)
    expected = dict(enumerate(ODD))
    assert {row["n"]: row["place"] for row in delta.read()} == expected
    assert {row["n"]: row["place"] for row in delta.read_by_spark()} == expected
    one = delta.spark.read.format("delta").load(delta.uri).where("place = '12:30'").collect()
    assert [row["n"] for row in one] == [ODD.index("12:30")]


def test_a_million_rows_are_one_log_entry_whose_cost_is_their_number_of_files(delta, capsys):
    handle = delta.stage(delta.spark.range(1_000_000).selectExpr("id", "id % 100 AS k", "uuid() AS text"))
    before = delta.version()
    begun = time.perf_counter()
    delta.commit(handle)
    seconds = time.perf_counter() - begun
    with capsys.disabled():
        print(f"\n1,000,000 rows in {handle['files']} files published in {seconds * 1000:.0f} ms")
    assert delta.version() == before + 1
    actions = delta.log(before + 1)
    adds = [action["add"] for action in actions if "add" in action]
    assert len(adds) == handle["files"]
    assert all(add["path"].startswith(handle["folder"]) for add in adds)
    assert [f"{action['txn']['version']:x}" for action in actions if "txn" in action] == ["100000001"]
    assert DeltaTable(delta.uri).count() == 1_000_000


def test_statistics_are_published_too(delta):
    delta.commit(delta.stage(delta.numbers(10)))
    stats = pa.table(DeltaTable(delta.uri).get_add_actions(flatten=True)).to_pydict()
    assert (min(stats["min.n"]), max(stats["max.n"]), sum(stats["num_records"])) == (0, 9, 10)


def test_the_published_table_takes_appends_and_reads_by_others(delta):
    delta.commit(delta.stage(delta.numbers(3)))
    write_deltalake(delta.uri, pa.table({"n": pa.array([10], pa.int32())}), mode="append")
    delta.sql("INSERT INTO {t} VALUES (20)")
    delta.commit(delta.stage(delta.numbers(1, start=30), epoch=2), decision=2)
    assert delta.ns() == [0, 1, 2, 10, 20, 30]


# ---- what the table would refuse is refused while staging


def refused(delta: Delta, rows: Any, words: list[str]) -> None:
    """Staging fails with an error that says `words`, and what it wrote can be removed."""
    with pytest.raises(Exception) as error:
        delta.stage(rows)
    assert all(word in str(error.value) for word in words), str(error.value)[:1000]

    def removed() -> bool:
        """Other tasks of the job that failed may still write for a moment."""
        delta.writer().discard(transaction(), None)
        return delta.staged() == []

    wait_until(removed, "what it wrote is removed", PATIENCE)
    assert delta.ns() == []


def test_a_violated_check_constraint_is_an_error_while_staging(delta):
    delta.sql("CREATE TABLE {t} (n INT) USING delta")
    delta.sql("ALTER TABLE {t} ADD CONSTRAINT positive CHECK (n > 0)")
    refused(delta, delta.numbers(3), ["positive"])


def test_a_null_in_a_not_null_column_is_an_error_while_staging(delta):
    delta.sql("CREATE TABLE {t} (n INT NOT NULL) USING delta")
    refused(delta, delta.spark.sql("SELECT CAST(NULL AS INT) AS n"), ["n"])


def test_a_generated_column_is_computed(delta):
    delta.sql("CREATE TABLE {t} (n INT, twice INT GENERATED ALWAYS AS (n * 2)) USING delta")
    delta.commit(delta.stage(delta.numbers(3)))
    assert delta.read_by_spark() == [{"n": n, "twice": 2 * n} for n in range(3)]


def test_a_wrong_value_for_a_generated_column_is_an_error_while_staging(delta):
    delta.sql("CREATE TABLE {t} (n INT, twice INT GENERATED ALWAYS AS (n * 2)) USING delta")
    refused(delta, delta.numbers(3).selectExpr("n", "n + 1 AS twice"), ["twice"])


@pytest.mark.parametrize(
    ("select", "problem"),
    [
        (["n"], "'price' is missing"),
        (["n", "CAST(1 AS DOUBLE) AS price", "n AS more"], "'more' is not in the table"),
        (["n", "'1.5' AS price"], "'price' is string, the table has double"),
        (["CAST(n AS BIGINT) AS n", "CAST(1 AS DOUBLE) AS price"], "'n' is long, the table has integer"),
    ],
)
def test_rows_that_do_not_fit_the_table_are_refused_column_by_column(delta, select, problem):
    delta.sql("CREATE TABLE {t} (n INT, price DOUBLE) USING delta")
    with raises(InvalidPipeline, "columns-differ") as error:
        delta.stage(delta.numbers(1).selectExpr(*select))
    assert problem in error.value.why
    assert delta.staged() == []


def test_every_column_that_does_not_fit_is_named_at_once(delta):
    delta.sql("CREATE TABLE {t} (n INT, a INT, b INT) USING delta")
    with pytest.raises(InvalidPipeline) as error:
        delta.stage(delta.numbers(1).selectExpr("CAST(n AS STRING) AS n", "n AS c"))
    for problem in ("'a' is missing", "'b' is missing", "'c' is not in the table", "'n' is string"):
        assert problem in error.value.why


def test_the_order_of_columns_does_not_matter(delta):
    delta.sql("CREATE TABLE {t} (n INT, text STRING) USING delta")
    delta.commit(delta.stage(delta.numbers(1).selectExpr("'x' AS text", "n")))
    assert delta.read() == [{"n": 0, "text": "x"}]


def test_a_partition_column_that_is_not_there_is_refused(delta):
    with raises(InvalidPipeline, "columns-unsuitable", match=r"no column \['day'\] to partition by"):
        delta.stage(delta.numbers(1), partition_by=("day",))
    assert not delta.folder.exists() or list(delta.folder.iterdir()) == []


def test_a_table_partitioned_otherwise_is_refused(delta):
    delta.sql("CREATE TABLE {t} (n INT, day STRING) USING delta PARTITIONED BY (day)")
    with raises(
        InvalidPipeline, "partitioning-differs", match=r"partitioned by \['day'\], and the pipeline has \['n'\]"
    ):
        delta.stage(delta.numbers(1).selectExpr("n", "'x' AS day"), partition_by=("n",))


@pytest.mark.parametrize("name", ["part-0.parquet", "notes.txt", "sub/file"])
def test_a_folder_with_something_else_is_left_alone(delta, name):
    (delta.folder / name).parent.mkdir(parents=True)
    (delta.folder / name).write_text("mine")
    with raises(InvalidPipeline, "target-unsuitable"):
        delta.stage(delta.numbers(1))
    with raises(InvalidPipeline, "target-unsuitable"):
        delta.writer().check()
    assert [path.name for path in delta.folder.iterdir()] == [Path(name).parts[0]]


# ---- what happens to the target between stage and commit


def test_a_target_dropped_after_staging_is_not_made_again(delta):
    handle = delta.stage(delta.numbers(3))
    shutil.rmtree(delta.folder)
    with raises(CannotPublish, "target-recreated") as error:
        delta.commit(handle)
    assert "--give-up lake" in error.value.todo
    assert not delta.folder.exists() or list(delta.folder.iterdir()) == []


def test_a_target_replaced_after_staging_is_not_touched(delta):
    handle = delta.stage(delta.numbers(3))
    shutil.rmtree(delta.folder / "_delta_log")
    DeltaTable.create(delta.uri, pa.schema([("n", pa.int32())]))
    with raises(CannotPublish, "target-recreated"):
        delta.commit(handle)
    assert (delta.version(), delta.read()) == (0, [])
    assert len(delta.staged()) == 1


def vacuum_by_spark(delta: Delta) -> None:
    delta.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    list_with_few_tasks(delta)
    delta.sql("VACUUM {t} RETAIN 0 HOURS")


def list_with_few_tasks(delta: Delta) -> None:
    """A VACUUM lists the folders with 10,000 tasks by default: two minutes of the processor."""
    delta.spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")


def vacuum_by_deltalake(delta: Delta) -> None:
    DeltaTable(delta.uri).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)


@pytest.mark.parametrize("vacuum", [pytest.param(vacuum_by_spark, marks=pytest.mark.heavy), vacuum_by_deltalake])
def test_vacuum_keeps_what_is_published_and_what_it_takes_is_not_half_published(delta, vacuum):
    delta.commit(delta.stage(delta.numbers(3)))
    waiting = delta.stage(delta.numbers(3, start=7), epoch=2)
    vacuum(delta)
    with raises(CannotPublish, "staged-files-missing") as error:
        delta.commit(waiting, 2)
    assert "--give-up lake" in error.value.todo
    assert (DeltaTable(delta.uri).transaction_version(waiting["app_id"]), delta.ns()) == (0x100000001, [0, 1, 2])


@pytest.mark.parametrize(
    "feature",
    [
        pytest.param(None, id="in process"),
        pytest.param("column mapping", id="through Spark", marks=pytest.mark.heavy),
    ],
)
def test_running_vacuum_takes_nothing_published(delta, feature):
    """Its list was made before the commit, and holds the staged files: they are copied to new names."""
    if feature:
        delta.sql(FEATURES[feature])
    delta.commit_through_spark(delta.stage(delta.numbers(3)))
    waiting, lake = delta.stage(delta.numbers(3, start=7), epoch=2), delta.writer(spark=lambda: delta.spark)
    eight_days_ago = time.time() - 8 * 24 * 3600
    for path in (delta.folder / waiting["folder"]).rglob("*"):
        os.utime(path, (eight_days_ago, eight_days_ago))
    list_with_few_tasks(delta)
    doomed = [
        Path(row["path"].removeprefix("file:"))
        for row in delta.spark.sql(f"VACUUM delta.`{delta.uri}` DRY RUN").collect()
    ]
    assert any(path.suffix == ".parquet" for path in doomed)
    rehearsed = lake.rehearse(waiting, 2)
    assert "copied" in rehearsed
    for path in filter(Path.is_file, doomed):
        path.unlink()
    lake.commit(rehearsed, 2, NEVER)
    assert delta.ns() == [0, 1, 2, 7, 8, 9]


@pytest.mark.parametrize(
    ("feature", "setting", "code"),
    [
        ("column mapping", "'delta.setTransactionRetentionDuration'='interval 7 days'", "transaction-retention"),
        ("row tracking", "'delta.setTransactionRetentionDuration'='interval 7 days'", "transaction-retention"),
    ],
)
def test_rehearsal_refuses_evidence_that_expires_through_spark(delta, feature, setting, code):
    delta.sql(FEATURES[feature])
    handle, lake = delta.stage(delta.numbers(2)), delta.writer(spark=lambda: delta.spark)
    delta.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({setting})")
    for step in (lambda: lake.rehearse(handle, 1), lambda: lake.commit(handle, 1, NEVER)):
        with pytest.raises(CannotPublish) as refused:
            step()
        assert refused.value.code == code
    assert delta.ns() == []


@pytest.mark.heavy
def test_log_cleanup_that_the_owner_switched_off_stays_off_through_spark(delta):
    delta.sql(FEATURES["column mapping"])
    off = "'delta.enableExpiredLogCleanup'='false', 'delta.checkpointInterval'='3'"
    delta.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({off}, 'delta.logRetentionDuration'='interval 30 days')")
    for epoch in range(1, 9):
        delta.commit_through_spark(delta.stage(delta.numbers(1, start=epoch), epoch), epoch)
        two_months_ago = time.time() - 60 * 24 * 3600
        for path in (delta.folder / "_delta_log").iterdir():
            os.utime(path, (two_months_ago, two_months_ago))
    names = sorted(path.name for path in (delta.folder / "_delta_log").glob("0*.json") if len(path.name) == 25)
    assert [int(name[:20]) for name in names] == list(range(10))
    assert any((delta.folder / "_delta_log").glob("*.checkpoint*.parquet"))


def test_one_staged_file_that_is_gone_is_enough_to_refuse(delta):
    handle = delta.stage(delta.numbers(4).repartition(4))
    Path(DeltaTable(str(delta.folder / handle["folder"])).file_uris()[0]).unlink()
    with raises(CannotPublish, "staged-files-missing", match=f"1 of {handle['files']} files"):
        delta.commit(handle)
    assert delta.ns() == []


def test_what_is_published_may_be_compacted_before_the_next_decision(delta):
    delta.commit(delta.stage(delta.numbers(4).repartition(4)))
    DeltaTable(delta.uri).optimize.compact()
    assert delta.commit(delta.stage(delta.numbers(1, start=9), epoch=2), decision=2).already is False
    assert delta.ns() == [0, 1, 2, 3, 9]


def test_a_column_added_to_the_target_after_staging_is_null_in_the_staged_rows(delta):
    handle = delta.stage(delta.numbers(2))
    delta.sql("ALTER TABLE {t} ADD COLUMN later STRING")
    assert delta.commit_through_spark(handle).already is False
    assert delta.commit_through_spark(handle).already is True
    assert delta.read() == [{"n": 0, "later": None}, {"n": 1, "later": None}]


def test_a_constraint_added_after_staging_that_the_rows_violate_is_refused(delta):
    handle = delta.stage(delta.numbers(2))
    delta.sql("ALTER TABLE {t} ADD CONSTRAINT big CHECK (n > 1000)")
    with raises(CannotPublish, "staged-rows-refused"):
        delta.commit_through_spark(handle)
    assert (delta.ns(), len(delta.staged())) == ([], 1)


def test_a_foreign_append_between_reading_and_publishing_is_no_disturbance(delta, monkeypatch):
    handle = delta.stage(delta.numbers(2))
    real = DeltaWriter._publish

    def overtaken(self, target, *args):
        write_deltalake(delta.uri, pa.table({"n": pa.array([100], pa.int32())}), mode="append")
        return real(self, target, *args)

    monkeypatch.setattr(DeltaWriter, "_publish", overtaken)
    delta.commit(handle)
    assert delta.ns() == [0, 1, 100]


def test_of_two_publishers_from_one_snapshot_one_publishes(delta, monkeypatch):
    handle = delta.stage(delta.numbers(2))
    real = DeltaWriter._publish

    def overtaken(self, *args):
        monkeypatch.setattr(DeltaWriter, "_publish", real)
        delta.commit(handle)
        return real(self, *args)

    monkeypatch.setattr(DeltaWriter, "_publish", overtaken)
    assert delta.commit(handle).already is True
    assert delta.ns() == [0, 1]


# ---- tables that delta-rs cannot write

FEATURES = {
    "row tracking": "CREATE TABLE {t} (n INT) USING delta TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
    "clustering": "CREATE TABLE {t} (n INT) USING delta CLUSTER BY (n)",
    "column mapping": "CREATE TABLE {t} (n INT) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
}


FEW = ["column mapping", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("row tracking", "clustering"))]


@pytest.mark.parametrize("feature", FEW)
def test_a_table_that_delta_rs_cannot_write_is_published_through_spark_once(delta, feature):
    delta.sql(FEATURES[feature])
    assert "through Spark" in delta.writer().check()[0]
    first, second = delta.stage(delta.numbers(2)), delta.stage(delta.numbers(1, start=5), epoch=2)
    assert first["publish"] == "spark"
    outcomes = [delta.commit_through_spark(first, 1) for _ in range(3)]
    assert [outcome.already for outcome in outcomes] == [False, True, True]
    delta.commit_through_spark(second, 2)
    assert delta.commit_through_spark(second, 2).already is True
    with pytest.raises(StateBehind):
        delta.commit_through_spark(first, 1)
    assert delta.ns() == [0, 1, 5]


@pytest.mark.heavy
def test_such_a_table_is_closed_through_spark(delta, monkeypatch):
    """Also to a publisher that has looked before: Spark passes over its rows without a word, and it looks again."""
    delta.sql(FEATURES["row tracking"])
    handle, lake = delta.stage(delta.numbers(2)), delta.writer(spark=lambda: delta.spark)
    monkeypatch.setattr(commits, "hold_exclusive", nullcontext)  # as where no lock keeps the two apart
    real = DeltaWriter._outcome_in

    def closed_after(self, *args):
        monkeypatch.setattr(DeltaWriter, "_outcome_in", real)
        found = real(self, *args)
        assert lake.fence(handle, 1) is None
        return found

    monkeypatch.setattr(DeltaWriter, "_outcome_in", closed_after)
    with pytest.raises(Fenced):
        lake.commit(handle, 1, NEVER)
    assert (lake.fence(handle, 1), delta.ns()) == (None, [])
    published = delta.stage(delta.numbers(1, start=5), epoch=2)
    delta.commit_through_spark(published, 2)
    assert lake.fence(published, 2).already
    assert [(trace.decision, delta.ns()) for trace in lake.traces("flights")] == [(2, [5])]


def test_so_is_one_that_fills_in_a_column_itself(delta):
    delta.sql("CREATE TABLE {t} (n INT, id BIGINT GENERATED ALWAYS AS IDENTITY) USING delta")
    handle, lake = delta.stage(delta.numbers(2)), delta.writer(spark=lambda: delta.spark)
    assert lake.fence(handle, 1) is None
    with pytest.raises(Fenced):
        lake.commit(handle, 1, NEVER)


FILLED_IN = {
    "an identity column": "(n INT, more BIGINT GENERATED ALWAYS AS IDENTITY) USING delta",
    "a generated column": "(n INT, more INT GENERATED ALWAYS AS (n + 1)) USING delta "
    "TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
}


@pytest.mark.parametrize("column", FILLED_IN)
def test_what_the_rows_leave_to_such_a_table_is_filled_in_when_they_are_published(delta, column):
    delta.sql(f"CREATE TABLE {{t}} {FILLED_IN[column]}")
    handle = delta.stage(delta.numbers(2))
    assert handle["publish"] == "spark"
    delta.commit_through_spark(handle, 1)
    rows = delta.spark.read.format("delta").load(delta.uri).orderBy("n").collect()
    assert [(row["n"], row["more"]) for row in rows] == [(0, rows[0]["more"]), (1, rows[1]["more"])]
    assert all(row["more"] is not None for row in rows)


def test_closing_such_a_table_writes_no_row(delta):
    """It is a commit of none of the table's own rows."""
    delta.sql(FEATURES["row tracking"])
    delta.commit_through_spark(delta.stage(delta.numbers(2)), 1)
    assert delta.writer(spark=lambda: delta.spark).fence(delta.stage(delta.numbers(1, start=5), epoch=2), 2) is None
    assert delta.ns() == [0, 1]


def test_the_path_is_told_before_any_work(delta):
    assert "will be created by the first stage" in delta.writer().check()[0]
    delta.sql("CREATE TABLE {t} (n INT) USING delta")
    assert "through delta-rs, metadata only" in delta.writer().check()[0]


@pytest.mark.parametrize(
    "properties", ["'delta.enableChangeDataFeed' = 'true'", "'delta.enableDeletionVectors' = 'true'"]
)
def test_tables_with_features_that_an_append_does_not_touch_take_the_light_path(delta, properties):
    delta.sql(f"CREATE TABLE {{t}} (n INT) USING delta TBLPROPERTIES ({properties})")
    handle = delta.stage(delta.numbers(2))
    assert handle["publish"] == "delta-rs"
    delta.commit(handle)
    delta.sql("DELETE FROM {t} WHERE n = 0")
    delta.commit(delta.stage(delta.numbers(1, start=7), epoch=2), 2)
    assert delta.ns() == [1, 7]


# ---- no JVM


LIGHT = """
import json, os, sys
from onceonly.checkpoint.model import Transaction
from onceonly import DeltaSink
from onceonly.sinks.delta.sink import DeltaWriter

uri, handle, waiting = sys.argv[1], json.loads(sys.argv[2]), Transaction.parse(sys.argv[3])

def spark():
    raise AssertionError("asked for Spark")

def writer():
    return DeltaWriter(DeltaSink("lake", uri), uri, spark)

writer().check()
assert writer().commit(handle, 1, None).already is False
assert writer().commit(handle, 1, None).already is True
writer().release(Transaction.parse(handle["folder"].removeprefix("staged-")))
assert writer().leftovers(waiting.prefix) == [waiting]
writer().discard(waiting, None)
children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
print(json.dumps({"modules": sorted({"pyspark", "py4j"} & set(sys.modules)), "children": children}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_commit_abort_and_recovery_start_no_jvm(delta):
    handle = delta.stage(delta.numbers(2))
    delta.stage(delta.numbers(1), epoch=2)
    command = [sys.executable, "-c", LIGHT, delta.uri, json.dumps(handle), transaction(2).name]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "JAVA_HOME": "/none"})
    assert json.loads(done.stdout) == {"modules": [], "children": []}
    assert delta.ns() == [0, 1]
    assert [unquote(name) for name in delta.staged()] == [handle["folder"]]

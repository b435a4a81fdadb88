"""Where Delta's own log store in Spark does not arbitrate: on S3 it is refused, on a local disk writers take turns."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable
from patience import PATIENCE
from unit.lightdelta import LightDelta, transaction

from onceonly.delta import commits, table_features, table_files
from onceonly.errors import CannotPublish, InvalidPipeline, OutcomeUnknown
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta import append, schema, spark_append, staged_table, target_table
from onceonly.sinks.delta.handle import DeltaHandle
from onceonly.sinks.delta.schema import Change
from onceonly.sinks.delta.sink import DeltaWriter

pytestmark = pytest.mark.slow

NEVER: Any = None
BUCKET = "s3://bucket/lake"


class Session:
    """Of Spark: its settings alone."""

    def __init__(self, **settings: str) -> None:
        self.conf = {name.replace("_", "."): value for name, value in settings.items()}

    @property
    def sparkSession(self) -> Session:
        return self


UNSAFE = [
    Session(),
    Session(spark_delta_logStore_s3a_impl="io.delta.storage.S3SingleDriverLogStore"),
    Session(spark_delta_logStore_s3_impl="io.delta.storage.S3DynamoDBLogStore"),  # Spark is given s3a:// paths
]
SAFE = [
    Session(spark_delta_logStore_s3a_impl="io.delta.storage.S3DynamoDBLogStore"),
    Session(spark_delta_logStore_class="com.example.Conditional"),
]


@pytest.mark.parametrize("uri", [BUCKET, "s3a://bucket/lake"])
@pytest.mark.parametrize("session", UNSAFE)
def test_on_s3_the_default_log_store_of_spark_is_refused(session: Session, uri: str) -> None:
    with raises(InvalidPipeline, "log-store-unsafe") as error:
        spark_append.refuse_unsafe("lake", uri, lambda: session)
    assert "spark.delta.logStore.s3a.impl" in error.value.todo


ACCOUNT = "abfss://c@a.dfs.core.windows.net/lake"


def test_on_azure_somebody_has_to_say_that_its_renames_arbitrate() -> None:
    """Only who runs the account knows whether it has hierarchical namespaces."""
    with raises(InvalidPipeline, "log-store-unsafe") as error:
        spark_append.refuse_unsafe("lake", ACCOUNT, Session)
    assert "spark.delta.logStore.abfss.impl=io.delta.storage.AzureLogStore" in error.value.todo
    for said in ("spark_delta_logStore_abfss_impl", "spark_delta_logStore_class"):
        spark_append.refuse_unsafe("lake", ACCOUNT, lambda said=said: Session(**{said: "AzureLogStore"}))


@pytest.mark.parametrize("session", SAFE)
def test_one_that_arbitrates_is_taken(session: Session) -> None:
    spark_append.refuse_unsafe("lake", BUCKET, lambda: session)


@pytest.mark.parametrize("uri", ["/lake", "file:///lake", "gs://bucket/lake"])
def test_elsewhere_spark_is_not_asked(uri: str) -> None:
    spark_append.refuse_unsafe("lake", uri, lambda: pytest.fail("asked"))


@pytest.fixture
def lake(tmp_path: Path) -> LightDelta:
    return LightDelta(tmp_path / "lake")


def test_check_stage_commit_and_fence_refuse_it(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = {**lake.stage(transaction(), [1]), "publish": "spark"}
    table, files = DeltaTable(lake.uri), table_files.open_folder(lake.uri)
    monkeypatch.setattr(table_files, "open_table", lambda uri: table)
    monkeypatch.setattr(table_files, "open_folder", lambda uri: files)
    monkeypatch.setattr(table_features, "find_unsupported", lambda table: "rowTracking")
    monkeypatch.setattr(target_table, "open_or_create", lambda *_: table)
    monkeypatch.setattr(target_table, "require_exclusive_commits", lambda *_: None)
    adds = staged_table.read_adds(lake.uri, handle["folder"], 1)
    monkeypatch.setattr(staged_table, "read_adds", lambda *_: adds)
    monkeypatch.setattr(append, "publish", lambda *_: None)
    monkeypatch.setattr(schema, "check", lambda *_: Change([], {}))
    monkeypatch.setattr(schema, "check_rows", lambda *_: None)
    far = DeltaWriter(DeltaSink("lake", BUCKET), BUCKET, Session)
    with raises(InvalidPipeline, "log-store-unsafe"):
        far.check()
    with raises(InvalidPipeline, "log-store-unsafe"):
        far.stage(transaction(2), Session())
    with raises(CannotPublish, "staged-rows-refused") as error:
        far.commit(handle, 1, NEVER)
    assert "with its log store S3SingleDriverLogStore, the last of two writers wins" in error.value.why
    with raises(OutcomeUnknown, "commit-unconfirmed"):
        far.fence(handle, 1)
    assert table.version() == 0


# ---- on a local disk


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "LOCK_TIMEOUT_SECONDS", 0.1)


@pytest.mark.usefixtures("impatient")
def test_publishers_of_delta_rs_share_and_one_through_spark_is_alone(lake: LightDelta) -> None:
    lake.stage(transaction(), [1])
    with (
        commits.hold_shared(lake.uri),
        commits.hold_shared(lake.uri),
        raises(OutcomeUnknown, "log-locked"),
    ):
        commits.hold_exclusive(lake.uri).__enter__()
    for other in (commits.hold_exclusive, commits.hold_shared):
        with commits.hold_exclusive(lake.uri), raises(OutcomeUnknown, "log-locked"):
            other(lake.uri).__enter__()


def test_whoever_waits_goes_on_when_the_other_has_ended(lake: LightDelta) -> None:
    handle, begun, may_end = lake.stage(transaction(), [1]), threading.Event(), threading.Event()

    def publishes_through_spark() -> None:
        with commits.hold_exclusive(lake.uri):
            begun.set()
            may_end.wait(PATIENCE)

    other = threading.Thread(target=publishes_through_spark)
    other.start()
    assert begun.wait(PATIENCE)
    waiting = threading.Thread(target=lake.commit, args=(handle, 1, NEVER))
    waiting.start()
    waiting.join(0.2)
    assert lake.numbers() == []
    may_end.set()
    waiting.join(PATIENCE)
    other.join(PATIENCE)
    assert lake.numbers() == [1]


@pytest.mark.usefixtures("impatient")
def test_nothing_is_written_to_the_log_beside_spark(lake: LightDelta) -> None:
    """Rows, columns, and the end of a decision."""
    handle = lake.stage(transaction(), [1])
    column = {"name": "text", "type": "string", "nullable": True, "metadata": {}}
    with commits.hold_exclusive(lake.uri):
        for tried in (handle, {**handle, "added": [column]}):
            with raises(OutcomeUnknown, "log-locked"):
                lake.commit(tried, 1, NEVER)
        with raises(OutcomeUnknown, "log-locked"):
            lake.fence(handle, 1)
    assert DeltaTable(lake.uri).version() == 0


def test_a_file_system_without_locks_takes_delta_rs_and_no_spark(lake: LightDelta, monkeypatch: Any) -> None:
    def without(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    handle = lake.stage(transaction(), [1])
    monkeypatch.setattr(commits.fcntl, "flock", without)
    assert not lake.commit(handle, 1, NEVER).already
    with pytest.raises(OSError, match="No locks"):
        commits.hold_exclusive(lake.uri).__enter__()


# ---- Spark fails


class Py4JJavaError(Exception):
    """As Py4J shows what Java has thrown."""

    def __str__(self) -> str:
        return (
            "An error occurred while calling o72.save.\n"
            ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 times\n"
            "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2898)\n"
            "Caused by: java.io.IOException: No space left on device\n"
            "\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)\n"
        )


class FullDisk(Session):
    """A session whose every use fails."""

    def __getattr__(self, name: str) -> Any:
        raise Py4JJavaError


def publish(lake: LightDelta, handle: Any, spark: Any) -> None:
    spark_append.publish(spark, "lake", lake.uri, DeltaHandle.parse("lake", handle), 2, lambda: None)


def close(lake: LightDelta, handle: Any, spark: Any) -> None:
    spark_append.commit_version(spark, "lake", lake.uri, DeltaTable(lake.uri), handle["app_id"], 2)


@pytest.mark.parametrize("step", [publish, close])
def test_failure_of_spark_is_told_by_its_cause(lake: LightDelta, step: Any) -> None:
    """Once it is decided: what Py4J says first is the name of a call."""
    handle = lake.stage(transaction(), [1])
    with pytest.raises(OutcomeUnknown) as unknown:
        step(lake, handle, FullDisk)
    assert "An error occurred while calling" not in str(unknown.value)
    assert "Job aborted due to stage failure" in unknown.value.why
    assert "No space left on device" in unknown.value.why


def test_refusal_of_spark_is_told_by_its_cause(lake: LightDelta) -> None:
    text = "An error occurred while calling o72.save.\n: DeltaException: [DELTA_NOT_NULL_CONSTRAINT_VIOLATED] of n\n"
    told = spark_append._explain(
        Exception(text), "lake", "/lake", DeltaHandle.parse("lake", lake.stage(transaction(), [1]))
    )
    assert isinstance(told, CannotPublish)
    assert "An error occurred while calling" not in str(told)
    assert "DELTA_NOT_NULL_CONSTRAINT_VIOLATED" in told.why


# ---- closed by Spark


class Conf(dict[str, str]):
    """Of a session."""

    def set(self, name: str, value: str) -> None:
        self[name] = value

    def unset(self, name: str) -> None:
        self.pop(name, None)


class Rows:
    """A DataFrame, its session, its reader and its writer, as they are asked; `saved` has the rows of each append."""

    def __init__(self, count: int, saved: list[int]) -> None:
        self.count, self.saved = count, saved
        self.conf = Conf()

    def __getattr__(self, name: str) -> Any:
        """`read`, `write`, `sparkSession`; and format, load, drop, mode, option and options, which change no row."""
        return self if name in ("read", "write", "sparkSession") else lambda *_, **__: self

    def limit(self, most: int) -> Rows:
        return Rows(min(most, self.count), self.saved)

    def save(self, uri: str) -> None:
        self.saved.append(self.count)


def test_closing_a_decision_appends_none_of_the_rows_that_are_there(lake: LightDelta) -> None:
    lake.commit(lake.stage(transaction(), [1, 2, 3]), 1, NEVER)
    session = Rows(3, saved=[])
    spark_append.commit_version(lambda: session, "lake", lake.uri, DeltaTable(lake.uri), "onceonly/a/b/c", 2)
    assert session.saved == [0]

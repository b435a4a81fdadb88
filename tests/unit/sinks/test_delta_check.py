"""What the Delta sink says of a target before any work; no Spark."""

from pathlib import Path

import pyarrow as pa
from codes import raises
from deltalake import DeltaTable

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta.sink import DeltaWriter

SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.string())])


def writer(path: Path, *partition_by: str) -> DeltaWriter:
    def no_spark() -> None:
        raise AssertionError("check starts no Spark")

    return DeltaWriter(DeltaSink("out", path=str(path), partition_by=partition_by), str(path), no_spark)


def test_a_new_target_will_be_created_and_is_not_yet(tmp_path: Path) -> None:
    assert "will be created" in writer(tmp_path / "t").check()[0]
    assert not (tmp_path / "t").exists()


def test_a_table_of_ours_is_published_to_by_metadata_only(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), SCHEMA, partition_by=["day"])
    assert "metadata only" in writer(tmp_path, "day").check()[0]


def test_other_partitioning_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), SCHEMA, partition_by=["day"])
    with raises(InvalidPipeline, "partitioning-differs"):
        writer(tmp_path, "n").check()


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with raises(InvalidPipeline, "target-unsuitable"):
        writer(tmp_path).check()


def test_a_table_that_forgets_transactions_is_refused(tmp_path: Path) -> None:
    configuration = {"delta.setTransactionRetentionDuration": "interval 7 days"}
    DeltaTable.create(str(tmp_path), SCHEMA, configuration=configuration)
    with raises(InvalidPipeline, "transaction-retention"):
        writer(tmp_path).check()

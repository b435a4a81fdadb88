"""A warehouse on an object store: the suite that every sink has to pass, and rows that Spark stages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from iceberg_damages import ICEBERG_BREAKS, ICEBERG_DAMAGES
from iceberg_tables import TABLE, IcebergTarget, InProcess, create_table, numbers, sql_properties
from integration.services import spark_on_s3
from integration.services.s3 import BINARY, MISSING, S3
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import Sink
from onceonly.testing import contract
from onceonly.testing.contract import SINK, Rows, SinkContract
from onceonly.testing.fakes import FakeReceipts
from onceonly_iceberg import IcebergSink
from onceonly_iceberg.catalogs import TableOpener
from onceonly_iceberg.sink import IcebergWriter

MakeTarget = Callable[..., "OnS3"]  # bucket, specification of partitions

pytestmark = [pytest.mark.integration, pytest.mark.skipif(BINARY is None, reason=MISSING)]


def store_properties(s3: S3) -> dict[str, str]:
    environment = s3.environment
    return {
        "s3.endpoint": environment["AWS_ENDPOINT_URL"],
        "s3.access-key-id": environment["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": environment["AWS_SECRET_ACCESS_KEY"],
        "s3.region": environment["AWS_REGION"],
    }


@dataclass(frozen=True)
class OnS3(IcebergTarget):
    """A table whose catalog is below a folder, and whose files are in a bucket.

    Args:
        bucket: the folder in which the server keeps its objects.
        warehouse: a path in it.
        login: PyIceberg's properties of the store.
    """

    bucket: str = ""
    warehouse: str = ""
    login: Mapping[str, str] = field(default_factory=dict)

    def sink(self) -> Sink:
        return InProcess(*self._arguments())

    def spark_sink(self) -> IcebergWriter:
        return IcebergWriter(*self._arguments())

    def _arguments(self) -> tuple[IcebergSink, TableOpener]:
        config = IcebergSink(SINK, TABLE, connection="iceberg")
        return config, TableOpener(config, self.catalog_properties())

    def catalog_properties(self) -> dict[str, str]:
        bucket = Path(self.bucket).name
        return {**sql_properties(self.folder), **self.login, "warehouse": f"s3://{bucket}/{self.warehouse}"}

    def path_of(self, uri: str) -> Path:
        return Path(self.bucket) / uri.removeprefix(f"s3://{Path(self.bucket).name}/")

    def traces(self, txn: Transaction) -> list[Any]:
        return [path for path in (Path(self.bucket) / self.warehouse).rglob("*") if txn.name in path.name]


@pytest.fixture
def make_target(s3: S3, tmp_path: Path) -> MakeTarget:
    def make(bucket: str, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC) -> OnS3:
        target = OnS3(
            str(tmp_path / "lake"), bucket=str(s3.data / bucket), warehouse=uuid.uuid4().hex, login=store_properties(s3)
        )
        create_table(target.folder, spec=spec, catalog_properties=target.catalog_properties())
        return target

    return make


class TestIcebergOnS3(SinkContract):
    breaks = ICEBERG_BREAKS
    damages = ICEBERG_DAMAGES

    @pytest.fixture
    def target(self, make_target: MakeTarget, s3: S3) -> contract.Target:
        return make_target(s3.bucket)

    @pytest.fixture
    def make_rows(self) -> Rows:
        return numbers


@pytest.mark.skipif(not spark_on_s3.FETCHED, reason=spark_on_s3.UNFETCHED)
def test_spark_stages_partitions_in_a_bucket(
    make_target: MakeTarget, s3: S3, spark_server: str, tmp_path: Path
) -> None:
    receipts = FakeReceipts(tmp_path / "receipts")
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "n_bucket"))
    target = make_target(spark_on_s3.bucket(s3), spec)
    rows = spark_on_s3.session(spark_server, s3.environment).range(1000).selectExpr("cast(id AS int) AS n")
    txn = Transaction("ab", "flights", SINK, 1, 1, "0001000010000")
    handle: Handle = json.loads(json.dumps(target.spark_sink().stage(txn, rows)))
    assert target.published() == []
    sink = target.spark_sink()
    assert not sink.commit(sink.rehearse(handle, 1), 1, receipts).already
    assert target.spark_sink().commit(handle, 1, receipts).already
    assert target.published() == list(range(1000))
    tasks = list(target.table().scan().plan_files())
    assert {task.file.partition[0] for task in tasks} == set(range(4))
    assert read_objects(target) == list(range(1000))


def read_objects(target: OnS3) -> list[int]:
    """Return the numbers in all Parquet objects of the bucket, from the disk of the server."""
    numbers: list[int] = []
    for path in Path(target.bucket).rglob("*.parquet"):
        numbers += pq.ParquetFile(path).read()["n"].to_pylist()
    return sorted(numbers)

"""Tables that other projects keep as test data: each one is read equal or refused, and appended to without harm.

They are fetched, not committed: ONCEONLY_GOLDEN names a folder below which they are, for example clones of
delta-io/delta, delta-io/delta-rs and delta-io/delta-kernel-rs with their archives unpacked.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.offsets import TopicRange
from onceonly.errors import OnceonlyError
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sources.delta import DeltaReader

GOLDEN = os.environ.get("ONCEONLY_GOLDEN", "")
TABLES = sorted(log.parent for log in Path(GOLDEN).rglob("_delta_log")) if GOLDEN else []
pytestmark = [
    pytest.mark.integration,
    pytest.mark.heavy,
    pytest.mark.skipif(not TABLES, reason="ONCEONLY_GOLDEN names no folder of tables"),
]
TXN = Transaction("11112222", "p", "lake", 1, 1, "0" * 12)
Rows = Counter[str]
names = pytest.mark.parametrize("table", TABLES, ids=[str(table.relative_to(GOLDEN)) for table in TABLES])


def plain(value: Any) -> Any:
    """A value in the words of every reader."""
    match value:
        case dict():
            return {key: plain(part) for key, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case datetime():
            return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        case date():
            return datetime(value.year, value.month, value.day)
        case Decimal():
            return value.normalize() if value else Decimal(0)
        case _:
            return value


def counted(table: pa.Table) -> Rows:
    columns = sorted(table.column_names)
    lists = [table[name].to_pylist() for name in columns]
    return Counter(repr([plain(value) for value in row]) for row in zip(*lists, strict=True))


def by_project(table: Path) -> Rows | None:
    """What the project's own files say that its rows are."""
    own = table.parent / "expected"
    if not own.is_dir() or table.name != "delta":
        return None
    files = [str(file) for file in (own / "latest" if (own / "latest").is_dir() else own).rglob("*.parquet")]
    return counted(ds.dataset(files).to_table())


def by_deltalake(table: Path) -> Rows | None:
    try:
        return counted(DeltaTable(table).to_pyarrow_table())
    except Exception:
        return None


def by_spark(spark: Any, table: Path) -> Rows | None:
    try:
        return counted(spark.read.format("delta").load(str(table)).toArrow())
    except Exception:
        return None


def seen(spark: Any, table: Path) -> tuple[Rows | None, Rows | None]:
    """By deltalake and by Spark."""
    return by_deltalake(table), by_spark(spark, table)


@names
def test_read_equal_or_refused(spark: Any, table: Path, record_property: Any) -> None:
    """Equal to what the project says; or, where that depends on a session's time zone, to what other readers find."""
    reader = DeltaReader(DeltaSource(str(table), name="golden"), str(table))
    try:
        reader.check()
        log = reader.log()
        range_ = reader.add_mark(TopicRange(log.topic, log.topic_id, log.partitions, kind=log.kind), None)
        reader.verify((range_,))
        found = counted(reader.read(spark, (range_,)).toArrow())
    except OnceonlyError as refusal:
        print(f"refused: {refusal.what} {refusal.why}")
        record_property("outcome", "refused")
        return
    except PySparkException:
        assert by_spark(spark, table) is None
        record_property("outcome", "Spark itself does not read it")
        return
    truths = {"the project's own": by_project(table), "deltalake": by_deltalake(table), "Spark": by_spark(spark, table)}
    equal = [name for name, rows in truths.items() if rows == found]
    assert equal, {name: rows and (rows - found, found - rows) for name, rows in truths.items()}
    record_property("outcome", f"equal to {equal[0]}")


def logged(table: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (table / "_delta_log").iterdir() if file.is_file()}


@names
@pytest.mark.parametrize("in_process", [True, False], ids=["few", "many"])
def test_appended_to_without_harm(
    spark: Any, table: Path, tmp_path: Path, in_process: bool, record_property: Any
) -> None:
    copy = tmp_path / "table"
    shutil.copytree(table, copy)
    before, log = seen(spark, copy), logged(copy)
    if before[1] is None:
        pytest.skip("Spark does not read it")
    writer = DeltaWriter(DeltaSink("lake", str(copy)), str(copy), lambda: spark)
    row = spark.read.format("delta").load(str(copy)).limit(1).coalesce(1)
    added = counted(row.toArrow())
    try:
        writer.check()
        handle = writer.rehearse(writer.stage(TXN, row, in_process), 1)
    except (OnceonlyError, PySparkException) as refusal:
        print(f"refused: {refusal}")
        record_property(
            "outcome", "refused" if isinstance(refusal, OnceonlyError) else "refused by Spark while staging"
        )
        writer.discard(TXN, None)
        assert logged(copy) == log
        assert seen(spark, copy) == before
        return
    writer.commit(handle, 1, None)  # type: ignore[arg-type]
    by_both = (
        before[0] == before[1]
    )  # deltalake reads columns by their logical names, and finds nulls where they differ
    after = seen(spark, copy)
    assert after[1] == before[1] + added
    assert after[0] == after[1] or not by_both
    record_property("outcome", f"appended by {handle['publish']}")

"""The state table in Spark's SQL, by the statement of the documentation."""

from __future__ import annotations

from pyspark.sql import SparkSession
from unit.statetable import test_state_sql
from unit.statetable.test_state_sql import check, statement

from onceonly.statetable.table import StateTable

table = test_state_sql.table


def test_spark_reads_all_pipelines_at_once(spark: SparkSession, table: StateTable) -> None:
    found = spark.sql(f"SELECT pipeline, seq, event, head FROM ({statement('Spark', table.uri)}) ORDER BY 1, 2")
    check(table, [tuple(row) for row in found.collect()])

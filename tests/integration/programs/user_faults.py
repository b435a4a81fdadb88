"""Mistakes that users make in a transform or a table, each staged once into a Delta table: a line of JSON for each.

Arguments: a folder for tables. SPARK_REMOTE names a server; without it Spark runs in this process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onceonly.checkpoint.model import Transaction
from onceonly.pipeline.sinks import DeltaSink
from onceonly.runtime import spark_errors
from onceonly.settings import Settings
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.spark.session import session

Make = Callable[[Any], Any]  # rows, or what raises while they are made
TEXT = "CASE WHEN id < 5 THEN '1' ELSE 'x' END"


def _function(body: Callable[[int], Any]) -> Make:
    def make(rows: Any) -> Any:
        from pyspark.sql.functions import udf

        return rows.select(udf(body, "bigint")("id").alias("n"))

    return make


def _raise(number: int) -> int:
    return int({}[number])


def _import(number: int) -> Any:
    import package_that_nobody_has  # type: ignore[import-not-found]

    return package_that_nobody_has


def _die(number: int) -> int:
    import os

    os._exit(3)


def _exhaust(number: int) -> int:
    raise MemoryError


def _expression(*columns: str) -> Make:
    return lambda rows: rows.selectExpr(*columns)


def _sql(statement: str) -> Make:
    return lambda rows: rows.sparkSession.sql(statement)


FAULTS: Mapping[str, tuple[str, Make]] = {  # name -> code, or several of which it is one, and rows
    "cast": ("value-does-not-fit", _expression(f"CAST({TEXT} AS INT) AS n")),
    "overflow": ("value-does-not-fit", _expression("9223372036854775807 + id AS n")),
    "decimal": ("value-does-not-fit", _expression("CAST(id * 100000 AS DECIMAL(4,0)) AS n")),
    "timestamp": ("value-does-not-fit", _expression(f"to_timestamp({TEXT}, 'yyyy-MM-dd') AS n")),
    "division": ("division-by-zero", _expression("1 / (id - id) AS n")),
    "index": ("out-of-bounds", _expression("array(1)[id] AS n")),
    "map key": ("out-of-bounds", _expression("map(id, 1, id, 2) AS n")),
    "column": ("no-such-column", _expression("idd AS n")),
    "ambiguous": ("no-such-column", lambda rows: rows.join(rows.withColumn("x", rows.id), "x")),
    "table": ("no-such-table", _sql("SELECT * FROM nothing_of_the_kind")),
    "path": ("no-such-table", _sql("SELECT * FROM parquet.`/nothing/of/the/kind`")),
    "types": ("type-of-expression", _expression("map(1, 2) + id AS n")),
    "format": ("jar-missing", lambda rows: rows.sparkSession.read.format("nothing.of.the.kind").load()),
    "function": ("function-raised", _function(_raise)),
    "package": ("package-missing-on-workers", _function(_import)),
    "memory": ("out-of-memory", _function(_exhaust)),
    "worker": ("executor-lost or task-failed", _function(_die)),  # on a cluster, Connect has no cause of it
    "long name": ("name-too-long", _expression("id AS n", "repeat('x', 300) AS part")),
    "null": ("null-refused", _expression("IF(id < 5, id, NULL) AS n")),
    "check": ("constraint-violated", _expression("id AS n")),
    "varchar": ("text-too-long", _expression("repeat('x', CAST(id AS INT)) AS n")),
}
TABLES = {  # what the target is, for those that are about one
    "null": ("n BIGINT NOT NULL", ""),
    "check": ("n BIGINT", "ADD CONSTRAINT small CHECK (n < 5)"),
    "varchar": ("n VARCHAR(3)", ""),
}


def main(folder: str) -> None:
    spark = session(Settings.from_env())
    for name, (_, make) in FAULTS.items():
        uri = f"{folder}/{name.replace(' ', '_')}"
        if name in TABLES:
            columns, alteration = TABLES[name]
            spark.sql(f"CREATE TABLE delta.`{uri}` ({columns}) USING delta").collect()
            if alteration:
                spark.sql(f"ALTER TABLE delta.`{uri}` {alteration}").collect()
        partition_by = ("part",) if name == "long name" else ()
        writer = DeltaWriter(DeltaSink("out", uri, partition_by), uri, lambda: spark)
        try:
            rows = make(spark.range(0, 10).repartition(2))
            writer.check()
            writer.stage(Transaction("11112222", "p", "out", 1, 1, "0" * 12), rows)
            shown = {"code": "", "text": "nothing was raised"}
        except Exception as error:
            code = getattr(error, "code", "") or spark_errors.classify(str(error))[0]
            shown = {"code": code, "text": spark_errors.describe_error(error, [Path(__file__).parent])}
        print("FAULT", json.dumps({"name": name, **shown}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

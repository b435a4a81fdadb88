"""A program for a Spark with Iceberg's own runtime: it reads tables by their metadata files.

Standard input: [{"metadata": URI, "conditions": [SQL]}]. The file that is named gets, for each table, its rows as
sorted texts, and how many rows satisfy each condition.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0"


def main(ivy_folder: str, result: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars.packages", RUNTIME).config("spark.jars.ivy", ivy_folder)
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    answers = []
    for table in json.load(sys.stdin):
        rows = spark.read.format("iceberg").load(table["metadata"])
        counts = [rows.where(condition).count() for condition in table["conditions"]]
        answers.append({"rows": sorted(repr(plain(row)) for row in rows.collect()), "counts": counts})
    Path(result).write_text(json.dumps(answers))


def plain(value: Any) -> Any:
    """Return a value as Python's own: bytes, and rows as tuples."""
    if isinstance(value, bytearray):
        return bytes(value)
    return tuple(plain(part) for part in value) if isinstance(value, tuple) else value


if __name__ == "__main__":
    main(*sys.argv[1:])

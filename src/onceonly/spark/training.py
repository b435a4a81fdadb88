"""What `archive.make` has a Spark do: the usual steps of a stage, so that their classes are loaded when it ends.

python -m onceonly.spark.training ARCHIVE
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro

from onceonly.checkpoint.offsets import TopicRange
from onceonly.settings import Settings
from onceonly.spark import jvm
from onceonly.spark.read import read_ranges
from onceonly.spark.session import session
from onceonly.spark.strict_reading import strict_reader

AVRO = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]}'
NOBODY = {"bootstrap.servers": "127.0.0.1:9", "default.api.timeout.ms": "1000", "request.timeout.ms": "1000"}
OF_KAFKA = tuple(f"org.apache.kafka.{each}." for each in ("clients.consumer", "common.record", "common.requests"))


def main(archive: str) -> None:
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds*=off"
    with TemporaryDirectory() as folder:
        settings = replace(Settings.from_env(), home=Path(folder), spark_remote=None)
        more = {"spark.master": "local[2]", jvm.CLASS_PATH: os.pathsep.join(jvm.listed(settings.jars))}
        with session(settings, more) as spark:
            _rows(spark, folder)
            _topic(spark)
            _load(spark, jvm.listed(settings.jars))


def _rows(spark: SparkSession, folder: str) -> None:
    """Decoded, kept, written as Delta and as Parquet, encoded, and handed to Python."""
    numbers = spark.range(0, 1000, 1, 2).withColumn("text", F.concat(F.lit("text "), F.col("id").cast("string")))
    decoded = numbers.select(from_avro(to_avro(F.struct("id", "text"), AVRO), AVRO).alias("value")).select("value.*")
    rows = decoded.withColumn("day", F.to_date(F.timestamp_seconds(F.col("id") * 1000))).persist()
    for _ in range(2):
        rows.write.format("delta").mode("append").partitionBy("day").save(f"{folder}/delta")
    rows.write.parquet(f"{folder}/parquet")
    strict_reader(spark).parquet(f"{folder}/parquet").groupBy("day").agg(F.count("*"), F.max("id")).collect()
    _records(rows).mapInArrow(_same, "key binary, value binary").collect()
    _fetched(_records(rows).limit(500))
    rows.unpersist()


def _records(rows: DataFrame) -> DataFrame:
    return rows.select(
        F.col("text").cast("binary").alias("key"), F.to_json(F.struct("*")).cast("binary").alias("value")
    )


def _fetched(rows: DataFrame) -> None:
    rows.toArrow() if hasattr(rows, "toArrow") else rows.collect()  # Spark 3.5 has none


def _same(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


def _topic(spark: SparkSession) -> None:
    """No broker is asked for anything: to plan the read of one that is not there loads most of the client."""
    with suppress(Exception):  # whatever a client calls it
        read_ranges(spark, NOBODY, (TopicRange("topic", "id", {0: (0, 1)}),)).limit(1).collect()


def _load(spark: SparkSession, jars: list[str]) -> None:
    """The rest of Kafka's client by name."""
    lang = cast(Any, spark)._jvm.java.lang
    loader = lang.ClassLoader.getSystemClassLoader()
    for name in _names(jars):
        with suppress(Exception):  # one that needs what is not there, such as another compression
            lang.Class.forName(name, False, loader)


def _names(jars: list[str]) -> Iterator[str]:
    from zipfile import ZipFile

    for jar in jars:
        with ZipFile(jar) as archive:
            names = [name.removesuffix(".class").replace("/", ".") for name in archive.namelist()]
        yield from (name for name in names if name.startswith(OF_KAFKA))


if __name__ == "__main__":
    main(sys.argv[1])

"""The program that `jvm.make_archive` runs: the usual steps of a stage, so that their classes are loaded when it ends.

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
from onceonly.spark.row_files import strict_reader
from onceonly.spark.session import session
from onceonly.spark.topics import read_ranges

AVRO = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]}'
NOBODY = {"bootstrap.servers": "127.0.0.1:9", "default.api.timeout.ms": "1000", "request.timeout.ms": "1000"}
KAFKA_PACKAGES = (
    "org.apache.kafka.clients.consumer.",
    "org.apache.kafka.common.record.",
    "org.apache.kafka.common.requests.",
)


def main(archive: str) -> None:
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds*=off"
    with TemporaryDirectory() as folder:
        settings = replace(Settings.from_env(), home=Path(folder), spark_remote=None)
        jars = jvm.list_jars(settings.jars)
        with session(settings, {"spark.master": "local[2]", jvm.CLASS_PATH: os.pathsep.join(jars)}) as spark:
            _process_rows(spark, folder)
            _plan_topic_read(spark)
            _load_classes(spark, jars)


def _process_rows(spark: SparkSession, folder: str) -> None:
    """Decode rows, keep them, write them as Delta and as Parquet, encode them, and hand them to Python."""
    numbers = spark.range(0, 1000, 1, 2).withColumn("text", F.concat(F.lit("text "), F.col("id").cast("string")))
    decoded = numbers.select(from_avro(to_avro(F.struct("id", "text"), AVRO), AVRO).alias("value")).select("value.*")
    rows = decoded.withColumn("day", F.to_date(F.timestamp_seconds(F.col("id") * 1000))).persist()
    for _ in range(2):
        rows.write.format("delta").mode("append").partitionBy("day").save(f"{folder}/delta")
    rows.write.parquet(f"{folder}/parquet")
    strict_reader(spark).parquet(f"{folder}/parquet").groupBy("day").agg(F.count("*"), F.max("id")).collect()
    _encode(rows).mapInArrow(_return_unchanged, "key binary, value binary").collect()
    _fetch(_encode(rows).limit(500))
    rows.unpersist()


def _encode(rows: DataFrame) -> DataFrame:
    return rows.select(
        F.col("text").cast("binary").alias("key"), F.to_json(F.struct("*")).cast("binary").alias("value")
    )


def _fetch(rows: DataFrame) -> None:
    if hasattr(rows, "toArrow"):
        rows.toArrow()
    else:  # Spark 3.5
        rows.collect()


def _return_unchanged(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


def _plan_topic_read(spark: SparkSession) -> None:
    """Plan the read of a topic whose broker does not exist, which loads most of the client. Nothing is requested."""
    with suppress(Exception):  # whatever a client calls it
        read_ranges(spark, NOBODY, (TopicRange("topic", "id", {0: (0, 1)}),), patience=1).limit(1).collect()


def _load_classes(spark: SparkSession, jars: list[str]) -> None:
    """Load the rest of Kafka's client by name."""
    lang = cast(Any, spark)._jvm.java.lang
    loader = lang.ClassLoader.getSystemClassLoader()
    for name in _iterate_class_names(jars):
        with suppress(Exception):  # one that needs what is not there, such as another compression
            lang.Class.forName(name, False, loader)


def _iterate_class_names(jars: list[str]) -> Iterator[str]:
    """Yield the names of the classes of Kafka's client."""
    from zipfile import ZipFile

    for jar in jars:
        with ZipFile(jar) as archive:
            files = archive.namelist()
        for file in files:
            name = file.removesuffix(".class").replace("/", ".")
            if name.startswith(KAFKA_PACKAGES):
                yield name


if __name__ == "__main__":
    main(sys.argv[1])

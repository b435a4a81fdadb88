"""A topic with garbage, and where each record has to be: known from what was produced, and from nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from deltalake import DeltaTable
from integration.projects.project import Project
from integration.readers.kafka_reader import Record, committed, create_topic
from patience import PATIENCE

from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.pipeline.sinks import DeltaSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable.table import StateTable

DDL = "n BIGINT, cents BIGINT"
TRANSFORM = """
from pyspark.sql import functions as F


def orders(batch):
    refused = F.coalesce(F.col("value.cents") < 0, F.lit(False))
    why = F.lit("cents is negative").alias("error")
    return {
        "orders": batch.where(~refused).select("partition", "offset", "value.n", "value.cents"),
        "dead": batch.where(refused).select("topic", "partition", "offset", why),
    }


def all_orders(batch):
    return batch.select("partition", "offset", "value.n", "value.cents")


def invented(batch):
    letters = batch.limit(1).selectExpr("topic", "partition", "offset + 1000000 AS offset", "'no such' AS error")
    return {"orders": all_orders(batch), "dead": letters}
"""
GARBAGE = (
    lambda n: f"not json {n}".encode(),
    lambda n: b'{"n": %d, "cents": ' % n,
    lambda n: b'{"n": %d} {"n": %d}' % (n, n),
    lambda n: b'{"n": "many"}',
    lambda n: b"",
    lambda n: b"\xff\xfe %d" % n,
    lambda n: b'{"n": %d, "cents": -5}' % n,  # which the transform refuses
)
SHARE = 100  # one of so many is garbage


def value(n: int) -> bytes | None:
    """Garbage at every SHARE-th; of the others, some are tombstones."""
    if is_bad(n):
        return GARBAGE[n // SHARE % len(GARBAGE)](n)
    return None if n % SHARE == 7 else json.dumps({"n": n, "cents": n}).encode()


def is_bad(n: int) -> bool:
    return n % SHARE == 3


def is_refused(n: int) -> bool:
    """By the transform."""
    return is_bad(n) and n // SHARE % len(GARBAGE) == len(GARBAGE) - 1


@dataclass(frozen=True)
class Garbage:
    """A project that reads such a topic; its dead letters go to a table, or to the topic `out`."""

    project: Project
    out: str | None = None

    @classmethod
    def make(cls, folder: Path, broker: str, spark: str, topic: str, out: str | None = None) -> Garbage:
        (folder / f"transforms_{topic}.py").write_text(TRANSFORM)
        (folder / "orders.ddl").write_text(DDL)
        create_topic(broker, topic, partitions=3)
        if out:
            create_topic(broker, out, partitions=2)
        made = Project(folder, broker, spark, topic)
        StateTable.make(made.settings.state)
        return cls(made, out)

    @property
    def topic(self) -> str:
        return self.project.topic

    def produce(self, numbers: Iterable[int]) -> None:
        """Keyed by its number, with a header."""
        producer = Producer({"bootstrap.servers": self.project.bootstrap})
        for n in numbers:
            producer.produce(
                self.topic, value(n), str(n), partition=n % 3, headers=[("from", b"shop")], timestamp=1000 + n
            )
        assert producer.flush(PATIENCE) == 0

    def sink(self) -> SinkConfig:
        if self.out:
            return KafkaSink(name="dead", topic=self.out)
        return DeltaSink("dead", path="lake/dead")

    def pipeline(self, transform: str = "orders", **more: Any) -> Pipeline:
        source = KafkaSource(
            self.topic,
            "json",
            "orders.ddl",
            more.pop("max_records", None),
            on_bad_record=more.pop("policy", "dead_letter"),
        )
        given = {"dead_letters": self.sink(), **more}
        return Pipeline(
            name="orders",
            source=source,
            transform=f"transforms_{self.topic}:{transform}",
            sinks=[DeltaSink("orders", path="lake/orders")],
            **given,
        )

    # ---- what an independent reader finds

    def table(self, name: str) -> list[dict[str, Any]]:
        folder = self.project.folder / "home" / "lake" / name
        return DeltaTable(str(folder)).to_pyarrow_table().to_pylist() if (folder / "_delta_log").exists() else []

    def letters(self) -> list[dict[str, Any]]:
        """As columns, also those that are records of a topic."""
        if not self.out:
            return [_plain(row) for row in self.table("dead")]
        return [_letter(record) for record in committed(self.project.bootstrap, self.out)]

    def check_truth(self, numbers: Iterable[int]) -> None:
        """Every record of the topic is in exactly one of both, and a dead letter is the record itself."""
        read = committed(self.project.bootstrap, self.topic)
        assert sorted(int(record.key or b"") for record in read) == sorted(numbers)
        placed = Counter((row["partition"], row["offset"]) for row in self.table("orders"))
        letters = self.letters()
        dead = Counter((row["partition"], row["offset"]) for row in letters)
        bad = {(record.partition, record.offset): record for record in read if is_bad(int(record.key or b""))}
        assert placed == Counter((r.partition, r.offset) for r in read if (r.partition, r.offset) not in bad)
        assert dead == Counter(bad.keys())
        for row in letters:
            record = bad[row["partition"], row["offset"]]
            assert (row["key"], row["value"], row["topic"]) == (record.key, record.value, self.topic)
            assert (row["headers"], row["timestamp"]) == (record.headers, record.timestamp)
            assert row["error"] == why(int(record.key or b""))


def why(n: int) -> str:
    if is_refused(n):
        return "cents is negative"
    data = GARBAGE[n // SHARE % len(GARBAGE)](n)
    reasons = (
        "It is not JSON: expecting value at character 0.",
        f"It is not JSON: expecting value at character {len(data)}.",
        f"It is not JSON: extra data at character {(len(data) + 1) // 2}.",
        'value.n is "many", which is not a BIGINT (a whole number in its range).',
        "It is not JSON: expecting value at character 0.",
        "It is not JSON: byte 0 is not UTF-8.",
    )
    return f"The value cannot be decoded. {reasons[n // SHARE % len(GARBAGE)]}"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Headers and time as a consumer gives them."""
    headers = tuple((header["key"], header["value"]) for header in row["headers"])
    return {**row, "headers": headers, "timestamp": round(row["timestamp"].timestamp() * 1000)}


def _letter(record: Record) -> dict[str, Any]:
    said = {name: (value or b"").decode() for name, value in record.headers if name.startswith("onceonly.")}
    place = {name: int(said[f"onceonly.{name}"]) for name in ("partition", "offset", "timestamp")}
    own = tuple(header for header in record.headers if not header[0].startswith("onceonly."))
    words = {name: said[f"onceonly.{name}"] for name in ("topic", "error")}
    return {"key": record.key, "value": record.value, "headers": own, **place, **words}

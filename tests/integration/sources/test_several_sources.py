"""Two topics joined in one checkpoint, on a real broker and real Spark."""

from __future__ import annotations

import uuid
from pathlib import Path

import pandas
import pytest
from codes import raises
from confluent_kafka import Producer
from integration.projects.project import Project
from integration.readers.kafka_reader import create_topic
from patience import PATIENCE

from onceonly.checkpoint.model import Checkpoint
from onceonly.errors import BadRecord
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, owners, spark_stage
from onceonly.statetable.table import StateTable

pytestmark = pytest.mark.integration
TRANSFORM = """
def joined(batches):
    orders, pages = batches["{orders}"], batches["{pages}"]
    return {{
        "pairs": orders.select("key", "value.n").join(pages.selectExpr("key", "CAST(value AS STRING) AS page"), "key"),
        "all": orders.select("topic").unionByName(pages.select("topic")),
    }}
"""


class Shop:
    """Orders as JSON, page views as plain text."""

    def __init__(self, folder: Path, broker: str, spark: str) -> None:
        self.orders, self.pages = f"orders-{uuid.uuid4().hex[:8]}", f"pages-{uuid.uuid4().hex[:8]}"
        self.module = f"transforms_{uuid.uuid4().hex[:8]}"
        self.project = Project(folder, broker, spark, self.orders)
        StateTable.make(self.project.settings.state)
        (folder / f"{self.module}.py").write_text(TRANSFORM.format(orders=self.orders, pages=self.pages))
        (folder / "order.ddl").write_text("n INT")
        for topic in (self.orders, self.pages):
            create_topic(broker, topic, partitions=2)

    def send(self, topic: str, key: str, value: str) -> None:
        producer = Producer({"bootstrap.servers": self.project.bootstrap})
        producer.produce(topic, value, key)
        assert producer.flush(PATIENCE) == 0

    def run(self, number: int) -> Checkpoint:
        pipeline = Pipeline(
            name="shop",
            source=[KafkaSource(self.orders, format="json", schema="order.ddl"), KafkaSource(self.pages)],
            transform=f"{self.module}:joined",
            sinks=[FileSink("pairs", "lake/pairs"), FileSink("all", "lake/all")],
        )
        through = live_services.open_coordinator(self.project.parts)
        planned = through.plan(pipeline, f"run-{number}", owners.is_never_alive).checkpoint
        assert planned is not None
        spark_stage.stage(self.project.parts, through, "shop", planned.epoch, None)
        return through.commit("shop", planned.epoch)

    def read(self, sink: str) -> pandas.DataFrame:
        return pandas.read_parquet(self.project.folder / "home" / "lake" / sink)


@pytest.fixture
def shop(tmp_path: Path, broker: str, spark_server: str) -> Shop:
    return Shop(tmp_path, broker, spark_server)


def test_a_join_of_two_topics_at_one_cut(shop: Shop) -> None:
    shop.send(shop.orders, "a", '{"n": 1}')
    shop.send(shop.pages, "a", "first")
    shop.send(shop.pages, "b", "second")
    first = shop.run(1)
    assert {range_.topic: range_.offset_count for range_ in first.ranges} == {shop.orders: 1, shop.pages: 2}
    shop.send(shop.orders, "b", '{"n": 2}')  # its page was in the checkpoint before
    shop.send(shop.pages, "c", "third")
    shop.run(2)
    rows = shop.read("pairs")
    assert [(row.n, row.page) for row in rows.itertuples()] == [(1, "first")]
    assert shop.read("all")["topic"].value_counts().to_dict() == {shop.orders: 2, shop.pages: 3}


def test_a_bad_record_is_named_with_its_topic(shop: Shop) -> None:
    shop.send(shop.pages, "a", "{no json here}")
    shop.send(shop.orders, "a", "{no json here}")
    with raises(BadRecord, "record-undecodable", match=f"topic '{shop.orders}'") as refused:
        shop.run(1)
    assert "order.ddl" in refused.value.what
    assert not (shop.project.folder / "home" / "lake" / "all").exists()

"""onceonly infer on a real broker; Spark reads the topic by the file that it wrote."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from integration.readers.kafka_reader import create_topic
from patience import PATIENCE

from onceonly.checkpoint.offsets import TopicRange
from onceonly.cli import main
from onceonly.pipeline.sources import KafkaSource
from onceonly.sources.kafka import KafkaReader

pytestmark = pytest.mark.integration

ORDERS = [
    {"id": 1, "price": 2, "odd name": None, "lines": []},
    {"id": 2, "price": 2.5, "odd name": "x", "lines": [{"sku": "a", "n": 2**63}]},
]


def test_what_it_writes_reads_the_topic(
    broker: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(broker, f"json-{uuid.uuid4().hex[:8]}")
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for number, order in enumerate([*ORDERS, None]):
        producer.produce(topic, order and json.dumps(order), partition=number)
    assert producer.flush(PATIENCE) == 0
    (tmp_path / "orders.py").write_text(
        "from onceonly import DeltaSink, KafkaSource, Pipeline\n"
        f"source = KafkaSource('{topic}', 'json', 'schemas/orders.ddl', bootstrap='{broker}')\n"
        "orders = Pipeline(name='orders', source=source, transform='a:b', sinks=[DeltaSink('lake', 'lake')])\n"
    )
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))
    done = CliRunner().invoke(main, ["infer", str(tmp_path / "orders.py:orders"), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    lines = "lines ARRAY<STRUCT<sku: STRING, n: DECIMAL(38,0)>>"
    assert said["ddl"] == f"id BIGINT, price DOUBLE, `odd name` STRING, {lines}"
    assert (said["values"], said["broken"], said["notes"]) == (2, 0, [])

    reader = KafkaReader(KafkaSource(topic, "json", "schemas/orders.ddl"), broker, tmp_path)
    log = reader.log()
    rows = reader.read(spark, (TopicRange(topic, log.topic_id, log.partitions),)).orderBy("partition")
    found = [row["value"] and row["value"].asDict(recursive=True) for row in rows.collect()]
    assert found == [{**ORDERS[0], "price": 2.0}, ORDERS[1], None]

    again = CliRunner().invoke(main, ["infer", str(tmp_path / "orders.py:orders")])
    assert again.exit_code == 2 and "exists" in again.output

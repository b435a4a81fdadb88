"""A real pipeline into every kind of sink, verified by the command: right as it is, and wrong once it is damaged.

The report is left in the folder that PICTURES names, for people to look at.
"""

from __future__ import annotations

import json
import os
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from integration.projects import everything
from integration.readers.kafka_reader import committed, new_topic, until
from integration.services import chromium
from integration.victims.on_fire import run
from patience import PATIENCE

from onceonly.checkpoint.model import Handle
from onceonly.checkpoint.offsets import Interval
from onceonly.cli import main
from onceonly.dev.demo import load
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime import live_services
from onceonly.settings import Settings
from onceonly.statetable.table import Snapshot, StateTable

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
DAYS = Interval(datetime(2013, 1, 1, 5, tzinfo=UTC), datetime(2013, 1, 3, 5, tzinfo=UTC))


class Flights:
    """Two days of flights in a topic, and the pipeline that reads them, some hundred in each checkpoint."""

    def __init__(self, folder: Path, broker: str, spark: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topic, self.broker = f"flights-{uuid.uuid4().hex[:8]}", broker
        env = {
            "ONCEONLY_HOME": str(folder),
            "ONCEONLY_PROJECT": str(ROOT),
            "ONCEONLY_KAFKA_BOOTSTRAP": broker,
        }
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        self.settings = Settings.from_env({**env, "SPARK_REMOTE": spark})
        StateTable.make(self.settings.state)
        assert load.load(self.settings, self.topic, DAYS).skipped == 0
        self.pipeline: Pipeline = everything.pipeline(self.topic, new_topic(broker), 600)
        parts, owner = live_services.LiveServices(self.settings), 0
        while run(parts, self.pipeline, f"run-{owner}"):
            owner += 1
        self.checkpoints = owner

    def verify(self, *options: str) -> Result:
        return CliRunner().invoke(main, ["verify", "everything", *options], catch_exceptions=False)

    def result(self, *options: str) -> tuple[int, dict[str, Any]]:
        result = self.verify("--json", *options)
        return result.exit_code, json.loads(result.stdout)

    def expire(self, partition: int, offset: int) -> None:
        """Delete the records of the topic up to that offset, as retention does."""
        admin: Any = AdminClient({"bootstrap.servers": self.broker, "log_level": 0})
        for future in admin.delete_records([TopicPartition(self.topic, partition, offset)]).values():
            future.result()
        reader: Any = live_services.LiveServices(self.settings).sources(self.pipeline)[self.topic]
        until(lambda: reader.log().partitions[partition][0] == offset, PATIENCE, "the deletion")


def test_every_sink_is_verified(
    tmp_path: Path, broker: str, spark_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights = Flights(tmp_path, broker, spark_server, monkeypatch)
    checkpoints = Snapshot(flights.settings.state).view("everything")
    assert flights.checkpoints > 2 and checkpoints.head.decision == flights.checkpoints
    first = checkpoints.require(1)

    exit_code, data = flights.result("--report", str(tmp_path / "report.html"))
    assert (exit_code, data["findings"]) == (0, [])
    assert {(subject["kind"], subject["name"]) for subject in data["subjects"]} == {
        ("source", flights.topic),
        *(("sink", name) for name in ("flights", "late", "delays", "open_hours")),
    }
    _take_picture(tmp_path / "report.html")

    exit_code, data = flights.result("--deep")
    (source,) = (subject for subject in data["subjects"] if subject["kind"] == "source")
    assert (exit_code, data["findings"]) == (0, [])
    assert "records-counted" in {example["code"] for example in source["examples"]}

    flights.expire(0, first.ranges[0].ends[0])
    exit_code, data = flights.result("--deep")  # it was right when it was there
    assert exit_code == 0, data["findings"]
    assert [subject["right_before"] for subject in data["subjects"] if subject["kind"] == "source"] == ["1"]

    send_again(broker, checkpoints.require(2).handles["late"])
    exit_code, data = flights.result("--deep")
    assert (
        exit_code,
        {(found["name"], found["code"]) for found in data["findings"] if found["judgement"] == "wrong"},
    ) == (
        6,
        {("late", "rows-twice")},
    )

    file = next((Path(flights.settings.home) / "lake" / "flights").glob("staged-*-2-1-*/**/*.parquet"))
    file.unlink()
    exit_code, data = flights.result("--report", str(tmp_path / "report.md"))
    (wrong,) = (found for found in data["findings"] if (found["judgement"], found["name"]) == ("wrong", "flights"))
    assert (exit_code, wrong["name"], wrong["epochs"]) == (6, "flights", "2"), data["findings"]
    assert file.name in wrong["why"] or "file" in wrong["code"]
    assert wrong["code"] in (tmp_path / "report.md").read_text()


def send_again(broker: str, handle: Handle) -> None:
    """Send all that a checkpoint has written into one partition once more, as a person may do by hand."""
    spans = [span for part in handle["parts"] if part["rows"] for span in part["tx"]["partitions"]]
    topic, number, _, end = spans[0]  # transactions are side by side: the span of one holds records of others
    first = min(span[2] for span in spans if span[:2] == [topic, number])
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for record in committed(broker, topic):
        if record.partition == number and first <= record.offset < end:
            producer.produce(topic, record.value, record.key, number)
    assert producer.flush(PATIENCE) == 0


def _take_picture(report: Path) -> None:
    pictures = os.environ.get("PICTURES")
    if chromium.BINARY is None or not pictures:
        return
    with chromium.opened() as browser:
        browser.open(report.as_uri())
        Path(pictures).mkdir(exist_ok=True)
        browser.screenshot(Path(pictures) / "verify-report.png")

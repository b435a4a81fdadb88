"""`onceonly check` offers a probe of a store and of brokers, until there was one."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner
from integration.projects.project import make_project
from integration.readers.kafka_reader import new_topic
from integration.services.s3 import S3

from onceonly.cli import main
from onceonly.kafka.airflow_connections import variable_name

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
PIPELINE = """
from onceonly import DeltaSink, KafkaSink, KafkaSource, Pipeline

offered = Pipeline(
    name="offered",
    source=KafkaSource(topic="{topic}"),
    transform="transforms_{topic}:both",
    sinks=[DeltaSink("numbers", path="{folder}"), KafkaSink("copy", topic="{out}", connection="west")],
)
"""


def invoke(*args: str) -> str:
    result = CliRunner().invoke(main, list(args))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_check_offers_a_probe_until_there_was_one(
    s3: S3, broker: str, spark_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path, broker, spark_server, f"offers_{uuid.uuid4().hex[:8]}")
    folder, out = s3.uri("offered"), new_topic(broker)
    (tmp_path / "pipelines.py").write_text(PIPELINE.format(topic=project.topic, folder=folder, out=out))
    west = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": broker}})
    environment = {**project.env(), **s3.environment, "SPARK_REMOTE": spark_server, variable_name("west"): west}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    file = f"{tmp_path}/pipelines.py:offered"
    text = invoke("check", file)
    print(text)
    for place in (folder, "kafka://west"):
        assert f"onceonly probe {place}" in text
        invoke("probe", place, "--workers", "2", "--seconds", "0")
    assert json.loads(invoke("check", file, "--json"))["never_probed"] == []

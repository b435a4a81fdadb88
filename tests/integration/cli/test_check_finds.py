"""What `onceonly check` finds on real services, and that the same run stops there without it."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation
from integration.projects.project import Project, make_project, produce
from integration.readers.kafka_reader import create_topic, new_topic, until, values
from integration.services import s3 as s3_server
from integration.services.guarded_broker import GuardedBroker, guarded_broker, on_groups, on_ids, on_topic
from integration.services.s3 import S3
from integration.services.store_server import BUCKET
from patience import PATIENCE

from onceonly.cli import main
from onceonly.dev.services import machine

pytestmark = pytest.mark.integration
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
ALL = (READ, WRITE, DESCRIBE)
LACKS = {"reader": "Read", "writer": "Write", "opener": "TransactionalId"}  # what each user may not do


@dataclass(frozen=True)
class Answer:
    code: int
    error: str
    text: str


def command(name: str, file: str) -> Answer:
    done = CliRunner().invoke(main, [name, file, "--json"])
    begin = done.stdout.find("{")
    answer: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout, begin)[0] if begin >= 0 else {}
    return Answer(done.exit_code, answer.get("code", ""), done.output)


@pytest.fixture
def set_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Write a pipeline's file, name it and its home to this process, and return the argument of the command."""

    def set_up(text: str, **env: str) -> str:
        (tmp_path / "pipelines.py").write_text(text)
        for name, value in {
            "ONCEONLY_HOME": str(tmp_path / "home"),
            "ONCEONLY_PROJECT": str(tmp_path),
            "ONCEONLY_STATE": "",
            **env,
        }.items():
            monkeypatch.setenv(name, value)
        return f"{tmp_path}/pipelines.py:copied"

    return set_up


# ---- grants of Kafka

COPIED = """
from onceonly import KafkaSink, KafkaSource, Pipeline

copied = Pipeline(
    name="copied",
    source=KafkaSource(topic="{source}", connection="guarded"),
    transform="{module}:copies",
    sinks=[KafkaSink(name="copy", topic="{sink}", connection="guarded")],
)
"""
COPIES = """
def copies(batch):
    return batch.select("key", "value")
"""


@dataclass(frozen=True)
class Guarded:
    broker: GuardedBroker
    source: str
    sink: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Users that lack one grant each: to read the source, to write to the sink, to open transactions."""
    with guarded_broker(tmp_path_factory.mktemp("guarded"), LACKS) as broker:
        source, sink = new_topic(broker.open_address, 1), new_topic(broker.open_address, 1)
        producer = Producer({"bootstrap.servers": broker.open_address})
        producer.produce(source, b"1")
        assert producer.flush(PATIENCE) == 0
        for user in LACKS:
            broker.grant(
                *on_topic(user, source, *((DESCRIBE,) if user == "reader" else ALL)),
                *on_topic(user, sink, *((DESCRIBE, READ) if user == "writer" else ALL)),
                *on_groups(user, "onceonly-", READ, DESCRIBE),
                *on_ids(user, "onceonly-", *((DESCRIBE,) if user == "opener" else (DESCRIBE, WRITE))),
            )
        yield Guarded(broker, source, sink)


@pytest.mark.parametrize("user", LACKS)
def test_a_missing_grant_is_found(
    guarded: Guarded,
    user: str,
    set_project: Callable[..., str],
    spark_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And granting what the message names is enough."""
    broker = guarded.broker
    module = f"copying_{uuid.uuid4().hex}"
    (tmp_path / f"{module}.py").write_text(COPIES)
    monkeypatch.setenv("AIRFLOW_CONN_GUARDED", json.dumps({"conn_type": "kafka", "extra": broker.connection(user)}))
    file = set_project(
        COPIED.format(source=guarded.source, sink=guarded.sink, module=module).replace('"copied"', f'"copied_{user}"'),
        SPARK_REMOTE=spark_server,
    )

    def check() -> Answer:
        found = command("check", file)
        assert found.error in ("", "kafka-access-denied"), found.text
        return found

    until(lambda: LACKS[user] in check().text, what="the other grants are in force")
    found = command("check", file)
    assert (found.code, found.error) == (5, "kafka-access-denied"), found.text
    assert "kafka-acls --bootstrap-server … --add" in found.text
    stopped = command("run", file)
    assert (stopped.code != 0, stopped.error) == (True, "kafka-access-denied"), stopped.text
    assert values(broker.open_address, guarded.sink) == []
    topics = {"reader": (guarded.source, READ), "writer": (guarded.sink, WRITE)}
    broker.grant(*(on_topic(user, *topics[user]) if user in topics else on_ids(user, "onceonly-", WRITE)))
    until(lambda: check().code == 0, what="the grant is in force")


# ---- places

NUMBERS = """
from onceonly import DeltaSink, FileSink, KafkaSink, KafkaSource, Pipeline

copied = Pipeline(
    name="copied",
    source=KafkaSource(topic="{topic}"),
    transform="transforms_{topic}:{transform}",
    sinks=[{sink}],
)
"""


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str) -> Project:
    project = make_project(tmp_path, broker, spark_server, f"finds_{uuid.uuid4().hex[:8]}")
    produce(project, range(4))
    return project


@contextmanager
def read_only(s3: S3) -> Iterator[str]:
    """A second server on the same buckets, which writes nothing; its address."""
    port = machine.free_port()
    line = [str(s3_server.BINARY), "--quiet", "--readonly", "--port", f"127.0.0.1:{port}", "posix", str(s3.data)]
    process = subprocess.Popen(line, env={**s3.secrets(), "PATH": ""}, stdout=subprocess.DEVNULL)
    try:
        until(lambda: machine.is_open(port), what="the server answers")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.parametrize("place", ["delta", "spool", "state"])
def test_a_store_that_takes_no_writes_is_found(
    place: str, s3: S3, project: Project, set_project: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers, and gives what is there."""
    folder = s3.uri(f"check-{uuid.uuid4().hex[:8]}")
    out = f"{project.topic}_out"
    sinks = {"delta": f'DeltaSink("out", path="{folder}/out")', "spool": f'KafkaSink(name="out", topic="{out}")'}
    if place == "spool":
        create_topic(project.bootstrap, out, 1)
    text = NUMBERS.format(
        topic=project.topic,
        transform="copies" if place == "spool" else "numbers",
        sink=sinks.get(place, 'DeltaSink("out", path="lake/out")'),
    )
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    setting = {"spool": "ONCEONLY_SPOOL", "state": "ONCEONLY_STATE"}.get(place, "UNUSED")
    file = set_project(text, **{**project.env(), "SPARK_REMOTE": project.spark, setting: f"{folder}/{place}"})
    if place == "state":
        assert CliRunner().invoke(main, ["state", "init"]).exit_code == 0
    with read_only(s3) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        found = command("check", file)
        assert found.code == 5, found.text
        assert found.error in ("folder-not-writable", "store-unreachable", "log-store-unsafe"), found.text
        assert "AccessDenied" in found.text or "PermissionDenied" in found.text
        assert command("run", file).code != 0
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment["AWS_ENDPOINT_URL"])
    before = sorted(path for path in (s3.data / BUCKET).rglob("*") if path.is_file())
    found = command("check", file)
    assert found.code == 0, found.text
    assert [path for path in (s3.data / BUCKET).rglob("*") if path.is_file() and path not in before] == []


# ---- files of the project


@pytest.mark.parametrize(
    ("sink", "transform", "code"),
    [
        (
            'KafkaSink(name="out", topic="{topic}", format="avro", schema="schemas/none.avsc")',
            "copies",
            "schema-unusable",
        ),
        ('KafkaSink(name="out", topic="none_of_them")', "copies", "topic-missing"),
        ('DeltaSink("out", path="lake/out")', "no_function", "transform-not-importable"),
        ('DeltaSink("out", path="lake/out", partition_by=["n"])', "numbers", "partitioning-differs"),
    ],
)
def test_what_a_pipeline_names_is_looked_for(
    sink: str, transform: str, code: str, project: Project, set_project: Callable[..., str]
) -> None:
    env = {**project.env(), "SPARK_REMOTE": project.spark}
    if code == "partitioning-differs":
        other = NUMBERS.format(topic=project.topic, transform="numbers", sink='DeltaSink("out", path="lake/out")')
        done = command("run", set_project(other, **env))
        assert done.code == 0, done.text
    file = set_project(
        NUMBERS.format(topic=project.topic, transform=transform, sink=sink.format(topic=project.topic)), **env
    )
    found = command("check", file)
    assert (found.code, found.error) == (5, code), found.text
    produce(project, range(4, 8))
    stopped = command("run", file)
    assert (stopped.code != 0, stopped.error) == (True, code), stopped.text

"""One connection for three clients, against a real broker that requires credentials."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from integration.services.secure_broker import (
    CLIENT,
    CLIENT_SECRET,
    KEY_PASSWORD,
    PASSWORD,
    SECRET,
    USER,
    SecureBroker,
    secure_broker,
)
from patience import PATIENCE

from onceonly.checkpoint.offsets import TopicRange
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.kafka import client_settings
from onceonly.kafka.admin import BrokerClient
from onceonly.kafka.connection import KafkaConnection
from onceonly.pipeline.sources import KafkaSource
from onceonly.sources.kafka import KafkaReader
from onceonly.spark import jvm_jar

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("secure")) as running:
        yield running


@pytest.fixture(scope="module")
def settings(secure: SecureBroker) -> Iterator[dict[str, dict[str, str]]]:
    """Every way in, by its name."""
    certificate, key = secure.authority.issue("client")
    ca = {"ssl.ca.location": str(secure.authority.ca)}
    sasl = {"bootstrap.servers": f"127.0.0.1:{secure.sasl}", "security.protocol": "SASL_SSL", **ca}
    tls = {"bootstrap.servers": f"127.0.0.1:{secure.tls}", "security.protocol": "SSL", **ca}
    client = {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
    user = {"sasl.username": USER, "sasl.password": PASSWORD}
    with secure.tokens.serve() as url:
        yield {
            "plaintext": {"bootstrap.servers": f"127.0.0.1:{secure.daemon.running().port}"},  # type: ignore[union-attr]
            "plain": {**sasl, **user, "sasl.mechanism": "PLAIN"},
            "scram-256": {**sasl, **user, "sasl.mechanism": "SCRAM-SHA-256"},
            "scram-512": {**sasl, **user, "sasl.mechanism": "SCRAM-SHA-512"},
            "certificate": {**tls, **client},
            "locked key": {
                **tls,
                **client,
                "ssl.key.location": str(secure.authority.lock(key)),
                "ssl.key.password": KEY_PASSWORD,
            },
            "texts": {
                **{key: value for key, value in tls.items() if key not in ca},
                "ssl.ca.pem": secure.authority.ca.read_text(),
                "ssl.certificate.pem": certificate.read_text(),
                "ssl.key.pem": key.read_text(),
            },
            "oauth": {
                **sasl,
                "bootstrap.servers": f"127.0.0.1:{secure.oauth}",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": CLIENT,
                "sasl.oauthbearer.client.secret": CLIENT_SECRET,
                "sasl.oauthbearer.token.endpoint.url": url,
                "sasl.oauthbearer.scope": "kafka",
            },
        }


WAYS = ["plaintext", "plain", "scram-256", "scram-512", "certificate", "locked key", "texts", "oauth"]


@pytest.fixture(params=WAYS)
def connection(settings: dict[str, dict[str, str]], request: pytest.FixtureRequest) -> KafkaConnection:
    return KafkaConnection.parse(settings[request.param], "kafka_secure")


@pytest.fixture(scope="module")
def topic(settings: dict[str, dict[str, str]]) -> str:
    """One topic for all, with one record."""
    name = f"secure-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({**settings["plaintext"], "log_level": 0})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    produce(KafkaConnection.parse(settings["plaintext"]), name, "first")
    return name


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 s instead of 10 for a broker that will not answer."""
    monkeypatch.setattr("onceonly.kafka.topic.REQUEST_SECONDS", 3.0)


def produce(connection: KafkaConnection, topic: str, value: str) -> None:
    producer = Producer({**connection.librdkafka(), "log_level": 0})
    producer.produce(topic, value)
    assert producer.flush(PATIENCE) == 0


def first(connection: KafkaConnection, topic: str) -> Any:
    group = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({**connection.librdkafka(), **group})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(PATIENCE)
        assert message is not None and message.error() is None
        return message.value()
    finally:
        consumer.close()


def everything(reader: KafkaReader) -> tuple[TopicRange, ...]:
    log = reader.log()
    return (TopicRange(log.topic, log.topic_id, log.partitions),)


def assert_no_secret(text: str) -> None:
    assert SECRET not in text
    assert "PRIVATE KEY" not in text


# --- every way in, every client


def test_librdkafka_gets_in(connection: KafkaConnection, topic: str) -> None:
    produce(connection, topic, "more")
    assert first(connection, topic) == b"first"
    listed = AdminClient({**connection.librdkafka(), "log_level": 0}).list_topics(timeout=PATIENCE)
    assert topic in listed.topics


def test_kafka_python_gets_in(connection: KafkaConnection, topic: str) -> None:
    with closing(BrokerClient(client_settings.kafka_python_arguments(connection))) as client:
        assert len(client.admin.describe_cluster()["brokers"]) == 1
        assert topic in client.admin.list_topics()


def test_spark_gets_in(connection: KafkaConnection, topic: str, spark: Any, tmp_path: Path) -> None:
    reader = KafkaReader(KafkaSource(topic, connection="kafka_secure"), connection, tmp_path)
    assert reader.check() == []
    rows = reader.read(spark, everything(reader))
    assert bytes(rows.orderBy("offset").first()["value"]) == b"first"


# --- who does not get in, and is told so


@pytest.mark.parametrize("way", ["plain", "scram-512"])
@pytest.mark.usefixtures("impatient")
def test_a_wrong_password_is_named_soon_and_is_not_to_be_retried(
    settings: dict[str, dict[str, str]], way: str, topic: str, tmp_path: Path, capfd: Any
) -> None:
    wrong = KafkaConnection.parse({**settings[way], "sasl.password": "Sesame-wrong"}, "kafka_secure")
    began = time.monotonic()
    with raises(InvalidPipeline, "kafka-credentials-refused") as caught:
        KafkaReader(KafkaSource(topic), wrong, tmp_path).check()
    assert time.monotonic() - began < PATIENCE
    assert f"{wrong.bootstrap} (SASL_SSL {wrong.mechanism}, connection 'kafka_secure')" in str(caught.value)
    assert "Sesame-wrong" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_wrong_password_stops_spark_soon_and_its_error_does_not_show_it(
    settings: dict[str, dict[str, str]], topic: str, tmp_path: Path, spark: Any
) -> None:
    right = KafkaConnection.parse(settings["scram-512"])
    wrong = KafkaConnection.parse({**settings["scram-512"], "sasl.password": "Sesame-wrong"})
    ranges = everything(KafkaReader(KafkaSource(topic), right, tmp_path))
    began = time.monotonic()
    with pytest.raises(Exception, match=r"SaslAuthentication|authentication") as caught:
        KafkaReader(KafkaSource(topic), wrong, tmp_path).read(spark, ranges).collect()
    assert time.monotonic() - began < PATIENCE
    assert "Sesame-wrong" not in str(caught.value) + repr(caught.value)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sasl.oauthbearer.client.secret": "Sesame-wrong"}, "401"),
        ({"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token"}, "refused"),
    ],
    ids=["wrong secret", "no endpoint"],
)
def test_a_missing_token_is_reported_and_may_be_retried(
    settings: dict[str, dict[str, str]], change: dict[str, str], told: str, topic: str, tmp_path: Path
) -> None:
    poor = KafkaConnection.parse({**settings["oauth"], **change})
    with raises(NotCommitted, "kafka-unreachable", r"OAUTHBEARER(.|\n)*token") as caught:
        KafkaReader(KafkaSource(topic), poor, tmp_path).check()
    assert not isinstance(caught.value, InvalidPipeline)
    assert_no_secret(str(caught.value))
    with raises(NotCommitted, "token-not-issued", rf"http://127(.|\n)*{told}") as caught:
        client_settings.kafka_python_arguments(poor)["sasl_oauth_token_provider"].token()
    assert_no_secret(str(caught.value))


@pytest.mark.parametrize(
    ("way", "change"),
    [
        ("certificate", {"ssl.certificate.location": None, "ssl.key.location": None}),
        ("scram-512", {"ssl.ca.location": None}),
    ],
    ids=["no client certificate", "unknown authority"],
)
@pytest.mark.usefixtures("impatient")
def test_a_tls_failure_is_reported(
    settings: dict[str, dict[str, str]], way: str, change: dict[str, None], topic: str, tmp_path: Path
) -> None:
    poor = KafkaConnection.parse({**settings[way], **change})
    began = time.monotonic()
    with raises(NotCommitted, "kafka-unreachable", rf"{poor.bootstrap}(.|\n)*certificate") as caught:
        KafkaReader(KafkaSource(topic), poor, tmp_path).check()
    assert time.monotonic() - began < PATIENCE
    assert_no_secret(str(caught.value))


def test_a_setting_that_librdkafka_does_not_know_is_named(settings: dict[str, dict[str, str]], tmp_path: Path) -> None:
    misspelt = KafkaConnection.parse({**settings["scram-512"], "lingre.ms": "5"}, "kafka_secure")
    with raises(InvalidPipeline, "kafka-connection-invalid", r"'kafka_secure'(.|\n)*lingre\.ms"):
        KafkaReader(KafkaSource("t"), misspelt, tmp_path).check()


# --- no secret in what Spark shows


@pytest.fixture(params=["records in Kafka", "KafkaTable", "KafkaRelation"])
def shown_as(request: Any, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How a plan shows a topic that is read by our jar, or by Spark's connector, whose interface users may choose."""
    if request.param != "records in Kafka":
        monkeypatch.setattr(jvm_jar, "is_in_session", lambda _: False)
    key = "spark.sql.sources.useV1SourceList"
    before = spark.conf.get(key)
    if request.param == "KafkaRelation":
        spark.conf.set(key, f"{before},kafka")
    yield request.param
    spark.conf.set(key, before)


@pytest.mark.parametrize("way", ["scram-512", "locked key", "oauth"])
def test_no_plan_shows_a_secret(
    settings: dict[str, dict[str, str]], way: str, topic: str, tmp_path: Path, spark: Any, capsys: Any, shown_as: str
) -> None:
    reader = KafkaReader(KafkaSource(topic), KafkaConnection.parse(settings[way]), tmp_path)
    rows = reader.read(spark, everything(reader))
    for mode in ("extended", "formatted", "codegen", "cost"):
        rows.explain(mode=mode)
    shown = capsys.readouterr().out
    assert shown_as in shown
    assert_no_secret(shown)
    with pytest.raises(Exception) as caught:
        rows.selectExpr("no_such_column").collect()
    assert_no_secret(str(caught.value))

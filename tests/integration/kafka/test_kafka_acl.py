"""A client that may not do something is told so before any work, or at once, and by name of what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from codes import raises
from confluent_kafka.admin import AclOperation
from integration.readers.kafka_reader import new_topic, until, values
from integration.services.guarded_broker import PASSWORD, guarded_broker, on_ids, on_topic

from onceonly.checkpoint.model import Transaction
from onceonly.errors import InvalidPipeline, OutcomeUnknown
from onceonly.kafka.connection import KafkaConnection
from onceonly.pipeline.sinks import KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sources.kafka import KafkaReader
from onceonly.testing.fakes import FakeReceipts

pytestmark = [pytest.mark.integration]
USERS = ("writer", "nobody", "no_id")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """(open address, guarded address, topic)."""
    with guarded_broker(tmp_path_factory.mktemp("guarded"), USERS) as broker:
        topic = new_topic(broker.open_address, 2)
        operations = AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.READ
        for user in USERS[::2]:
            broker.grant(*on_topic(user, topic, *operations))
        broker.grant(*on_ids("writer", "onceonly-", AclOperation.WRITE, AclOperation.DESCRIBE))
        until(lambda: allowed(broker.guarded_address, topic), what="the grants are in force")
        yield broker.open_address, broker.guarded_address, topic


def allowed(address: str, topic: str) -> bool:
    """Brokers learn of grants a moment after they are made."""
    try:
        writer(("", address, topic), "writer", Path()).check()
    except InvalidPipeline:
        return False
    return True


def connection(guarded: tuple[str, str, str], user: str, password: str = PASSWORD) -> KafkaConnection:
    settings = {
        "bootstrap.servers": guarded[1],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }
    return KafkaConnection.parse(settings, "kafka_guarded")


def writer(guarded: tuple[str, str, str], user: str, folder: Path, password: str = PASSWORD) -> KafkaWriter:
    reached = connection(guarded, user, password)
    return KafkaWriter(KafkaSink(name="late", topic=guarded[2]), reached, False, str(folder), folder)


def test_a_client_with_write_and_describe_on_topic_and_prefix_can_do_all(guarded, spark, tmp_path):
    sink = writer(guarded, "writer", tmp_path)
    assert any("transaction.max.timeout.ms of the brokers is unknown" in note for note in sink.check())
    txn = Transaction("5e1f" * 8, "flights", "late", 1, 1, "abc")
    handle = sink.stage(txn, spark.range(5).selectExpr("CAST(id AS STRING) AS value"))
    assert sink.leftovers(txn.prefix) == [txn]
    sink.commit(handle, 1, FakeReceipts(tmp_path / "receipt"))
    sink.release(txn)
    assert sorted(values(guarded[0], guarded[2])) == [b"0", b"1", b"2", b"3", b"4"]
    assert PASSWORD not in str(handle)


@pytest.mark.parametrize(("user", "missing"), [("nobody", "Topic authorization failed"), ("no_id", "TransactionalId")])
def test_a_missing_grant_is_reported_before_any_work(guarded, tmp_path, user, missing):
    with raises(InvalidPipeline, "kafka-access-denied") as refused:
        writer(guarded, user, tmp_path).check()
    assert missing in str(refused.value)
    assert "Grant" in refused.value.todo
    assert PASSWORD not in str(refused.value)


def test_a_wrong_password_is_reported_before_any_work(guarded, tmp_path):
    with raises(InvalidPipeline, "kafka-credentials-refused") as refused:
        writer(guarded, "writer", tmp_path, "wrong-word").check()
    assert "PLAIN" in str(refused.value)
    assert "wrong-word" not in str(refused.value)


def test_a_group_that_may_not_be_read_stops_no_plan(guarded, tmp_path):
    """The error is one that a plan tells as a warning; the topic is read all the same."""
    reader = KafkaReader(KafkaSource(guarded[2]), connection(guarded, "writer"), tmp_path)
    with raises(OutcomeUnknown, "group-inaccessible", "'onceonly-flights'") as denied:
        reader.traces("flights")
    assert "authorization" in denied.value.why.lower()
    assert sorted(reader.log().partitions) == [0, 1]

"""What Flink's integration tests of its Kafka producer and writer check, under their names: see docs/flink-tests.md.

A writer here is one `Output`: librdkafka with one transaction, which another process ends later.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import pyarrow as pa
import pytest
from codes import raises
from integration.projects.late_kafka import Late
from integration.readers.kafka_reader import new_topic, until, values
from patience import PATIENCE

from onceonly.dev.services.far_broker import FarBroker, Proxy
from onceonly.errors import NotCommitted
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.transactions import EndRefused, Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka import producer, python_writer
from onceonly.sinks.kafka.producer import Output
from onceonly.sinks.kafka.sink import KafkaWriter

pytestmark = pytest.mark.integration
TIMEOUT_SECONDS = 5.0  # of a transaction: so long librdkafka tries to deliver a row
BOTH = (True, False)
FENCED = "broker-not-writable"  # code of the error with which librdkafka's failed delivery is told


@dataclass
class Writing:
    """One topic, and transactional ids of its own."""

    folder: Path
    broker: str
    timeout: float = 60.0
    topic: str = ""
    id: str = field(default_factory=lambda: f"case-{uuid.uuid4().hex[:12]}")

    def __post_init__(self) -> None:
        self.topic = new_topic(self.broker, 1)
        self.late = Late(self.folder, self.broker, self.topic, {"transaction_timeout": self.timeout})

    def open(self, id: str = "") -> Output:
        with self.known() as known:
            return Output(self.late.writer._target(known), id or self.id, known)

    def batch(self, *rows: str) -> pa.RecordBatch:
        return self.late.batch([{"value": row.encode()} for row in rows])

    def written(self, *rows: str, id: str = "") -> Output:
        """A transaction that holds these rows, acknowledged, and is open."""
        output = self.open(id)
        output.write(self.batch(*rows))
        output.flush()
        return output

    def known(self) -> Transactions:
        return Transactions({"bootstrap_servers": self.broker})

    def end(self, output: Output, commit: bool, id: str = "", known: Transactions | None = None) -> None:
        assert output.producer
        if known:
            known.end(id or self.id, *output.producer, commit=commit)
            return
        with self.known() as own:
            self.end(output, commit, id, own)

    def visible(self) -> list[bytes | None]:
        """What a read_committed reader finds once nothing is on its way to an end."""
        with self.known() as known:
            until(lambda: known.list_open(f"{self.id}.*") == [], what="the markers")
        return values(self.broker, self.topic)


@pytest.fixture
def writing(tmp_path: Path, broker: str) -> Writing:
    return Writing(tmp_path, broker)


# ---- FlinkKafkaInternalProducerITCase


def test_commit_resumed_transaction(writing: Writing) -> None:
    output = writing.written("test-value")
    identity = output.producer
    del output
    gc.collect()
    with writing.known() as known:
        assert identity
        known.end(writing.id, *identity, commit=True)
    assert writing.visible() == [b"test-value"]


def test_commit_resumed_empty_transaction_should_fail(writing: Writing) -> None:
    output = writing.open()
    with raises(EndRefused, "transaction-end-refused", match="INVALID_TXN_STATE"):
        writing.end(output, commit=True)
    assert writing.visible() == []


@pytest.mark.parametrize("commit", BOTH)
def test_reset_inner_transaction_if_finalizing_transaction_failed(writing: Writing, commit: bool) -> None:
    """What the fenced one says changes nothing, and the same client ends other transactions."""
    fenced = writing.written("fenced")
    writing.end(writing.written("newer"), commit=True)
    with writing.known() as known:
        with raises(EndRefused, "transaction-end-refused", match="PRODUCER_FENCED|INVALID_PRODUCER_EPOCH"):
            writing.end(fenced, commit, known=known)
        other = f"{writing.id}-other"
        writing.end(writing.written("other", id=other), commit=True, id=other, known=known)
    assert writing.visible() == [b"newer", b"other"]
    with raises(NotCommitted, FENCED, match="fenced"):
        fenced.write(writing.batch("too late"))
        fenced.flush()


@pytest.mark.parametrize("second", BOTH)
@pytest.mark.parametrize("first", BOTH)
def test_double_commit_and_abort(writing: Writing, first: bool, second: bool) -> None:
    """The same end again is no error, from another process either; the other end is refused."""
    output = writing.written("test-value")
    writing.end(output, first)
    if first == second:
        writing.end(output, second)
    else:
        with raises(EndRefused, "transaction-end-refused", match="INVALID_TXN_STATE"):
            writing.end(output, second)
    assert writing.visible() == ([b"test-value"] if first else [])


# ---- ExactlyOnceKafkaWriterITCase


def fence(writing: Writing) -> None:
    with writing.known() as known:
        known.fence(writing.id)


def write_on(writing: Writing, output: Output) -> None:
    """Write until it fails."""
    until(lambda: output.write(writing.batch("again")), what="an error")  # type: ignore[func-returns-value]


def test_write_async_error_propagation(writing: Writing) -> None:
    output = writing.written("first")
    fence(writing)
    with raises(NotCommitted, FENCED, match="fenced"):
        write_on(writing, output)
    assert writing.visible() == []


def test_flush_async_error_propagation(writing: Writing) -> None:
    output = writing.written("first")
    fence(writing)
    output.write(writing.batch("second"))
    with raises(NotCommitted, FENCED, match="fenced"):
        output.flush()
    assert writing.visible() == []


def test_close_async_error_propagation(writing: Writing) -> None:
    """A writer that is dropped raises nothing: it has no receipt, so nothing of it is published."""
    output = writing.written("first")
    fence(writing)
    output.write(writing.batch("second"))
    identity = output.producer
    del output
    gc.collect()
    with writing.known() as known, raises(EndRefused, "transaction-end-refused"):
        assert identity
        known.end(writing.id, *identity, commit=True)
    assert writing.visible() == []


# ---- KafkaWriterFaultToleranceITCase


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarBroker]:
    """A broker that may be killed."""
    proxy = Proxy()
    own = FarBroker(tmp_path_factory.mktemp("own"), proxy)
    try:
        own.start()
        yield own
    finally:
        own.daemon.stop()
        proxy.close()


@pytest.fixture
def mortal(tmp_path: Path, own: FarBroker, monkeypatch: pytest.MonkeyPatch) -> Writing:
    """On a broker that is running, and that the test kills. No patience with it is needed."""
    writing = Writing(tmp_path, own.near, TIMEOUT_SECONDS)
    monkeypatch.setattr(producer, "PATIENCE", TIMEOUT_SECONDS)
    return writing


def fail_without(own: FarBroker, writing: Writing, use: Callable[[], object]) -> None:
    """Kill the broker, and expect that its use fails; once it is back, nothing of the transaction is visible."""
    own.kill()
    try:
        with raises(NotCommitted, "broker-not-writable"):
            use()
    finally:
        own.start()
    assert writing.visible() == []


def test_write_exception_when_kafka_unavailable(mortal: Writing, own: FarBroker) -> None:
    output = mortal.written("first")
    fail_without(own, mortal, lambda: write_on(mortal, output))


def test_flush_exception_when_kafka_unavailable(mortal: Writing, own: FarBroker) -> None:
    output = mortal.written("first")

    def flush() -> None:
        output.write(mortal.batch("second"))
        output.flush()

    fail_without(own, mortal, flush)


def test_close_exception_when_kafka_unavailable(mortal: Writing, own: FarBroker) -> None:
    """A writer that is dropped waits for nobody, and raises nothing: it has no receipt, so nothing is published."""
    output = mortal.written("first")
    own.kill()
    try:
        output.write(mortal.batch("second"))
        began = monotonic()
        del output
        gc.collect()
        assert monotonic() - began < PATIENCE
    finally:
        own.start()
    assert mortal.visible() == []


def test_mailbox_exception_when_kafka_unavailable(mortal: Writing, own: FarBroker, tmp_path: Path) -> None:
    """What fails behind a task's back fails the task, before its receipt."""
    config = KafkaSink("case", topic=mortal.topic, transaction_timeout=TIMEOUT_SECONDS)
    connection = KafkaConnection.plaintext(mortal.broker)
    staged = KafkaWriter(config, connection, False, str(tmp_path / "spool"), tmp_path)
    with mortal.known() as known:
        job = staged._job(mortal.late.txn, staged._target(known))
    assert job.write

    def batches() -> Iterator[pa.RecordBatch]:
        yield mortal.batch("first")
        own.kill()
        yield mortal.batch("second")

    receipts: list[object] = []
    try:
        with raises(NotCommitted, "broker-not-writable"):
            receipts.append(python_writer._stage_part(job, 0, batches()))
    finally:
        own.start()
    assert receipts == []
    with mortal.known() as known:
        until(lambda: known.list_open(f".*{mortal.late.txn.name}.*") == [], what="the broker's own abort")
    assert values(mortal.broker, mortal.topic) == []

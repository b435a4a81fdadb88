"""Trials of transactions on a topic of the probe's own, by the clients and the requests that sinks and commits use."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from onceonly.errors import NotCommitted, OnceonlyError
from onceonly.kafka.connection import DENIED, KafkaConnection
from onceonly.kafka.topic import TopicClient
from onceonly.kafka.transactions import OPEN_STATES, Transactions
from onceonly.probe import broker_limits
from onceonly.probe.broker_limits import KEYLESS_ROWS, LARGE_ROWS, OLD_ROWS, SINK_TIMEOUT_SECONDS
from onceonly.probe.findings import Observation, Promise, Tallies, shorten

PATIENCE_SECONDS = 30.0  # for one answer, and for a reader that has to reach the end of the log
QUIET_SECONDS = 1.0  # for which a reader looks whether records appear that should not
EXPIRING_SECONDS, EXPIRY_PATIENCE_SECONDS = 1.0, 60.0  # brokers look for what has expired every ten seconds, by default
SHORTER_TIMEOUTS_SECONDS = (60.0, 10.0, 1.0)  # where the brokers do not allow that of sinks
RECORDS = 20  # in each transaction
OLD_DATE, LARGE_BYTES = datetime(2000, 1, 1, tzinfo=UTC), 1_000_000  # of rows that must not be refused
ISOLATION = "read_committed"
SILENT_LOGGER = logging.getLogger(f"{__name__}.clients")  # what is refused on purpose would be printed as fatal
SILENT_LOGGER.setLevel(logging.CRITICAL + 1)
TRIED, EXPIRING = 0, 1  # partitions: readers of one do not get past what is open in it
TRIAL_PARTITIONS = 2

COMMIT = Promise("transaction-commit", "a committed transaction is read whole")
ABORT = Promise("transaction-abort", "no read_committed reader gets a record of an aborted transaction")
OPEN = Promise("open-transactions", "no read_committed reader gets a record of a transaction that is open")
HANDED_ON = Promise("ending-by-another", "a transaction is committed by another process than the one that wrote it")
FENCING = Promise("fencing", "a producer that is fenced can neither write nor commit")
EXPIRY = Promise("expiry", "brokers abort a transaction whose time is over, and nobody reads a record of it")
Trial = Callable[[], Iterable[Observation]]
Read = Callable[[Sequence[bytes], float], list[bytes]]


class TransactionTrials:
    """The trials of one probe.

    Args:
        topic: of the probe, with TRIAL_PARTITIONS partitions.
        id_prefix: of the transactional ids, which brokers forget by themselves after a week. Each trial has one.
    """

    def __init__(self, connection: KafkaConnection, topic: str, id_prefix: str, transactions: Transactions) -> None:
        self._connection, self._topic, self._transactions = connection, topic, transactions
        self._expires_at = 0.0
        self._expired_after: float | None = None  # seconds
        self._timeouts: list[float] = [SINK_TIMEOUT_SECONDS, *SHORTER_TIMEOUTS_SECONDS]
        self._id_prefix = f"{id_prefix}-probe-{uuid.uuid4().hex[:8]}"

    def run(self, seconds: float, progress: Callable[[float, int], None], tallies: Tallies) -> int:
        """Try transactions until the time is over, and return the rounds."""
        began, rounds = time.monotonic(), 0
        tallies.add(self._attempt(EXPIRY, self._let_expire))
        trials: tuple[tuple[Promise, Trial], ...] = (
            (COMMIT, self._try_commit),
            (ABORT, self._try_abort),
            (HANDED_ON, self._try_open_and_hand_on),
            (FENCING, self._try_fencing),
        )
        while not rounds or time.monotonic() - began < seconds:
            for promise, trial in trials:
                progress(time.monotonic() - began, rounds + 1)
                tallies.add(self._attempt(promise, trial))
            if not tallies.has_errors(EXPIRY.name):
                tallies.add(self._attempt(EXPIRY, self._look_at_expiry))
            rounds += 1
        if not tallies.has_errors(EXPIRY.name):
            tallies.add(self._attempt(EXPIRY, self._await_expiry))
        return rounds

    def _attempt(self, promise: Promise, trial: Trial) -> list[Observation]:
        """Return what a trial shows. What it leaves open after an error is aborted: readers would wait behind it."""
        observations = []
        try:
            for observation in trial():
                observations.append(observation)
        except Exception as error:
            if not _is_of_kafka(error):
                raise
            with suppress(OnceonlyError):
                self._transactions.fence(self._make_id(promise))
            observations.append(Observation(promise.name, error=describe_error(error, self._connection)))
        return observations

    def _try_commit(self) -> list[Observation]:
        with self._reader() as read:
            values, producer = self._write(self._make_id(COMMIT))
            producer.commit_transaction(PATIENCE_SECONDS)
            got = read(values, PATIENCE_SECONDS)
        return [Observation(COMMIT.name, _compare(got, values))]

    def _try_abort(self) -> list[Observation]:
        id = self._make_id(ABORT)
        with self._reader() as read:
            values, producer = self._write(id)
            producer.abort_transaction(PATIENCE_SECONDS)
            later_values, producer = self._write(id)  # behind it, so that a reader has passed it
            producer.commit_transaction(PATIENCE_SECONDS)
            got = read(later_values, PATIENCE_SECONDS)
        count = len(set(got) & set(values))
        return [Observation(ABORT.name, f"{count} aborted records were read" if count else "")]

    def _try_open_and_hand_on(self) -> Iterator[Observation]:
        """Look at an open transaction, and commit it as a commit elsewhere does, by its producer's id and epoch."""
        id = self._make_id(HANDED_ON)
        with self._reader() as read:
            values, producer = self._write(id)
            early = read(values, QUIET_SECONDS)
            breach = f"{len(early)} records of an open transaction were read" if early else ""
            yield Observation(OPEN.name, breach)
            description = self._transactions.describe([id])[id]
            self._transactions.end(id, description.producer_id, description.epoch, commit=True)
            got = early if set(values) <= set(early) else early + read(values, PATIENCE_SECONDS)
            del producer  # it has waited until here
        yield Observation(HANDED_ON.name, _compare(got, values))

    def _try_fencing(self) -> list[Observation]:
        from confluent_kafka import KafkaException

        id = self._make_id(FENCING)
        with self._reader() as read:
            values, fenced_producer = self._write(id)
            self._transactions.fence(id)
            breach = ""
            try:
                fenced_producer.produce(self._topic, b"late", b"late", partition=TRIED)
                fenced_producer.commit_transaction(PATIENCE_SECONDS)
                breach = "a fenced producer was told that it had committed"
            except KafkaException as error:
                if not error.args[0].fatal():  # no answer, such as a time-out; it was not refused
                    raise
            later_values, producer = self._write(id)
            producer.commit_transaction(PATIENCE_SECONDS)
            got = read(later_values, PATIENCE_SECONDS)
        late = set(got) & {*values, b"late"}
        if late:
            breach = f"{len(late)} records of a fenced producer were read"
        return [Observation(FENCING.name, breach)]

    # ---- time-outs

    def _let_expire(self) -> list[Observation]:
        """Leave a transaction open, in a partition of its own, whose time is over soon."""
        self._expiring_values, self._expiring_producer = self._write(self._make_id(EXPIRY), EXPIRING, EXPIRING_SECONDS)
        self._expires_at, self._expired_after = time.monotonic() + EXPIRING_SECONDS, None
        return []

    def _look_at_expiry(self) -> list[Observation]:
        """Note when the transaction has ended, as far as it has."""
        id = self._make_id(EXPIRY)
        if self._expired_after is None and self._transactions.describe([id])[id].state not in OPEN_STATES:
            self._expired_after = max(0.0, time.monotonic() - self._expires_at)
        return []

    def _await_expiry(self) -> list[Observation]:
        deadline = self._expires_at + EXPIRY_PATIENCE_SECONDS
        while self._expired_after is None:
            self._look_at_expiry()
            if self._expired_after is None and time.monotonic() > deadline:
                self._transactions.fence(self._make_id(EXPIRY))
                breach = f"it was open {EXPIRY_PATIENCE_SECONDS:.0f} s after its time was over"
                return [Observation(EXPIRY.name, breach)]
            time.sleep(0.1)
        with self._reader(EXPIRING, from_start=True) as read:
            later_values, producer = self._write(self._make_id(COMMIT), EXPIRING)
            producer.commit_transaction(PATIENCE_SECONDS)
            got = read(later_values, PATIENCE_SECONDS)
        count = len(set(got) & set(self._expiring_values))
        return [
            Observation(EXPIRY.name, f"{count} records of it were read" if count else "", figure=self._expired_after)
        ]

    # ---- rows that brokers may refuse

    def try_rows(self) -> Iterator[Observation]:
        """Write rows of each kind that pipelines have, in transactions that are aborted."""
        old = int(OLD_DATE.timestamp() * 1000)
        rows: list[tuple[Promise, dict[str, Any]]] = [
            (LARGE_ROWS, {"key": b"k", "value": b"x" * LARGE_BYTES}),
            (OLD_ROWS, {"key": b"k", "value": b"x", "timestamp": old}),
            (KEYLESS_ROWS, {"value": b"x"}),
        ]
        for promise, row in rows:
            yield from self._attempt(promise, lambda promise=promise, row=row: [self._try_row(promise, row)])  # type: ignore[misc]

    def _try_row(self, promise: Promise, row: dict[str, Any]) -> Observation:
        answers: list[Any] = []
        producer = self._begin(self._make_id(promise))
        producer.produce(self._topic, **row, partition=TRIED, on_delivery=lambda error, _: answers.append(error))
        producer.flush(PATIENCE_SECONDS)
        with suppress(Exception):  # what was refused may have failed the transaction
            producer.abort_transaction(PATIENCE_SECONDS)
        if not answers:
            return Observation(promise.name, error=f"no broker answered within {PATIENCE_SECONDS:.0f} s")
        refusal = answers[0]
        if refusal is None:
            return Observation(promise.name)
        if refusal.code() not in _list_refusals():
            return Observation(promise.name, error=refusal.str())
        setting = broker_limits.SETTING_BY_PROMISE[promise.name]
        return Observation(promise.name, f"by the brokers' defaults, it is refused: {refusal.str()} ({setting})")

    # ---- clients

    def _make_id(self, promise: Promise) -> str:
        return f"{self._id_prefix}-{promise.name}"

    def _begin(self, id: str, timeout: float | None = None) -> Any:
        """Return a producer with an open transaction.

        Args:
            timeout: of the transaction; None: that of sinks, or the longest of some that the brokers allow.
        """
        from confluent_kafka import KafkaError, KafkaException

        timeouts = [timeout] if timeout else self._timeouts
        for seconds in timeouts:
            producer = self._make_producer(id, seconds)
            try:
                producer.init_transactions(PATIENCE_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.INVALID_TRANSACTION_TIMEOUT or seconds == timeouts[-1]:
                    raise
                continue
            break
        if not timeout:
            self._timeouts = [seconds]  # what was refused once is not asked for again
        producer.begin_transaction()
        return producer

    def _make_producer(self, id: str, timeout: float) -> Any:
        from confluent_kafka import Producer

        settings: dict[str, Any] = {
            **TopicClient("", self._connection).make_config(),
            "transactional.id": id,
            "transaction.timeout.ms": int(timeout * 1000),
            "message.timeout.ms": int(timeout * 1000),
            "acks": "all",
            "message.max.bytes": 2 * LARGE_BYTES,
        }
        return Producer(settings, logger=SILENT_LOGGER)

    def _write(self, id: str, partition: int = TRIED, timeout: float | None = None) -> tuple[list[bytes], Any]:
        """Write some records in a transaction that stays open; return their values, and the producer."""
        producer, values = self._begin(id, timeout), []
        for number in range(RECORDS):
            values.append(f"{uuid.uuid4().hex} {number}".encode())
            producer.produce(self._topic, values[-1], b"key", partition=partition)
        if producer.flush(PATIENCE_SECONDS):
            raise NotCommitted(
                "rows were not acknowledged.",
                f"Not within {PATIENCE_SECONDS:.0f} s.",
                "Look at the brokers.",
                code="broker-not-writable",
            )
        return values, producer

    @contextmanager
    def _reader(self, partition: int = TRIED, from_start: bool = False) -> Iterator[Read]:
        """Return a function that reads, read_committed, from the log's end as of now until it has those records."""
        from confluent_kafka import Consumer, TopicPartition

        settings = {**TopicClient("", self._connection).make_config(), "isolation.level": ISOLATION}
        consumer = Consumer({**settings, "group.id": self._id_prefix, "enable.auto.commit": False})
        try:
            start, end = consumer.get_watermark_offsets(
                TopicPartition(self._topic, partition), timeout=PATIENCE_SECONDS
            )
            consumer.assign([TopicPartition(self._topic, partition, start if from_start else end)])
            yield lambda values, seconds: _read(consumer, values, seconds)
        finally:
            consumer.close()


def describe_error(error: BaseException, connection: KafkaConnection) -> str:
    """Return an error in a line, without secrets."""
    if isinstance(error, OnceonlyError):
        return shorten(connection.scrub(f"{error.what} {error.why}"))
    cause = error.args[0] if error.args else error
    text = cause.str() if hasattr(cause, "str") else str(cause) or "no broker answered"
    if hasattr(cause, "code") and cause.code() in DENIED:
        text += " (not granted)"
    return shorten(connection.scrub(text))


def _read(consumer: Any, values: Sequence[bytes], seconds: float) -> list[bytes]:
    """Return what is read until all of these values are, or the time is over."""
    got: list[bytes] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not set(values) <= set(got):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            got.append(message.value() or b"")
    return got


def _compare(got: Sequence[bytes], values: Sequence[bytes]) -> str:
    """Return what is wrong with the records that were read of a committed transaction."""
    if sorted(got) == sorted(values):
        return ""
    return f"{len(set(got))} of {len(values)} records were read within {PATIENCE_SECONDS:.0f} s after the commit"


def _list_refusals() -> frozenset[int]:
    """Return the codes by which a broker, or the client for it, refuses a row itself."""
    from confluent_kafka import KafkaError

    names = ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_TIMESTAMP", "INVALID_RECORD", "INVALID_MSG")
    return frozenset(getattr(KafkaError, name) for name in names)


def _is_of_kafka(error: Exception) -> bool:
    from confluent_kafka import KafkaException

    return isinstance(error, (KafkaException, OnceonlyError))

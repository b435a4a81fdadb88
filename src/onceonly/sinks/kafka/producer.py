"""Writes rows to Kafka: in a transaction that stays open, for another process to end, or without a transaction.

A `librdkafka.Producer` that is closed leaves its transaction open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.counts import count
from onceonly.errors import Fenced, InvalidPipeline, NotCommitted, OnceonlyError
from onceonly.kafka.connection import DENIED
from onceonly.kafka.librdkafka import FailureCallback, Producer, Records
from onceonly.kafka.transactions import Transactions
from onceonly.sinks.kafka.limits import QUEUE, Topics
from onceonly.waits import wait_for

PATIENCE = 60.0  # seconds without any progress
ROOM = 0.005  # seconds until there may be room in a full queue


@dataclass(frozen=True)
class SendTarget:
    """What a producer needs. Can be pickled, so that Spark can send it to its workers (in the task, not in the plan).

    Args:
        config: librdkafka's settings of the connection, including secrets.
        timeout: of the transaction, in seconds.
    """

    sink: str
    config: Mapping[str, str]
    topics: Topics
    timeout: float


class Output:
    """One producer, for one transaction or none, which is closed after the block.

    After an error nothing more is sent: rows that wait for a broker would open the transaction again as soon as it is
    back, perhaps after others have published them, and hold up the readers until its time-out.

    Args:
        transactions: reads the producer's id and epoch, which the client does not provide, from the coordinator. If
            another producer may use the same transactional id, rows acknowledged after that were written by exactly
            this one.
    """

    producer: tuple[int, int] | None = None

    def __init__(
        self, target: SendTarget, transactional_id: str | None, transactions: Transactions | None = None
    ) -> None:
        self._target, self._id = target, transactional_id
        self._errors: list[str] = []
        with self._convert_errors():
            self._producer = Producer(_producer_settings(target, transactional_id), _failure_reporter(self._errors))
        if transactional_id:
            try:
                self._begin(transactional_id, transactions)
            except BaseException:
                self._producer.close()
                raise

    def _begin(self, transactional_id: str, transactions: Transactions | None) -> None:
        with self._convert_errors(), wait_for("the Kafka brokers to begin a transaction"):
            self._producer.begin(PATIENCE)
        if transactions:
            description = transactions.describe([transactional_id])[transactional_id]
            self.producer = description.producer_id, description.epoch

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Queue the rows; `flush` waits for them.

        Raises:
            NotCommitted: a row was not delivered. Nothing of the transaction will be published.
        """
        with self._convert_errors():
            try:
                for topic, records in _records_by_topic(batch):
                    self._queue(topic, records)
            except Exception as error:
                self._raise_fatal(error)
                raise
            self._producer.poll(0)
        self._raise_failed()

    def flush(self) -> None:
        """Wait until every row is acknowledged by all in-sync replicas.

        Raises:
            NotCommitted: a row was not. Nothing of the transaction will be published.
        """
        waiting, progress_at = len(self._producer), monotonic()
        with wait_for("the Kafka brokers to acknowledge rows") as wait:
            while waiting:
                still_waiting = self._producer.flush(1)
                self._raise_failed()
                wait.detail = f"{count(still_waiting, 'row')} to go"
                if still_waiting < waiting:
                    waiting, progress_at = still_waiting, monotonic()
                elif monotonic() - progress_at > PATIENCE:
                    raise _not_written_error(
                        self._target, f"{count(waiting, 'row')} not acknowledged after {PATIENCE:.0f} s."
                    )
        self._raise_failed()

    def _queue(self, topic: str, records: Records) -> None:
        """Queue all records, waiting for room as long as some are acknowledged."""
        deadline = monotonic() + PATIENCE
        while (queued := self._producer.queue(topic, records)) < len(records):
            records = records.skip(queued)
            with wait_for("the Kafka brokers to take more rows"):
                self._producer.poll(ROOM)  # only waits: successful deliveries are not reported
            self._raise_failed()
            if queued:
                deadline = monotonic() + PATIENCE
            elif monotonic() > deadline:
                raise _not_written_error(self._target, f"Nothing was acknowledged for {PATIENCE:.0f} s.")

    def _raise_fatal(self, error: Exception) -> None:
        if _is_fatal(error):
            self._producer.poll(1)  # the cause of a fatal error comes as a delivery report
            self._raise_failed()

    def _raise_failed(self) -> None:
        if self._errors:
            raise not_delivered_error(self._target, len(self._errors), self._errors[0])

    def _convert_errors(self) -> _ErrorConverter:
        return _ErrorConverter(self._target)


def _is_fatal(error: Exception) -> bool:
    from confluent_kafka import KafkaError, KafkaException

    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError._FATAL


class _ErrorConverter:
    """Converts errors of the client into those of onceonly.errors."""

    def __init__(self, target: SendTarget) -> None:
        self._target = target

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        from confluent_kafka import KafkaException

        if not isinstance(error, KafkaException):
            return
        cause = error.args[0]
        raise explain(self._target, cause.code(), cause.str()) from error


def is_final(code: int) -> bool:
    """Return whether the error is about the transaction or the permission, whatever the row."""
    from confluent_kafka import KafkaError

    return code in DENIED or code in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


def explain(target: SendTarget, code: int, why: str) -> OnceonlyError:
    """Return the error for what a client reports.

    Args:
        code: of Kafka's protocol, or of librdkafka (below -1).
        why: the client's words.
    """
    if is_final(code) and code not in DENIED:
        return Fenced(
            f"sink '{target.sink}': another process has ended this transaction.",
            why,
            "Nothing of it is published, and this process stops.",
            code="transaction-taken-over",
        )
    if code in DENIED:
        return InvalidPipeline(
            f"sink '{target.sink}': the brokers do not permit writing.",
            why,
            "Grant Write on the topic, and Write on the TransactionalId prefix (KafkaSink(id_prefix=…)).",
            code="permission-denied",
        )
    return _not_written_error(target, why)


def write_all(
    target: SendTarget,
    transactional_id: str | None,
    batches: Iterable[pa.RecordBatch],
    transactions: Transactions | None = None,
) -> tuple[int, int] | None:
    """Produce all batches and wait for the acknowledgements. A transaction stays open. Returns `Output.producer`."""
    with Output(target, transactional_id, transactions) as output:
        for batch in batches:
            output.write(batch)
        output.flush()
        return output.producer


def _failure_reporter(errors: list[str]) -> FailureCallback:
    def report(code: int, text: str, topic: str, partition: int) -> None:
        errors.append(describe_failure(code, text, topic, partition))

    return report


def describe_failure(code: int, text: str, topic: str, partition: int) -> str:
    """Return a clause about a row that was not delivered.

    Args:
        code: of Kafka's protocol, or of librdkafka (below -1).
        text: the client's words.
        topic: may be empty, if it is not known.
    """
    place = ""
    if topic:
        place = f" (topic '{topic}' partition {partition})"
    return f"{text}{place}{_advice(code)}"


def _producer_settings(target: SendTarget, transactional_id: str | None) -> dict[str, Any]:
    """Return librdkafka's settings: those of the connection, and over them our own."""
    settings: dict[str, Any] = {
        "client.id": "onceonly",
        "allow.auto.create.topics": False,
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",  # keys get the same partitions as with Java's producers
        "message.max.bytes": min(max(target.topics.narrowest.room, 1000), 1_000_000_000),
        "batch.size": min(max(target.topics.narrowest.room, 1), 1_000_000),  # of several rows, if that is below 1000
        "queue.buffering.max.kbytes": QUEUE >> 10,
        "linger.ms": 5,  # with more, the queue exceeds the cache: 0.2 µs of CPU per row
        "reconnect.backoff.ms": 10,  # also the interval at which the client checks for its coordinator
        "delivery.report.only.error": True,
    }
    if transactional_id:
        settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": int(target.timeout * 1000)}
    return {**target.config, **settings}


def _advice(code: int) -> str:
    """Return advice for rows that were accepted when they were staged and are refused now; empty for other errors."""
    from confluent_kafka import KafkaError

    settings = {
        KafkaError.INVALID_TIMESTAMP: "message.timestamp.before.max.ms and .after.max.ms",
        KafkaError.INVALID_RECORD: "cleanup.policy",
        KafkaError.MSG_SIZE_TOO_LARGE: "max.message.bytes",
        KafkaError.RECORD_LIST_TOO_LARGE: "segment.bytes",
        KafkaError.UNKNOWN: "compression.type",
    }
    if code not in settings:
        return ""
    return f"; the topic's {settings[code]} must allow these rows until they are written"


def _records_by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, Records]]:
    """Yield the rows of each topic, in their order."""
    column = batch.column("topic")
    names = pc.unique(column).to_pylist()
    if len(names) == 1:
        yield names[0], Records(batch)
        return
    for name in names:
        yield name, Records(batch.filter(pc.equal(column, name)))


def not_delivered_error(target: SendTarget, number: int, first: str) -> OnceonlyError:
    """Return the error for rows of which the brokers did not take some; `first` is of `describe_failure`."""
    return _not_written_error(target, f"Failed deliveries: {number:,}, the first one: {first}")


def _not_written_error(target: SendTarget, why: str) -> OnceonlyError:
    return NotCommitted(
        f"sink '{target.sink}': rows could not be written to Kafka at {target.config['bootstrap.servers']}.",
        why,
        "Nothing of this transaction is published. Check the brokers and retry.",
        code="broker-not-writable",
    )

"""Writes rows to Kafka: in a transaction that stays open, for another process to end, or without a transaction.

A `confluent_kafka.Producer` aborts its open transaction when it is closed. If it is only dropped, the transaction stays
open.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.counts import count
from onceonly.errors import Fenced, InvalidPipeline, NotCommitted, OnceonlyError
from onceonly.kafka.connection import DENIED
from onceonly.kafka.transactions import Transactions
from onceonly.sinks.kafka.limits import QUEUE, Topics

PATIENCE = 60.0  # seconds without any progress
UNASSIGNED, NOW = -1, 0  # a record without a partition, without a timestamp
SILENT = logging.Logger("librdkafka", logging.CRITICAL)  # what matters is raised as an error


@dataclass(frozen=True)
class Target:
    """How to produce. Can be pickled, so that Spark can send it to its workers (in the task, not in the plan).

    Args:
        config: librdkafka's settings of the connection, including secrets.
        timeout: of the transaction, in seconds.
    """

    sink: str
    config: Mapping[str, str]
    topics: Topics
    timeout: float


class Output:
    """One producer, for one transaction or none.

    Args:
        known: reads the producer's id and epoch, which the client does not provide, from the coordinator. If another
            producer may use the same transactional id, rows acknowledged after that were written by exactly this one.
    """

    producer: tuple[int, int] | None = None

    def __init__(self, target: Target, transactional_id: str | None, known: Transactions | None = None) -> None:
        from confluent_kafka import Producer

        self._target, self._id = target, transactional_id
        self._errors: list[Any] = []
        self._producer: Any = Producer(_config(target, transactional_id, self._errors.append), logger=SILENT)
        if transactional_id:
            with self._explained():
                self._producer.init_transactions(PATIENCE)
                self._producer.begin_transaction()
        if transactional_id and known:
            seen = known.describe([transactional_id])[transactional_id]
            self.producer = seen.producer_id, seen.epoch

    def write(self, batch: pa.RecordBatch) -> None:
        with self._explained():
            try:
                self._produce(batch)
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
        left, since = len(self._producer), monotonic()
        while left:
            now = self._producer.flush(1)
            self._raise_failed()
            if now < left:
                left, since = now, monotonic()
            elif monotonic() - since > PATIENCE:
                raise _not_written(self._target, f"{count(left, 'row')} not acknowledged after {PATIENCE:.0f} s.")
        self._raise_failed()

    def _produce(self, batch: pa.RecordBatch) -> None:
        produce = self._producer.produce
        for row in _records(batch):  # runs for each of millions of rows: do what you can per batch
            try:
                produce(*row)
            except BufferError:
                self._produce_when_there_is_room(row)

    def _produce_when_there_is_room(self, row: tuple[Any, ...]) -> None:
        deadline = monotonic() + PATIENCE
        while True:
            self._producer.poll(0.01)  # only waits: successful deliveries are not reported
            self._raise_failed()
            try:
                return self._producer.produce(*row)  # type: ignore[no-any-return]
            except BufferError:
                if monotonic() > deadline:
                    raise _not_written(self._target, f"Nothing was acknowledged for {PATIENCE:.0f} s.") from None

    def _raise_fatal(self, error: Exception) -> None:
        if _is_fatal(error):
            self._producer.poll(1)  # the cause of a fatal error comes as a delivery report
            self._raise_failed()

    def _raise_failed(self) -> None:
        if self._errors:
            raise _not_written(
                self._target, f"Failed deliveries: {len(self._errors):,}, the first one: {self._errors[0]}"
            )

    def _explained(self) -> _Explained:
        return _Explained(self._target)


def _is_fatal(error: Exception) -> bool:
    from confluent_kafka import KafkaError, KafkaException

    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError._FATAL


class _Explained:
    """Converts errors of the client into those of onceonly.errors."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        from confluent_kafka import KafkaError, KafkaException

        if not isinstance(error, KafkaException):
            return
        cause = error.args[0]
        fenced = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
        if cause.code() in fenced:
            raise Fenced(
                f"sink '{self._target.sink}': another process has ended this transaction.",
                cause.str(),
                "Nothing of it is published, and this process stops.",
            ) from error
        if cause.code() in DENIED:
            raise InvalidPipeline(
                f"sink '{self._target.sink}': the brokers do not permit writing.",
                cause.str(),
                "Grant Write on the topic, and Write on the TransactionalId prefix (KafkaSink(id_prefix=…)).",
            ) from error
        raise _not_written(self._target, cause.str()) from error


def write_all(
    target: Target,
    transactional_id: str | None,
    batches: Iterable[pa.RecordBatch],
    known: Transactions | None = None,
) -> tuple[int, int] | None:
    """Produce all batches and wait for the acknowledgements. A transaction stays open. Returns `Output.producer`."""
    output = Output(target, transactional_id, known)
    for batch in batches:
        output.write(batch)
    output.flush()
    return output.producer


def _config(target: Target, transactional_id: str | None, failed: Any) -> dict[str, Any]:
    def report(error: Any, message: Any) -> None:
        if error:
            failed(f"{error.str()} (topic '{message.topic()}' partition {message.partition()}){_advice(error.code())}")

    def report_fatal(error: Any) -> None:  # without it, the client raises between the other reports
        if error.fatal():
            failed(error.str())

    ours: dict[str, Any] = {
        "client.id": "onceonly",
        "allow.auto.create.topics": False,
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",  # keys get the same partitions as with Java's producers
        "message.max.bytes": min(max(target.topics.smallest, 1000), 1_000_000_000),
        "batch.size": min(max(target.topics.smallest, 1), 1_000_000),  # of several rows, if that is below 1000
        "queue.buffering.max.kbytes": QUEUE >> 10,
        "linger.ms": 5,  # with more, the queue exceeds the cache: 0.2 µs of CPU per row
        "reconnect.backoff.ms": 10,  # also the interval at which the client checks for its coordinator
        "delivery.report.only.error": True,
        "on_delivery": report,
        "error_cb": report_fatal,
    }
    if transactional_id:
        ours |= {"transactional.id": transactional_id, "transaction.timeout.ms": int(target.timeout * 1000)}
    return {**target.config, **ours}


def _advice(code: int) -> str:
    """Advice for rows that were accepted when they were staged and are refused now."""
    from confluent_kafka import KafkaError

    settings = {
        KafkaError.INVALID_TIMESTAMP: "message.timestamp.before.max.ms and .after.max.ms",
        KafkaError.INVALID_RECORD: "cleanup.policy",
        KafkaError.MSG_SIZE_TOO_LARGE: "max.message.bytes",
    }
    return f"; the topic's {settings[code]} must allow these rows until they are written" if code in settings else ""


def _records(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The arguments of `Producer.produce` for each row, in its order. Two of them are callbacks, and unused."""
    return zip(
        _topics(batch.column("topic")),
        _values(batch.column("value"), None),
        _values(batch.column("key"), None),
        _values(batch.column("partition"), UNASSIGNED),
        repeat(None),
        repeat(None),
        _values(batch.column("timestamp"), NOW),
        _headers(batch.column("headers")),
        strict=False,  # repeat() has no end
    )


def _topics(column: pa.Array) -> Iterable[str]:
    names = pc.unique(column).to_pylist()
    return repeat(names[0]) if len(names) == 1 else _values(column, None)


def _values(column: pa.Array, empty: Any) -> Iterable[Any]:
    """The values, with `empty` for null. A column that is all null costs nothing."""
    if column.null_count == len(column):
        return repeat(empty)
    filled = column if empty is None else pc.fill_null(column, empty)
    return filled.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]  # 20 times as fast as to_pylist


def _headers(column: pa.Array) -> Iterable[Any]:
    if not len(column.flatten()):
        return repeat(None)
    return (row and [(header["key"], header["value"]) for header in row] for row in column.to_pylist())


def _not_written(target: Target, why: str) -> OnceonlyError:
    return NotCommitted(
        f"sink '{target.sink}': rows could not be written to Kafka.",
        why,
        "Nothing of this transaction is published. Check the brokers and retry.",
    )

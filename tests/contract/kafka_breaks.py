"""What can change between stage and commit of a Kafka sink, in both ways of writing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from integration.readers.kafka_reader import create_topic, set_config, until
from patience import PATIENCE

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.dev.services import machine
from onceonly.kafka import admin as kafka_admin
from onceonly.kafka.admin import BrokerClient
from onceonly.kafka.transactions import Transactions
from onceonly.sinks.kafka.handle import KafkaHandle, Tx
from onceonly.testing.contract import Break
from onceonly.testing.targets import Undo


def transactions_of(handle: Handle) -> list[Tx]:
    return [part.tx for part in KafkaHandle.parse("late", handle).parts if part.tx]


def need_open_transactions(handle: Handle) -> None:
    if not transactions_of(handle):
        pytest.skip("nothing is written before the commit")


def spool_files(target: Any, handle: Handle) -> list[Path]:
    return [Path(target.folder) / handle["txn"] / part.spool for part in KafkaHandle.parse("late", handle).parts]


def abort(target: Any, handle: Handle, txn: Transaction) -> None:
    """As the broker does when they expire, if they are open."""
    with Transactions({"bootstrap_servers": target.bootstrap}) as known:
        for tx in transactions_of(handle):
            known.end(tx.id, *tx.producer, commit=False)


def expire(target: Any, handle: Handle, txn: Transaction) -> None:
    need_open_transactions(handle)
    abort(target, handle, txn)


def fence(target: Any, handle: Handle, txn: Transaction) -> None:
    need_open_transactions(handle)
    with Transactions({"bootstrap_servers": target.bootstrap}) as known:
        for tx in transactions_of(handle):
            known.fence(tx.id)


def remove_spool(target: Any, handle: Handle, txn: Transaction) -> None:
    abort(target, handle, txn)
    shutil.rmtree(Path(target.folder) / txn.name)


def truncate_spool(target: Any, handle: Handle, txn: Transaction) -> None:
    abort(target, handle, txn)
    file = spool_files(target, handle)[0]
    file.write_bytes(file.read_bytes()[:-20])


def remove_row(target: Any, handle: Handle, txn: Transaction) -> None:
    abort(target, handle, txn)
    file = spool_files(target, handle)[0]
    rows = pq.read_table(file)
    pq.write_table(rows.slice(1), file)


def lose_markers(target: Any, handle: Handle, txn: Transaction) -> None:
    """The transactions have ended, and retention has removed the part of the log that shows how."""
    need_open_transactions(handle)
    abort(target, handle, txn)
    with Transactions({"bootstrap_servers": target.bootstrap}) as known:
        ids = [tx.id for tx in transactions_of(handle)]
        until(lambda: all(seen.state == "CompleteAbort" for seen in known.describe(ids).values()), what="the end")
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    partitions = sorted({number for tx in transactions_of(handle) for _, number in tx.partitions})
    for deleted in admin.delete_records([TopicPartition(target.topic, number, -1) for number in partitions]).values():
        deleted.result(PATIENCE)


def delete_topic(target: Any, handle: Handle, txn: Transaction) -> None:
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    for deleted in admin.delete_topics([target.topic]).values():
        deleted.result(PATIENCE)
    until(lambda: target.topic not in admin.list_topics(timeout=PATIENCE).topics, what="the end of the topic")


def recreate_topic(target: Any, handle: Handle, txn: Transaction) -> None:
    delete_topic(target, handle, txn)
    create_topic(target.bootstrap, target.topic, 3)


def recreate_empty_topic(target: Any, handle: Handle, txn: Transaction) -> None:
    if target.published():
        pytest.skip("then it went back")
    recreate_topic(target, handle, txn)


def accept_only_tiny_records(target: Any, handle: Handle, txn: Transaction) -> Undo:
    abort(target, handle, txn)
    set_config(target.bootstrap, target.topic, max_message_bytes="50")
    return lambda: set_config(target.bootstrap, target.topic, max_message_bytes="1048588")


def lose_connection(target: Any, handle: Handle, txn: Transaction) -> Undo:
    impatient = pytest.MonkeyPatch()
    object.__setattr__(target, "sink_bootstrap", f"127.0.0.1:{machine.free_port()}")
    impatient.setattr(BrokerClient, "timeout", 1.0)
    impatient.setitem(kafka_admin.DEFAULTS, "bootstrap_timeout_ms", 1000)  # type: ignore[misc]

    def connect() -> None:
        impatient.undo()
        object.__setattr__(target, "sink_bootstrap", "")

    return connect


KAFKA_BREAKS = (
    Break("transactions expired", expire, "passes", first=True),
    Break("transactions fenced", fence, "passes", first=True),
    Break("spool removed", remove_spool, "again", first=True),
    Break("spool truncated", truncate_spool, "again", first=True),
    Break("one spooled row missing", remove_row, "again"),
    Break("markers lost", lose_markers, "action", first=True),
    Break("topic deleted", delete_topic, "action", first=True),
    Break("topic recreated", recreate_topic, "action"),
    Break("empty topic recreated", recreate_empty_topic, "again", first=True),
    Break("smaller records allowed", accept_only_tiny_records, "action", first=True),
    Break("no connection", lose_connection, "no answer", first=True),
)

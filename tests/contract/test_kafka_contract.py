"""The Kafka sink, in both ways of writing, passes the suite that every sink has to pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contract.kafka_breaks import KAFKA_BREAKS
from contract.spark_rows import Folder, OnSpark
from contract.stored import digest
from integration.projects.kafka_writers import WRITERS
from integration.readers.kafka_reader import committed, new_topic, until, values

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Sink
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.settings import Writer
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.testing import contract
from onceonly.testing.contract import SINK, Rows


@dataclass(frozen=True)
class Topic(Folder):
    bootstrap: str
    topic: str
    late: bool
    writer: Writer = "auto"
    sink_bootstrap: str = ""  # if its connection leads elsewhere

    shows_decisions = False  # the marker that ends a transaction is that transaction's own, and has no number
    shows_each = True
    tells_first = False  # of several that end one transaction at once each is told that it did
    is_atomic = False  # each Spark task's transaction ends by itself: some may be committed and others fenced

    def sink(self) -> Sink:
        config = KafkaSink(name=SINK, topic=self.topic)
        connection = KafkaConnection.plaintext(self.sink_bootstrap or self.bootstrap)
        return KafkaWriter(config, connection, self.late, self.folder, Path(self.folder), writer=self.writer)

    def published(self) -> list[int]:
        until(lambda: not self._ending(), what="the end of every transaction that is being ended")
        return sorted(int(value or b"") for value in values(self.bootstrap, self.topic))

    def digests(self) -> Mapping[str, str]:
        """Records, as a plain consumer finds them, by partition and offset."""
        until(lambda: not self._ending(), what="the end of every transaction that is being ended")
        records = committed(self.bootstrap, self.topic)
        return {f"{record.partition}-{record.offset}": digest(repr(record).encode()) for record in records}

    def traces(self, txn: Transaction) -> list[Any]:
        """Its spool, and what is open at the broker."""
        with Transactions({"bootstrap_servers": self.bootstrap}) as known:
            return [*super().traces(txn), *known.list_open(f".*{txn.name}.*")]

    def _ending(self) -> list[str]:
        """Transactions of which the markers are being written into this topic."""
        with Transactions({"bootstrap_servers": self.bootstrap}) as known:
            described = known.describe(known.list_open(".*"))
        here = {id: seen for id, seen in described.items() if any(topic == self.topic for topic, _ in seen.partitions)}
        return [id for id, seen in here.items() if seen.state != "Ongoing"]


@pytest.mark.integration
@pytest.mark.parametrize("late", [False, True], ids=["staged", "late"])
@pytest.mark.parametrize("writer", WRITERS)
class TestKafka(OnSpark):
    breaks = KAFKA_BREAKS

    @pytest.fixture
    def target(self, tmp_path: Path, broker: str, late: bool, writer: Writer) -> contract.Target:
        return Topic(str(tmp_path / "out"), broker, new_topic(broker, partitions=3), late, writer)

    @pytest.fixture
    def make_rows(self, session: Any) -> Rows:
        def make(*numbers: int) -> Any:
            rows = session.createDataFrame([(number,) for number in numbers], "n INT")
            return rows.selectExpr("CAST(n AS STRING) AS value")

        return make

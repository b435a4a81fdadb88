"""The recorders of a history on a real broker: what producers were told, and what a reader found."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from deltalake import write_deltalake
from integration.readers.kafka_reader import new_topic
from patience import PATIENCE

from onceonly.testing.history import Fate, History, find_anomalies
from onceonly.testing.history.recorders import FolderReader, ProducerRecorder, TableReader, TopicReader

pytestmark = pytest.mark.integration


def test_a_topic_by_itself(broker: str) -> None:
    """What is committed is read once, also in several polls; what is aborted is not."""
    history, topic = History(), new_topic(broker, 2)
    producer = ProducerRecorder(history, broker, topic)
    producer.send(range(100), 2)
    producer.flush()
    reader = TopicReader(history, broker, topic)
    reader.read_to_end()
    with_transactions = ProducerRecorder(history, broker, topic, {"transactional.id": topic})
    with_transactions.send_together(range(100, 150), 2)
    with_transactions.send_together(range(150, 200), 2, is_committed=False)
    with_transactions.send_together(range(200, 250), 2)
    reader.read_to_end(is_final=True)
    assert Counter(send.fate for send in history.sends) == {Fate.OK: 200, Fate.FAIL: 50}
    assert [len(read.records) for read in history.reads] == [100, 100]
    assert find_anomalies(history) == []
    stranger = Producer({"bootstrap.servers": broker})
    stranger.produce(topic, b"7", partition=1)
    assert stranger.flush(PATIENCE) == 0
    reader.read_to_end(is_final=True)
    reader.close()
    assert [(anomaly.name, anomaly.values) for anomaly in find_anomalies(history)] == [("duplicate", (7,))]


def test_a_table_and_a_folder(tmp_path: Path) -> None:
    history = History()
    table, folder = TableReader(history, str(tmp_path / "table"), "table", "n"), tmp_path / "folder"
    folder.mkdir()
    files = FolderReader(history, folder, "folder", "n")
    table.read()
    files.read()
    write_deltalake(tmp_path / "table", pa.table({"n": [1, 2]}))
    (folder / "part=0").mkdir()
    (folder / "part=0" / "some.jsonl").write_text("\n".join(json.dumps({"n": n}) for n in (1, 2)))
    (folder / "_staged.jsonl").write_text('{"n": 3}')
    pq.write_table(pa.table({"n": [4]}), folder / "more.parquet")
    table.read()
    files.read()
    values = [[record.value for record in read.records] for read in history.reads]
    assert list(map(sorted, values)) == [[], [], [1, 2], [1, 2, 4]]

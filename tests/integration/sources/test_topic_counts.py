"""Records of a real topic counted in its log, as a verification does it: aborted ones and markers are told apart."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from integration.readers.kafka_reader import until
from integration.sources.test_offsets_without_records import Topic
from patience import PATIENCE

from onceonly.checkpoint.verification import CountableLog, Depth, Finding, Judgement, ReadRange

pytestmark = pytest.mark.integration


def count(topic: Topic, *ranges: ReadRange) -> list[Finding]:
    assert isinstance(topic.reader, CountableLog)
    progress: list[tuple[int, int]] = []
    findings = list(topic.reader.count_ranges(ranges, Depth(True, lambda done, of: progress.append((done, of)))))
    assert progress[-1][0] == progress[-1][1]
    return findings


def read(topic: Topic, epoch: int, records: dict[int, int], **partitions: tuple[int, int]) -> ReadRange:
    return ReadRange(epoch, topic.range(**partitions), records)


def test_committed_records_are_counted(broker: str) -> None:
    topic = Topic(broker)
    topic.write("a", "b")  # 0, 1, and the marker 2
    topic.write("never", "never", commit=False)  # 3, 4, and the marker 5
    topic.write("c")  # 6, and the marker 7
    topic.write("d", partition=1)  # 0, and the marker 1
    plain = Producer({"bootstrap.servers": broker, "log_level": 0})
    for value in ("e", "f", "g"):  # 8 to 10
        plain.produce(topic.name, value, partition=0)
    assert plain.flush(PATIENCE) == 0

    right = count(
        topic,
        read(topic, 1, {0: 2}, p0=(0, 5)),
        read(topic, 2, {0: 2, 1: 1}, p0=(5, 9), p1=(0, 2)),
        read(topic, 3, {}, p0=(9, 11)),
    )
    assert [(finding.epoch, finding.judgement, finding.code) for finding in right] == [
        (1, Judgement.RIGHT, "records-counted"),
        (2, Judgement.RIGHT, "records-counted"),
        (3, Judgement.RIGHT, "records-counted"),
    ]
    assert right[0].why.startswith("2 committed records in the log (beside 2 aborted, 1 marker)")
    assert "3 committed records" in right[1].why and "not recorded" in right[2].why

    (fewer, more) = count(topic, read(topic, 1, {0: 3}, p0=(0, 5)), read(topic, 2, {0: 1}, p0=(5, 9)))
    assert [finding.judgement for finding in (fewer, more)] == [Judgement.WRONG, Judgement.WRONG]
    assert {finding.code for finding in (fewer, more)} == {"records-differ"}


def test_records_that_retention_has_taken_are_unknown(broker: str) -> None:
    topic = Topic(broker)
    topic.write("a", "b")  # 0, 1, and the marker 2
    topic.write("c", "d")  # 3, 4, and the marker 5
    _delete_before(broker, topic, 3)
    ranges = read(topic, 1, {0: 2}, p0=(0, 3)), read(topic, 2, {0: 2}, p0=(3, 6))
    until(lambda: topic.reader.log().partitions[0][0] == 3, PATIENCE, "the deletion")
    expired, there = count(topic, *ranges)
    assert (expired.judgement, expired.code) == (Judgement.UNKNOWN, "records-expired")
    assert there.judgement is Judgement.RIGHT


def _delete_before(broker: str, topic: Topic, offset: int) -> None:
    admin: Any = AdminClient({"bootstrap.servers": broker, "log_level": 0})
    for future in admin.delete_records([TopicPartition(topic.name, 0, offset)]).values():
        future.result()

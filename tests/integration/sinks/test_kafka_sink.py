"""Rows into Kafka once, on a real broker: lost transactions, rivals, doubt, and what is refused before any work."""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from integration.projects.copying import Copy, make_copy
from integration.projects.kafka_writers import by_each_writer
from integration.projects.project import produce
from integration.readers.kafka_reader import committed, create_topic, new_topic, until
from patience import PATIENCE
from person import Person

from onceonly.checkpoint.model import State
from onceonly.errors import CannotPublish, InDoubt, InvalidPipeline, NotCommitted, StageAgain

pytestmark = [pytest.mark.integration, by_each_writer]
Make = Callable[..., Copy]


@pytest.fixture
def make(tmp_path: Path, broker: str, spark_server: str) -> Make:
    """make(way, numbers, **sink) -> a pipeline whose source holds these numbers."""

    def make(way: str = "staged", numbers: range = range(40), delta: bool = False, out: str = "", **sink: Any) -> Copy:
        copy = make_copy(
            tmp_path, broker, spark_server, f"in_{uuid.uuid4().hex[:8]}", way, sink=sink, delta=delta, out=out
        )
        produce(copy.project, numbers)
        return copy

    return make


both_ways = pytest.mark.parametrize("way", ["staged", "late"])


# ---- the ordinary way


@both_ways
def test_nothing_shows_before_the_commit_and_all_of_it_after(make, way):
    copy = make(way)
    staged = copy.stage()
    assert (staged.state, staged.rows, copy.visible()) == (State.STAGED, 40, [])
    assert len(copy.open()) == (4 if way == "staged" else 0)
    assert copy.commit().state is State.COMMITTED
    assert copy.visible() == list(range(40))
    assert copy.open() == []
    assert not list((copy.project.folder / "home" / "spool").glob("*")), "the spool is kept only until it is published"


@both_ways
def test_rows_of_one_partition_keep_their_order(make, way):
    copy = make(way, range(4000))
    copy.run()
    for partition in range(4):
        records = [record for record in committed(copy.project.bootstrap, copy.out) if record.partition == partition]
        assert [int(record.value) for record in records] == list(range(partition, 4000, 4))


@both_ways
def test_a_checkpoint_of_one_row(make, way):
    copy = make(way, range(1))
    copy.run()
    assert copy.visible() == [0]


@both_ways
def test_a_checkpoint_of_which_nothing_is_left_to_write(make, way):
    copy = with_transform(make(way), "batch.select('value').where('1 = 0')")
    assert copy.run().state is State.COMMITTED
    assert (copy.parts(), copy.visible()) == ([], [])


@both_ways
def test_lag_tools_see_what_is_committed(make, way):
    copy = make(way)
    copy.run()
    assert shown_offsets(copy) == {0: 10, 1: 10, 2: 10, 3: 10}


def shown_offsets(copy: Copy) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": copy.project.bootstrap, "group.id": "onceonly-copying"})
    try:
        found = consumer.committed(
            [TopicPartition(copy.project.topic, number) for number in range(4)], timeout=PATIENCE
        )
        return {position.partition: position.offset for position in found if position.offset >= 0}
    finally:
        consumer.close()


# ---- lost transactions


def lose(copy: Copy, *parts: int, epoch: int = 1) -> None:
    """A foreign producer takes over the transactional ids: their transactions are aborted."""
    for part in parts:
        tx = copy.parts(epoch)[part].tx
        assert tx is not None
        foreign = Producer({"bootstrap.servers": copy.project.bootstrap, "transactional.id": tx.id, "log_level": 0})
        foreign.init_transactions(PATIENCE)


def test_of_four_transactions_the_one_that_was_lost_is_written_again(make):
    copy = make()
    copy.stage()
    before = copy.parts()
    lose(copy, 2)
    copy.commit()
    assert copy.visible() == list(range(40))
    after = copy.parts()
    assert [a.tx == b.tx for a, b in zip(after, before, strict=True)] == [True, True, False, True]
    assert copy.events()[-4:] == ["committing", "replaced", "published", "committed"]
    assert dict(copy.replaced()[0]) == dict(copy.handle())


def test_a_time_out_loses_nothing(make):
    copy = make(transaction_timeout=5.0)
    while True:
        try:
            copy.stage()
            break
        except NotCommitted:  # a slow machine: timed out before it was staged, and refused
            continue
    until(lambda: not copy.open(), PATIENCE, "the broker's own abort of the transactions")
    assert copy.commit().state is State.COMMITTED
    assert copy.visible() == list(range(40))
    assert len(copy.replaced()) == 1


@both_ways
def test_two_republishers_at_once_publish_once(make, way):
    copy = make(way)
    copy.stage()
    if way == "staged":
        lose(copy, 0, 1, 2, 3)
    assert commit_at_once(copy, 2) == ["committed"] * 2
    assert copy.visible() == list(range(40))
    assert len(copy.replaced()) == 1
    copy.recover()
    assert copy.open() == []


def commit_at_once(copy: Copy, processes: int) -> list[str]:
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(_commit, [copy] * processes))


def _commit(copy: Copy) -> str:
    return copy.commit().state.value


@both_ways
def test_a_commit_from_four_processes_and_ten_times_over_publishes_once(make, way):
    copy = make(way)
    copy.stage()
    assert commit_at_once(copy, 4) == ["committed"] * 4
    assert [copy.commit().state for _ in range(10)] == [State.COMMITTED] * 10
    assert copy.visible() == list(range(40))
    assert copy.events().count("published") == 1


@both_ways
def test_a_published_row_that_was_not_recorded_is_found_by_its_evidence(make, way, monkeypatch):
    """Dead between the end of the transactions and the record of it."""
    copy = make(way)
    copy.stage()
    dying = copy.through
    monkeypatch.setattr(dying._publisher, "record_published", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        dying.commit("copying", 1)
    assert copy.commit().published["copy"]["already"] is True
    assert copy.visible() == list(range(40))


# ---- doubt


def cut_log(copy: Copy) -> None:
    """Everything that is in the output's log is removed, markers included."""
    admin = AdminClient({"bootstrap.servers": copy.project.bootstrap})
    everything = [TopicPartition(copy.out, partition, -1) for partition in range(4)]
    for done in admin.delete_records(everything).values():
        done.result(PATIENCE)


def doubtful(copy: Copy) -> None:
    """Committed by a process that died before it said so; then the log is cut."""
    copy.stage()
    dying = copy.through
    dying._publisher.record_published = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        dying.commit("copying", 1)
    copy.visible()
    cut_log(copy)
    for _ in range(2):
        with raises(InDoubt, "evidence-lost", match="is not known whether"):
            copy.commit()
    assert copy.events()[-1] == "in_doubt"
    assert list(copy.now().in_doubt) == ["copy"]


@pytest.mark.parametrize(("committed_", "visible"), [(True, []), (False, list(range(40)))])
def test_what_nothing_shows_any_more_is_in_doubt_until_a_person_says(make, committed_, visible):
    copy = make()
    doubtful(copy)
    evidence = copy.through.evidence("copying", 1, "copy")
    assert len(evidence) == 4
    assert all("unknown" in line for line in evidence)
    done = Person(copy.through).resolve_doubt("copying", 1, "copy", committed_, "ann", "I have looked")
    assert done.state is State.COMMITTED
    assert copy.visible() == visible


def test_a_topic_made_anew_is_staged_for_again(make):
    copy = make("late")
    copy.stage()
    remake(copy)
    with pytest.raises(StageAgain) as again:
        copy.commit()
    assert again.value.code == "target-recreated"
    assert copy.visible() == []
    assert copy.run().attempt == 2
    assert copy.visible() == list(range(40))


def test_a_topic_made_anew_after_the_decision_is_not_published_to(make):
    copy = make("late")
    copy.stage()
    decide(copy)
    remake(copy)
    with raises(CannotPublish, "target-recreated", match="staged for another cluster or topic"):
        copy.commit()
    assert copy.visible() == []
    given_up = Person(copy.through).give_up("copying", 1, "copy", "ann", "the topic is gone")
    assert (given_up.state, list(given_up.given_up)) == (State.COMMITTED, ["copy"])


def decide(copy: Copy) -> None:
    """By a process that dies before it publishes."""
    dying = copy.through
    dying._publisher._publish_sink = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        dying.commit("copying", 1)
    assert copy.now().state is State.COMMITTING


def remake(copy: Copy) -> None:
    admin = AdminClient({"bootstrap.servers": copy.project.bootstrap})
    admin.delete_topics([copy.out])[copy.out].result(PATIENCE)
    until(lambda: copy.out not in admin.list_topics(timeout=PATIENCE).topics, what="the topic's end")
    create_topic(copy.project.bootstrap, copy.out)


# ---- abort


@both_ways
def test_an_abort_leaves_nothing_and_the_next_attempt_publishes(make, way):
    copy = make(way)
    copy.stage()
    copy.through.abort("copying", 1, "the gate failed")
    assert copy.open() == []
    assert not list((copy.project.folder / "home" / "spool").glob("*"))
    assert copy.run().attempt == 2
    assert copy.visible() == list(range(40))


# ---- several sinks


def test_one_decision_for_delta_and_kafka(make):
    copy = make(delta=True)
    copy.stage()
    assert (copy.visible(), sum(copy.project.published("both").values())) == ([], 0)
    copy.through.abort("copying", 1, "the gate failed")
    assert (copy.visible(), sum(copy.project.published("both").values())) == ([], 0)
    copy.run()
    assert copy.visible() == sorted(copy.project.published("both").elements()) == list(range(40))


# ---- bad input


def refused(copy: Copy, *words: str) -> str:
    """Nothing was written anywhere; the message says what, why and what to do."""
    before = copy.now() if copy.through.state_table.view("copying").head.epoch else None
    with pytest.raises(InvalidPipeline) as error:
        copy.stage()
    for word in words:
        assert word in str(error.value)
    assert before is None or copy.now().handles == {}
    if copy.open():  # of a Spark task that was still running when its job had failed
        copy.through.abort("copying", 1, "the stage failed")
        until(lambda: copy.recover() == [] and not copy.open(), what="the end of what that task opened")
    return str(error.value)


def with_transform(copy: Copy, body: str) -> Copy:
    file = copy.project.folder / f"transforms_{copy.project.topic}.py"
    file.write_text(file.read_text() + f"\n\ndef copies(batch):\n    return {body}\n")
    return copy


@both_ways
def test_a_topic_that_is_not_there(make, way):
    refused(make(way, out="no-such-topic"), "topic 'no-such-topic' does not exist", "Create the topic")


@both_ways
def test_a_row_that_is_too_large_is_named(make, way, broker):
    out = new_topic(broker, **{"max_message_bytes": "1000"})
    copy = with_transform(
        make(way, out=out),
        "batch.selectExpr(\"CASE WHEN offset = 5 AND partition = 2 THEN 'the key' END AS key\", "
        "\"CASE WHEN offset = 5 AND partition = 2 THEN repeat('x', 1200) ELSE 'x' END AS value\")",
    )
    refused(copy, "row 5 of Spark partition", "the key", "1,207 bytes", "max.message.bytes", "Make the rows smaller")


@both_ways
def test_a_partition_that_the_topic_does_not_have(make, way):
    copy = with_transform(make(way), 'batch.selectExpr("value", "partition + 4 AS partition")')
    refused(copy, "has partition", f"of topic '{copy.out}'", "The topic has 4 partitions")


def test_a_topic_that_is_not_allowed(make, broker):
    one, other = sorted([new_topic(broker), new_topic(broker)])
    copy = with_transform(
        make(topics=[one, other]), f"batch.selectExpr('value', \"IF(offset = 3, 'elsewhere', '{one}') AS topic\")"
    )
    refused(copy, "has topic 'elsewhere'", f"Allowed: {one}, {other}")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('batch.select("key")', "'value' is missing"),
        ('batch.selectExpr("value", "offset AS key")', "'key' is bigint, not binary"),
        ('batch.select("value", "topic")', "'topic' is not allowed, because every row goes to"),
        ('batch.select("value", "offset")', "'offset' is not a part of a record"),
        ('batch.selectExpr("offset AS value")', "'value' is bigint, and format='raw' needs binary or string"),
    ],
)
def test_columns_that_make_no_record(make, body, words):
    refused(with_transform(make(), body), words)


def test_a_time_out_above_the_brokers(make):
    refused(make(transaction_timeout=3600.0), "cannot open transactions of 3600 s", "at most 900000")


# ---- what a row becomes


def test_keys_timestamps_headers_and_tombstones_arrive_as_they_are(make):
    copy = with_transform(
        make(numbers=range(4)),
        "batch.selectExpr("
        '"IF(partition = 0, NULL, CAST(partition AS STRING)) AS key", '
        '"IF(partition = 1, NULL, value) AS value", '
        "\"IF(partition = 2, NULL, TIMESTAMP '2013-01-01 05:00:00') AS timestamp\", "
        "\"IF(partition = 3, NULL, array(named_struct('key', 'h', 'value', value))) AS headers\")",
    )
    copy.run()
    found = {(record.key, record.value): record for record in committed(copy.project.bootstrap, copy.out)}
    assert set(found) == {(None, b"0"), (b"1", None), (b"2", b"2"), (b"3", b"3")}
    assert found[None, b"0"].timestamp == 1357016400000
    assert found[None, b"0"].headers == (("h", b"0"),)
    assert found[b"3", b"3"].headers == ()


def test_keys_land_where_java_puts_them(make, spark):
    copy = with_transform(make(numbers=range(400)), 'batch.selectExpr("value AS key", "value")')
    copy.run()
    java = new_topic(copy.project.bootstrap)
    rows = spark.range(400).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    rows.write.format("kafka").option("kafka.bootstrap.servers", copy.project.bootstrap).option("topic", java).mode(
        "append"
    ).save()
    ours, theirs = (committed(copy.project.bootstrap, topic) for topic in (copy.out, java))
    assert {(r.partition, r.key) for r in ours} == {(r.partition, r.key) for r in theirs}


def test_two_hundred_partitions_of_three_topics(make, broker):
    topics = [new_topic(broker, partitions) for partitions in (100, 60, 40)]
    choose = ", ".join(f"'{topic}'" for topic in topics)
    copy = with_transform(
        make(numbers=range(2000), topics=topics),
        "batch.selectExpr('value', 'value AS key', "
        f'"element_at(array({choose}), CAST(1 + offset % 3 AS INT)) AS topic")',
    )
    copy.run()
    found = committed(copy.project.bootstrap, *topics)
    assert sorted(int(record.value) for record in found) == list(range(2000))
    assert len({(record.topic, record.partition) for record in found}) > 190


def test_rows_of_900_kilobytes(make):
    copy = with_transform(
        make(numbers=range(200)), "batch.selectExpr('value AS key', \"repeat('x', 900000) AS value\")"
    )
    copy.run()
    found = committed(copy.project.bootstrap, copy.out)
    assert sorted(int(record.key) for record in found) == list(range(200))
    assert {len(record.value) for record in found} == {900000}

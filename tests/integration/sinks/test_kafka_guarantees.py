"""What the log shows and what it hides, and what is promised with less than exactly once."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from integration.faults.dying import die, fill, live, nothing_is_left
from integration.projects.copying import Copy, make_copy
from integration.projects.kafka_writers import by_each_writer
from integration.projects.late_kafka import Late
from integration.readers.kafka_reader import create_topic, ends, new_topic, until, values
from patience import PATIENCE
from person import Person

from onceonly.checkpoint.model import State
from onceonly.errors import CannotPublish, InDoubt, NotCommitted, OutcomeUnknown
from onceonly.kafka.transactions import MarkerState, Transactions
from onceonly.sinks.kafka import outcome as kafkaoutcome
from onceonly.sinks.kafka.commit import Republisher
from onceonly.sinks.kafka.outcome import TransactionFinisher, TxOutcome

pytestmark = [pytest.mark.integration, by_each_writer]
Make = Callable[..., Copy]
ALL = list(range(40))
SPREAD = """

def copies(batch):
    return batch.selectExpr("value", "CAST(CAST(CAST(value AS STRING) AS INT) DIV 4 % 4 AS INT) AS partition")
"""

both_ways = pytest.mark.parametrize("way", ["staged", "late"])


@pytest.fixture
def make(tmp_path: Path, broker: str, spark_server: str) -> Make:
    """make(way) -> a pipeline of which every transaction reaches every partition."""

    def make(way: str = "staged", **sink: Any) -> Copy:
        copy = make_copy(tmp_path, broker, spark_server, f"in_{uuid.uuid4().hex[:8]}", way, sink=sink)
        transforms = copy.project.folder / f"transforms_{copy.project.topic}.py"
        transforms.write_text(transforms.read_text() + SPREAD)
        fill(copy, range(40), 40)
        return copy

    return make


def cut_log(copy: Copy, *partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": copy.brokers})
    for done in admin.delete_records([TopicPartition(copy.out, partition, -1) for partition in partitions]).values():
        done.result(PATIENCE)


# ---- evidence


@both_ways
def test_one_partition_that_still_shows_the_end_decides(make: Make, way: str) -> None:
    copy = make(way)
    copy.stage()
    die(copy, "before published row", "commit")
    until(lambda: not copy.open())
    cut_log(copy, 0, 1, 2)
    assert copy.commit().published["copy"]["already"] is True
    assert copy.visible() == [number for number in ALL if number // 4 % 4 == 3]
    assert "in_doubt" not in copy.events()


@both_ways
def test_an_open_transaction_of_another_before_ours_hides_nothing(make: Make, way: str) -> None:
    copy = make(way)
    other = Producer({"bootstrap.servers": copy.brokers, "transactional.id": uuid.uuid4().hex})
    other.init_transactions(PATIENCE)
    other.begin_transaction()
    for partition in range(4):
        other.produce(copy.out, b"666", partition=partition)
    assert other.flush(PATIENCE) == 0
    copy.stage()
    die(copy, "before published row", "commit")
    assert copy.commit().published["copy"]["already"] is True
    assert copy.visible() == []
    other.abort_transaction(PATIENCE)
    assert copy.visible() == ALL
    nothing_is_left(copy)


def test_a_log_that_is_cut_while_we_are_open_leaves_no_doubt(make: Make) -> None:
    """What is deleted is gone; but its end lies ahead, and is seen."""
    copy = make()
    copy.stage()
    stranger = Producer({"bootstrap.servers": copy.brokers})
    for partition in range(4):
        stranger.produce(copy.out, b"666", partition=partition)
    assert stranger.flush(PATIENCE) == 0
    cut_log(copy, 0, 1, 2, 3)
    assert copy.commit().state is State.COMMITTED
    assert "in_doubt" not in copy.events()
    assert (copy.visible(), copy.open()) == ([], [])


def test_a_topic_made_anew_gets_nothing_of_what_was_staged(make: Make) -> None:
    copy = make()
    copy.stage()
    dying = copy.through
    dying._publisher._publish_sink = interrupt  # type: ignore[method-assign]  # decided, and not published
    with pytest.raises(KeyboardInterrupt):
        dying.commit("copying", 1)
    admin = AdminClient({"bootstrap.servers": copy.brokers})
    admin.delete_topics([copy.out])[copy.out].result(PATIENCE)
    until(lambda: copy.out not in admin.list_topics(timeout=PATIENCE).topics, what="the topic's end")
    create_topic(copy.brokers, copy.out)
    with raises(InDoubt, "evidence-lost", match="is not known whether"):
        copy.commit()
    assert set(ends(copy.brokers, copy.out, stable=False).values()) == {0}, "not even a marker"
    with raises(CannotPublish, "target-recreated", match="staged for another cluster or topic"):
        Person(copy.through).resolve_doubt("copying", 1, "copy", False, "ann", "a new topic is empty")
    Person(copy.through).give_up("copying", 1, "copy", "ann", "the topic is gone")
    assert (copy.visible(), copy.open()) == ([], [])


def interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("question", ["read_ends", "read_all_starts"])
def test_what_ends_while_it_is_staged_is_never_in_doubt(
    make: Make, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """A time-out, or a stranger, between the questions of which the receipt is made."""
    copy, inner, fenced = make(), getattr(Transactions, question), []

    def late(known: Transactions, *arguments: Any) -> Any:
        fenced.extend(id for id in copy.open() if not fenced)
        for id in fenced[:1]:
            known.fence(id)
        return inner(known, *arguments)

    monkeypatch.setattr(Transactions, question, late)
    try:
        copy.stage()
    except NotCommitted:
        assert question == "read_ends"
        monkeypatch.undo()
        copy.stage()
    copy.commit()
    assert copy.visible() == ALL
    nothing_is_left(copy)


def test_a_marker_that_is_long_in_coming_is_no_doubt(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = make()
    copy.stage()
    with monkeypatch.context() as slow:
        slow.setattr(
            TransactionFinisher, "_marker_states", lambda _, tx: dict.fromkeys(tx.partitions, MarkerState.NONE)
        )
        slow.setattr(kafkaoutcome, "SETTLED", 0.1)
        slow.setattr(kafkaoutcome, "PATIENCE", 0.5)
        with raises(OutcomeUnknown, "marker-missing", match="has ended, but the log") as unknown:
            copy.commit()
    assert not isinstance(unknown.value, CannotPublish)
    assert copy.events()[-1] == "committing"
    copy.commit()
    assert copy.visible() == ALL


# ---- less than exactly once


def test_at_least_once_writes_at_commit_and_perhaps_again(make: Make) -> None:
    copy = make(guarantee="at-least-once")
    copy.stage()
    assert copy.visible() == []
    die(copy, "before published row", "commit")
    assert copy.visible() == ALL
    live(copy, "recover")
    assert Counter(copy.visible()) == Counter(ALL + ALL)
    assert copy.commit().state is State.COMMITTED
    assert Counter(copy.visible()) == Counter(ALL + ALL), "recorded is recorded"
    nothing_is_left(copy)


def test_at_least_once_writes_nothing_of_an_aborted_attempt(make: Make) -> None:
    copy = make(guarantee="at-least-once")
    die(copy, "before staged row")
    copy.recover()
    assert (copy.now().state, copy.visible()) == (State.ABORTED, [])
    copy.run()
    assert copy.visible() == ALL
    nothing_is_left(copy)


def test_no_guarantee_writes_while_staging_and_takes_nothing_back(make: Make) -> None:
    copy = make(guarantee="none")
    die(copy, "before staged row")
    assert copy.visible() == ALL
    copy.recover()
    assert copy.visible() == ALL
    copy.run()
    assert Counter(copy.visible()) == Counter(ALL + ALL)
    nothing_is_left(copy)


# ---- late mode, round by round


def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where writing takes so long that a time-out has room for one round only."""
    monkeypatch.setattr(Republisher, "_has_room", lambda *_: False)


def test_what_is_too_much_for_one_time_out_is_written_round_by_round(
    tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead after the first round is recorded; the next process ends it, and writes the rest alone."""
    late = Late(tmp_path, broker, new_topic(broker, 2))
    late.stage(*([{"value": b"%d" % number}] for number in range(20)))
    slowly(monkeypatch)
    with monkeypatch.context() as dying:
        dying.setattr(TransactionFinisher, "settle", dead)
        with pytest.raises(KeyboardInterrupt):
            late.commit()
    assert (len(late.written()), len(late.open())) == (8, 8)
    first = late.written()
    outcome = late.commit()
    assert (outcome.already, outcome.detail) == (False, {"rows": 20})
    assert [len(late.written(handle)) for handle in late.recorded] == [0, 8, 16, 20]
    assert first.items() <= late.written().items(), "what was recorded is not written again"
    assert sorted(int(value or b"") for value in values(broker, late.topic)) == list(range(20))
    assert (late.open(), late.commit().already) == ([], True)


def dead(*_: Any) -> None:
    raise KeyboardInterrupt


def test_two_that_write_round_by_round_at_once_publish_once(
    tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(tmp_path, broker, new_topic(broker, 2))
    late.stage(*([{"value": b"%d" % number}] for number in range(20)))
    slowly(monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: late.commit(), range(2)))
    assert {outcome.detail["rows"] for outcome in outcomes} == {20}
    assert sorted(int(value or b"") for value in values(broker, late.topic)) == list(range(20))
    assert late.open() == []


# ---- fenced


def test_what_is_given_up_is_fenced_part_by_part(tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A committer that hangs after the first round has recorded it, and wakes up when a person has given up."""
    late = Late(tmp_path, broker, new_topic(broker, 2))
    late.stage(*([{"value": b"%d" % number}] for number in range(20)))
    slowly(monkeypatch)
    with monkeypatch.context() as hanging:
        hanging.setattr(TransactionFinisher, "settle", dead)
        with pytest.raises(KeyboardInterrupt):
            late.commit()
    for _ in range(2):
        assert late.writer.fence(late.recorded[-1], 1) is None
    assert late.open() == []
    with late.known() as known:
        parts = [part for part in late.parts() if part.tx]
        assert {TransactionFinisher(known, late.recorded[-1]["topics"]).settle(part) for part in parts} == {
            TxOutcome.LOST
        }
    assert values(broker, late.topic) == []


def test_what_was_published_after_all_is_told_instead_of_given_up(tmp_path: Path, broker: str) -> None:
    late = Late(tmp_path, broker, new_topic(broker, 2))
    late.stage([{"value": b"1"}], [{"value": b"2"}])
    late.commit()
    outcome = late.writer.fence(late.recorded[-1], 1)
    assert outcome is not None
    assert outcome.detail == {"rows": 2}
    assert sorted(values(broker, late.topic)) == [b"1", b"2"]

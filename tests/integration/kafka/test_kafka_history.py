"""Topics that lack what was published to them, on a real broker: recreated, cut off, cut off and grown again."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from integration.faults.lost_ends import killed, log_folder, lose_end, restore, silent, truncate
from integration.readers.kafka_reader import create_topic, until, values
from integration.services.own_broker import running
from patience import PATIENCE
from person import Person
from unit.lightkafka import KafkaParts, LightKafka
from unit.world import World, minutes

from onceonly.checkpoint.model import State
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.dev.services import machine
from onceonly.dev.services.kafka import KafkaBroker
from onceonly.errors import ActionNeeded, InDoubt, NotCommitted, OutcomeUnknown, StageAgain, TargetWentBack
from onceonly.kafka.admin import BrokerClient
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import DeltaSink, KafkaSink
from onceonly.pipeline.sources import KafkaSource

pytestmark = pytest.mark.integration

FIVE = [0, 1, 2, 3, 4]
LOSS = Acceptance("ann", "the disk is lost")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that may be killed."""
    with running(KafkaBroker(tmp_path_factory.mktemp("own"), machine.free_port())) as own:
        yield own


class Topics(World):
    """A pipeline that writes to a table (a fake one) and two topics, of which one is for dead letters."""

    def __init__(self, folder: Path, own: KafkaBroker, late: bool = False, mode: str = "chained") -> None:
        started = own.daemon.running()
        assert started is not None
        self.own, self.bootstrap = own, own.address(started.port)
        self.topics = {name: f"{name}-{uuid.uuid4().hex[:8]}" for name in ("late", "dead")}
        late_sink, dead_sink = (
            KafkaSink(name=name, topic=create_topic(self.bootstrap, topic, 2), bootstrap=self.bootstrap)
            for name, topic in self.topics.items()
        )
        source = KafkaSource("flights", "json", "flights.ddl", on_bad_record="dead_letter")
        sinks = [DeltaSink("lake", "lake"), late_sink]
        super().__init__(folder, mode=mode, source=source, sinks=sinks, dead_letters=dead_sink)
        self.parts = KafkaParts(folder, late)
        self.run("run-1", minutes(0, 10) if mode == "interval" else None)

    def numbers(self, sink: str) -> list[int]:
        """What a read_committed consumer finds, without what other producers have written."""
        until(lambda: not self._ending(), PATIENCE, "the end of what is being ended")
        found = values(self.bootstrap, self.topics[sink])
        return sorted(int(value) for value in found if value and value.isdigit())

    def accept_loss(self, sink: str) -> list[int]:
        """The epochs that are missing there."""
        return [publication.epoch for publication in Person(self.coordinator).accept_loss("flights", sink, LOSS)]

    def refuses(self, step: Callable[[], Any]) -> NotCommitted:
        with pytest.raises(NotCommitted) as refusal:
            step()
        assert refusal.value.code == "target-went-back", str(refusal.value)
        return refusal.value

    def live(self, sink: str) -> LightKafka:
        live: LightKafka = self.parts.sink(self.pipeline, sink)
        return live

    def _ending(self) -> list[str]:
        with Transactions({"bootstrap_servers": self.bootstrap}) as known:
            described = known.describe(known.list_open(".*"))
        return [id for id, seen in described.items() if seen.state != "Ongoing"]


@pytest.fixture(params=[False, True], ids=["staged", "late"])
def world(request: pytest.FixtureRequest, tmp_path: Path, own: KafkaBroker) -> Topics:
    return Topics(tmp_path, own, request.param)


@pytest.fixture
def staged(tmp_path: Path, own: KafkaBroker) -> Topics:
    return Topics(tmp_path, own)


# ---- what happens to a topic


def delete(world: Topics, sink: str) -> None:
    admin = AdminClient({"bootstrap.servers": world.bootstrap, "log_level": 0})
    name = world.topics[sink]
    admin.delete_topics([name])[name].result(PATIENCE)
    until(lambda: name not in admin.list_topics(timeout=PATIENCE).topics, PATIENCE, "the end of the topic")


def recreate(world: Topics, sink: str) -> None:
    delete(world, sink)
    create_topic(world.bootstrap, world.topics[sink], 2)


def cut(world: Topics, sink: str) -> None:
    lose_end(world.own, world.topics[sink], 1)


def cut_and_grow(world: Topics, sink: str) -> None:
    """The log is longer than before, by what others have written."""
    cut(world, sink)
    producer = Producer({"bootstrap.servers": world.bootstrap, "log_level": 0})
    for number in range(40):
        producer.produce(world.topics[sink], f"other {number}", partition=0)
        assert producer.flush(PATIENCE) == 0


# ---- refused


@pytest.mark.parametrize(
    ("change", "sink"),
    [
        pytest.param(delete, "dead", marks=pytest.mark.heavy),
        (recreate, "late"),
        pytest.param(cut, "dead", marks=pytest.mark.heavy),
        (cut_and_grow, "late"),
    ],
)
def test_plan_and_stage_refuse_what_went_back(staged: Topics, change: Any, sink: str) -> None:
    staged.put(10)
    staged.run("run-2")
    staged.put(11)
    staged.plan("run-3")
    change(staged, sink)
    error = staged.refuses(lambda: staged.stage(3))
    staged.refuses(lambda: staged.plan("run-3"))
    assert f"sink '{sink}'" in error.what
    assert "Missing there: epoch" in error.why
    assert f"onceonly accept-loss flights {sink}" in error.todo
    assert 11 not in staged.numbers("late" if sink == "dead" else "dead")


@pytest.mark.parametrize(
    ("change", "sink"), [(recreate, "dead"), pytest.param(cut_and_grow, "late", marks=pytest.mark.heavy)]
)
def test_rehearsal_refuses_what_went_back(world: Topics, change: Any, sink: str) -> None:
    world.put(10)
    world.plan("run-2")
    world.stage(2)
    change(world, sink)
    world.refuses(lambda: world.commit(2))
    assert world.now(2).state is State.STAGED
    assert [10 in world.numbers(topic) for topic in world.topics] == [False, False]


@pytest.mark.parametrize("change", [recreate, pytest.param(cut_and_grow, marks=pytest.mark.heavy)])
def test_commit_refuses_what_went_back(world: Topics, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens after the decision, so it is settled by giving the sink up."""
    world.put(10)
    world.plan("run-2")
    world.stage(2)
    commit = LightKafka.commit

    def changed_before(self: LightKafka, *arguments: Any) -> Any:
        if self.name == "late":
            change(world, "late")
        return commit(self, *arguments)

    monkeypatch.setattr(LightKafka, "commit", changed_before)
    with pytest.raises(TargetWentBack):
        world.commit(2)
    monkeypatch.undo()
    assert world.now(2).waiting == ("late",)
    assert 10 not in world.numbers("late")
    with pytest.raises(Exception) as refused:
        world.accept_loss("late")
    assert refused.value.code == "decision-open"  # type: ignore[attr-defined]
    Person(world.coordinator).give_up("flights", 2, "late", "ann", "the topic is another")
    assert world.accept_loss("late") == [1]
    world.put(11)
    assert world.run("run-3").state is State.COMMITTED
    assert world.numbers("late")[-1] == 11
    assert world.numbers("dead") == [*FIVE, 10, 11]


# ---- the ways out


@pytest.mark.parametrize("sink", ["late", pytest.param("dead", marks=pytest.mark.heavy)])
def test_restored_log_goes_on(staged: Topics, sink: str, tmp_path: Path) -> None:
    staged.put(10)
    staged.run("run-2")
    folder, kept = log_folder(staged.own, staged.topics[sink]), tmp_path / "kept"
    with killed(staged.own):
        shutil.copytree(folder, kept)
        truncate(folder, 1)
    staged.put(11)
    staged.refuses(lambda: staged.plan("run-3"))
    with killed(staged.own):
        restore(folder, kept)
    assert staged.run("run-3").state is State.COMMITTED
    assert [staged.numbers(topic) for topic in staged.topics] == [[*FIVE, 10, 11]] * 2


@pytest.mark.parametrize(
    ("change", "sink"),
    [
        pytest.param(delete, "late", marks=pytest.mark.heavy),
        (recreate, "dead"),
        pytest.param(cut, "late", marks=pytest.mark.heavy),
        (cut_and_grow, "dead"),
    ],
)
def test_accepted_loss_goes_on(staged: Topics, change: Any, sink: str) -> None:
    staged.put(10)
    staged.run("run-2")
    change(staged, sink)
    assert staged.accept_loss(sink) == [1, 2]
    if change is delete:
        create_topic(staged.bootstrap, staged.topics[sink], 2)
    before = staged.numbers(sink)
    staged.put(11)
    assert staged.run("run-3").state is State.COMMITTED
    assert staged.numbers(sink) == [*before, 11]
    assert staged.numbers("late" if sink == "dead" else "dead") == [*FIVE, 10, 11]
    staged.put(12)
    recreate(staged, sink)
    staged.refuses(lambda: staged.plan("run-4"))


def test_accepted_topic_is_staged_for_again(staged: Topics) -> None:
    """What was staged for the topic that is gone is not lost with it."""
    staged.put(10)
    staged.plan("run-2")
    staged.stage(2)
    recreate(staged, "late")
    staged.refuses(lambda: staged.commit(2))
    assert staged.accept_loss("late") == [1]
    with pytest.raises(StageAgain) as again:
        staged.commit(2)
    assert again.value.code == "target-recreated"
    staged.run("run-2")
    assert (staged.numbers("late"), staged.numbers("dead")) == ([10], [*FIVE, 10])


# ---- rows that were staged


@pytest.mark.parametrize("grows", [pytest.param(False, marks=pytest.mark.heavy), True])
def test_staged_rows_that_a_log_has_lost_are_written_again(staged: Topics, grows: bool) -> None:
    """What was published is still there, and the coordinator still has their transaction as open."""
    topic = TopicPartition(staged.topics["late"], 0)
    before = staged.live("late").find_current_publication(staged.state.view("flights").head.last_publications["late"])
    assert before is not None
    staged.put(10, 12, 13)
    staged.plan("run-2")
    staged.stage(2)
    lose_end(staged.own, topic.topic, before.proof["ends"][topic.topic]["0"])
    if grows:
        producer = Producer({"bootstrap.servers": staged.bootstrap, "log_level": 0})
        for number in range(40):
            producer.produce(topic.topic, f"other {number}", partition=0)
            assert producer.flush(PATIENCE) == 0
    assert staged.commit(2).state is State.COMMITTED
    assert [staged.numbers(topic) for topic in staged.topics] == [[*FIVE, 10, 12, 13]] * 2


# ---- no answer, doubt


def test_silent_broker_costs_neither_stage_nor_verdict(staged: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    staged.put(10)
    staged.plan("run-2")
    before = staged.stage(2)
    monkeypatch.setattr(BrokerClient, "timeout", 2.0)
    with silent(staged.own), pytest.raises(NotCommitted) as error:
        staged.commit(2)
    assert not isinstance(error.value, ActionNeeded | StageAgain)
    monkeypatch.undo()
    now = staged.now(2)
    assert (now.state, now.attempt, now.handles) == (State.STAGED, before.attempt, before.handles)
    assert staged.commit(2).state is State.COMMITTED
    assert staged.numbers("late") == [*FIVE, 10]


def die_before_published(monkeypatch: pytest.MonkeyPatch, sink: str) -> None:
    """The process dies when the transactions of that sink have ended."""
    commit = LightKafka.commit

    def dying(self: LightKafka, *arguments: Any) -> Any:
        done = commit(self, *arguments)
        if self.name == sink:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(LightKafka, "commit", dying)


@pytest.fixture
def intervals(tmp_path: Path, own: KafkaBroker) -> Topics:
    """Three, of which the first is committed and the others are staged."""
    world = Topics(tmp_path, own, late=True, mode="interval")
    world.put(11, 21)
    for number in (2, 3):
        world.plan(f"run-{number}", minutes(10 * number - 10, 10 * number))
        world.stage(number)
    return world


def test_rehearsal_finishes_earlier_decisions_first(intervals: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    die_before_published(monkeypatch, "late")
    with pytest.raises(KeyboardInterrupt):
        intervals.commit(2)
    monkeypatch.undo()
    assert "late" in intervals.now(2).waiting
    intervals.commit(3)
    assert intervals.now(2).published["late"]["already"] is True
    assert [intervals.now(epoch).state for epoch in (2, 3)] == [State.COMMITTED] * 2
    assert [intervals.numbers(topic) for topic in intervals.topics] == [[*FIVE, 11, 21]] * 2


def test_doubt_holds_up_its_own_sink_alone(intervals: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    die_before_published(monkeypatch, "late")
    with pytest.raises(KeyboardInterrupt):
        intervals.commit(2)
    monkeypatch.undo()
    assert intervals.numbers("late") == [*FIVE, 11]
    delete_all_records(intervals, "late")
    for epoch in (2, 3):
        with pytest.raises((InDoubt, OutcomeUnknown)):
            intervals.commit(epoch)
    assert list(intervals.now(2).in_doubt) == ["late"]
    assert [intervals.now(epoch).waiting for epoch in (2, 3)] == [("late",)] * 2
    assert intervals.numbers("dead") == [*FIVE, 11, 21]
    assert intervals.numbers("late") == []
    Person(intervals.coordinator).resolve_doubt("flights", 2, "late", True, "ann", "a consumer has seen them")
    intervals.recover()
    assert [intervals.now(epoch).state for epoch in (2, 3)] == [State.COMMITTED] * 2
    assert intervals.numbers("late") == [21]


def delete_all_records(world: Topics, sink: str) -> None:
    admin = AdminClient({"bootstrap.servers": world.bootstrap, "log_level": 0})
    everything = [TopicPartition(world.topics[sink], partition, -1) for partition in range(2)]
    for deleted in admin.delete_records(everything).values():
        deleted.result(PATIENCE)

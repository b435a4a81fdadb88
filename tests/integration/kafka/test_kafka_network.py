"""Broken lines and killed brokers: requests that do not arrive, answers that nobody hears, rows that arrive once."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from confluent_kafka import Producer
from integration.faults.dying import check_truth, die, fill, nothing_is_left
from integration.projects.copying import Copy, make_copy
from integration.readers.kafka_reader import until
from patience import PATIENCE

from onceonly.checkpoint.model import Event, State
from onceonly.dev.services.far_broker import END_TXN, INIT_PRODUCER_ID, PRODUCE, FarBroker, Proxy
from onceonly.errors import NotCommitted, OutcomeUnknown
from onceonly.kafka import admin
from onceonly.kafka.admin import BrokerClient
from onceonly.sinks.kafka import outcome, producer

pytestmark = [pytest.mark.integration]
Make = Callable[..., Copy]
FOR_EVER = 10**6

both_ways = pytest.mark.parametrize("way", ["staged", "late"])
both_sides = pytest.mark.parametrize("at", ["request", "answer"])


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, proxy: Proxy) -> Iterator[FarBroker]:
    """A broker that may be killed; reached through the proxy, too."""
    own = FarBroker(tmp_path_factory.mktemp("own"), proxy)
    try:
        own.start()
        yield own
    finally:
        own.daemon.stop()


@pytest.fixture
def make(tmp_path: Path, own: FarBroker, spark_server: str) -> Make:
    """make(way, hours, an_hour) -> a pipeline that reads the near address and writes to the far one."""

    if not own.daemon.running():  # a test that failed has left it dead
        own.start()

    def make(way: str = "staged", hours: int = 1, an_hour: int = 40, source: str = "", **sink: Any) -> Copy:
        delta = sink.pop("delta", False)
        sink = {"bootstrap": own.far, **sink}
        name = f"in_{uuid.uuid4().hex[:8]}"
        copy = make_copy(tmp_path, source or own.near, spark_server, name, way, sink=sink, delta=delta)
        copy = replace(copy, most=an_hour) if way == "staged" else replace(copy, hours=hours)
        fill(copy, range(hours * an_hour), an_hour)
        return copy

    return make


# ---- the line


@both_ways
def test_the_end_of_a_transaction_fails_three_times(make: Make, proxy: Proxy, way: str) -> None:
    copy = make(way)
    copy.stage()
    with proxy.cut({END_TXN}, "request", times=3) as cut:
        assert copy.commit().state is State.COMMITTED
    assert cut.cuts == [END_TXN] * 3
    check_truth(copy, range(40))
    nothing_is_left(copy)


@both_ways
def test_no_end_of_a_transaction_is_ever_answered(make: Make, proxy: Proxy, way: str) -> None:
    """They are carried out all the same: the log shows it."""
    copy = make(way)
    copy.stage()
    with proxy.cut({END_TXN}, "answer", times=FOR_EVER) as cut:
        assert copy.commit().state is State.COMMITTED
    assert END_TXN in cut.cuts
    check_truth(copy, range(40))
    nothing_is_left(copy)
    assert copy.events().count("replaced") == (way == "late"), "nothing was written twice"


@both_ways
@both_sides
def test_every_kind_of_request_is_lost_once(make: Make, proxy: Proxy, way: str, at: str) -> None:
    copy = make(way)
    with proxy.cut(None, at) as cut:
        staged_in_the_end(copy)
        copy.commit()
    assert END_TXN in cut.cuts
    copy.recover()
    check_truth(copy, range(40))
    nothing_is_left(copy)


def staged_in_the_end(copy: Copy) -> None:
    while True:
        try:
            copy.stage()
            return
        except NotCommitted:
            continue


def test_no_end_arrives_until_the_connection_works_again(
    make: Make, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = make()
    copy.stage()
    monkeypatch.setattr(outcome, "PATIENCE", 0.5)
    with proxy.cut({END_TXN}, "request", times=FOR_EVER), pytest.raises(OutcomeUnknown):
        copy.commit()
    assert copy.now().state is State.COMMITTING
    assert len(copy.open(("Ongoing",))) == 4
    copy.recover()
    check_truth(copy, range(40))
    assert copy.replaced() == []


# ---- the broker


def test_a_broker_is_killed_and_the_time_is_out_before_the_commit(make: Make, own: FarBroker) -> None:
    copy = make(transaction_timeout=5.0)
    staged_in_the_end(copy)
    own.kill()
    own.start()
    until(lambda: states(copy) == {"CompleteAbort"}, PATIENCE, "the broker's own abort of the transactions")
    copy.commit()
    check_truth(copy, range(40))
    nothing_is_left(copy)
    staged, replaced = (handle_of(copy, event) for event in (Event.STAGED, Event.REPLACED))
    assert ids(staged).isdisjoint(ids(replaced))
    assert dict(copy.handle()) == replaced


def states(copy: Copy) -> set[str]:
    with copy.known() as known:
        return {seen.state for seen in known.describe(ids(dict(copy.handle()))).values()}


def handle_of(copy: Copy, event: Event) -> dict[str, Any]:
    rows = [row for row in copy.through.state_table.history("copying") if row.event is event]
    assert len(rows) == 1
    body = rows[0].body
    return dict(body["handles"]["copy"] if event is Event.STAGED else body["handle"])


def ids(handle: dict[str, Any]) -> set[str]:
    return {part["tx"]["id"] for part in handle["parts"]}


@pytest.mark.heavy
def test_a_broker_is_killed_and_a_stranger_fences_two_of_four(make: Make, own: FarBroker) -> None:
    copy = make()
    copy.stage()
    own.kill()
    own.start()
    before = copy.parts()
    for part in before[:2]:
        assert part.tx is not None
        stranger = {"bootstrap.servers": own.far, "transactional.id": part.tx.id, "log_level": 0}
        Producer(stranger).init_transactions(PATIENCE)
    copy.commit()
    check_truth(copy, range(40))
    nothing_is_left(copy)
    assert [a.tx == b.tx for a, b in zip(copy.parts(), before, strict=True)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("way", "at"),
    [
        ("staged", "answer"),
        pytest.param("staged", "request", marks=pytest.mark.heavy),
        pytest.param("late", "answer", marks=pytest.mark.heavy),
    ],
)
def test_a_broker_dies_over_the_end_of_a_transaction(
    make: Make, proxy: Proxy, own: FarBroker, way: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has heard of it; or when it has answered, and perhaps not written the marker."""
    copy = make(way)
    copy.stage()
    impatient(monkeypatch)
    with proxy.cut({END_TXN}, at, instead=own.kill), pytest.raises(OutcomeUnknown):
        copy.commit()
    monkeypatch.undo()
    own.start()
    recover_as_told(copy)
    check_truth(copy, range(40))
    nothing_is_left(copy)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerClient, "timeout", 1.0)
    monkeypatch.setitem(admin.DEFAULTS, "bootstrap_timeout_ms", 1000)  # type: ignore[misc]
    monkeypatch.setattr(outcome, "PATIENCE", 0.5)
    monkeypatch.setattr(producer, "PATIENCE", 5.0)


def recover_as_told(copy: Copy) -> None:
    """A broker that restarts while a partition has no leader takes it for deleted, and its marker is never written."""
    while True:
        try:
            copy.recover()
            return
        except OutcomeUnknown as error:
            told = re.search(
                r"kafka-transactions .* abort --topic (\S+) --partition (\d+) --start-offset (\d+)", str(error)
            )
            assert told, error
            abort(copy, told[1], int(told[2]), int(told[3]))


def abort(copy: Copy, topic: str, partition: int, start: int) -> None:
    """As kafka-transactions does it."""
    from kafka import TopicPartition
    from kafka.admin import AbortTransactionSpec

    with copy.known() as known:
        admin, key = known._client.admin, TopicPartition(topic, partition)
        hanging = [
            producer
            for producer in admin.describe_producers([key])[key].active_producers
            if producer.current_transaction_start_offset == start
        ]
        for producer in hanging:
            coordinator = max(producer.coordinator_epoch, 0)
            admin.abort_transaction(
                AbortTransactionSpec(key, producer.producer_id, producer.producer_epoch, coordinator)
            )


@pytest.mark.parametrize("api", [pytest.param(INIT_PRODUCER_ID, marks=pytest.mark.heavy), PRODUCE])
def test_what_a_failed_commit_could_not_send_is_never_sent(
    make: Make, proxy: Proxy, own: FarBroker, broker: str, monkeypatch: pytest.MonkeyPatch, api: int
) -> None:
    """It would open a transaction as soon as the broker is back, behind what was published meanwhile."""
    copy = make("late", source=broker)
    copy.stage()
    impatient(monkeypatch)
    clients = list_clients()
    with proxy.cut({api}, "request", instead=own.kill), pytest.raises(OutcomeUnknown) as raised:
        copy.commit()
    until(lambda: list_clients() <= clients, PATIENCE, f"no producer held by the error: {raised.value}")
    monkeypatch.undo()
    own.start()
    copy.commit()
    check_truth(copy, range(40))
    nothing_is_left(copy)


def list_clients() -> set[str]:
    """List the main threads of librdkafka's clients in this process; one that has just ended may still be there."""
    return {thread.name for thread in Path("/proc/self/task").iterdir() if name_of(thread) == "rdk:main"}


def name_of(thread: Path) -> str:
    try:
        return (thread / "comm").read_text().strip()
    except OSError:  # it has ended meanwhile
        return ""


# ---- two sinks, two brokers


def test_delta_goes_ahead_and_kafka_follows_in_order(
    make: Make, proxy: Proxy, own: FarBroker, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker dies just after a decision; the next ones wait for it, with nothing decided."""
    copy = make("late", hours=3, source=broker, delta=True)
    epochs = [copy.stage(hour).epoch for hour in range(3)]
    impatient(monkeypatch)
    with (
        proxy.cut({INIT_PRODUCER_ID}, "request", instead=own.kill),
        raises(OutcomeUnknown, "broker-not-writable", match=own.far),
    ):
        copy.commit(epochs[0])
    for epoch in epochs[1:]:
        with pytest.raises(NotCommitted):
            copy.commit(epoch)
    assert sorted(copy.project.published("both").elements()) == list(range(40))
    assert [copy.now(epoch).state for epoch in epochs] == [State.COMMITTING, State.STAGED, State.STAGED]
    monkeypatch.undo()
    own.start()
    for epoch in epochs[1:]:
        copy.commit(epoch)
    check_truth(copy, range(120))
    nothing_is_left(copy)
    assert sorted(copy.project.published("both").elements()) == list(range(120))


@pytest.mark.parametrize(("way", "point"), [("staged", "after published row"), ("late", "after commit to Delta")])
def test_killed_between_two_sinks(make: Make, way: str, point: str) -> None:
    copy = make(way, delta=True)
    die(copy, point)
    copy.recover()
    check_truth(copy, range(40))
    nothing_is_left(copy)
    assert sorted(copy.project.published("both").elements()) == list(range(40))

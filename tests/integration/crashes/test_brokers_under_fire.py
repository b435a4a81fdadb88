"""Three brokers, and what happens to such a cluster: leaders and coordinators are killed and moved, copies are missing.

Whatever happens, every number arrives once, and nothing holds up a reader afterwards.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from integration.faults.dying import arrived, check_truth, fill, nothing_is_left
from integration.faults.holding import Held, holding
from integration.projects.copying import Copy, make_copy
from integration.projects.kafka_writers import by_each_writer
from integration.readers.kafka_reader import until
from integration.services.brokers import Brokers, brokers
from patience import PATIENCE

from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.errors import NotCommitted, OutcomeUnknown
from onceonly.kafka.transactions import Transactions
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(1800), by_each_writer]
Make = Callable[..., Copy]
Aside = Callable[[Callable[[], Checkpoint]], Future[Checkpoint]]
NUMBERS = range(2_000)
both_ways = pytest.mark.parametrize("way", ["staged", "late"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from brokers(tmp_path_factory.mktemp("brokers"))


@pytest.fixture
def three(cluster: Brokers) -> Brokers:
    """All of them run when a test begins."""
    cluster.start()
    return cluster


@pytest.fixture
def make(tmp_path: Path, three: Brokers, broker: str, spark_server: str) -> Make:
    """make(way, …) → a pipeline from the suite's own broker into a topic with three copies."""

    def make(way: str = "staged", **topic: Any) -> Copy:
        out = three.topic(f"out-{uuid.uuid4().hex[:8]}", **topic)
        name = f"in_{uuid.uuid4().hex[:8]}"
        copy = make_copy(tmp_path, broker, spark_server, name, way, out=out, sink={"bootstrap": three.bootstrap})
        fill(copy, NUMBERS, len(NUMBERS))
        return copy

    return make


@pytest.fixture
def aside() -> Iterator[Aside]:
    """Runs a step while the test goes on."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


def amid(copy: Copy, held: Held) -> None:
    """As many tasks as run at once wait, and each holds a transaction with rows that the brokers have."""
    some = len(held.wait(min(4, os.cpu_count() or 1)))
    until(lambda: len(copy.open(("Ongoing",))) >= some, PATIENCE, "their open transactions")


def staged_in_the_end(copy: Copy, first: Future[Checkpoint]) -> int:
    """As Airflow does: a stage that has failed is tried again. Returns how often it failed."""
    failed, running = 0, first.result
    while True:
        try:
            running()
            return failed
        except NotCommitted as error:
            print(error)
            failed, running = failed + 1, copy.stage


def all_is_well(copy: Copy, three: Brokers) -> None:
    three.start()
    copy.recover()
    assert copy.now().state is State.COMMITTED
    check_truth(copy, NUMBERS)
    nothing_is_left(copy)
    assert three.open() == []


# ---- before


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, ""),
        ({"min_insync_replicas": "1"}, "one replica is enough (min.insync.replicas=1)"),
        ({"unclean_leader_election_enable": "true"}, "may become its leader"),
    ],
)
def test_a_topic_that_one_broker_may_lose_rows_of_is_noted(make: Make, settings: dict[str, str], told: str) -> None:
    copy = make(**settings)
    notes = "; ".join(copy.project.parts.sink(copy.pipeline, "copy").check())
    assert told in notes
    assert ("may lose acknowledged records" in notes) == bool(told)


# ---- amid a stage


def test_the_leader_is_killed_amid_a_stage(make: Make, three: Brokers, tmp_path: Path, aside: Aside) -> None:
    copy = make()
    with holding(tmp_path / "held") as held:
        staging = aside(copy.stage)
        amid(copy, held)
        three.kill(most_often(three.leaders(copy.out)))
        held.release()
        staged_in_the_end(copy, staging)
    assert arrived(copy) == {}
    copy.commit()
    all_is_well(copy, three)


def most_often(leaders: dict[int, int]) -> int:
    return Counter(leaders.values()).most_common(1)[0][0]


def test_the_coordinators_are_killed_amid_a_stage(make: Make, three: Brokers, tmp_path: Path, aside: Aside) -> None:
    """One after the other, each as soon as the one before is back."""
    copy = make()
    with holding(tmp_path / "held") as held:
        staging = aside(copy.stage)
        amid(copy, held)
        for node in {three.coordinator(id) for id in copy.open(("Ongoing",))}:
            three.kill(node)
            three.start(node)
        held.release()
        staged_in_the_end(copy, staging)
    copy.commit()
    all_is_well(copy, three)


def test_leaders_move_amid_a_stage_and_before_the_commit(
    make: Make, three: Brokers, tmp_path: Path, aside: Aside
) -> None:
    """That is no fault: nothing is tried again, and nothing is written twice."""
    copy = make()
    with holding(tmp_path / "held") as held:
        staging = aside(copy.stage)
        amid(copy, held)
        three.move_leaders(copy.out)
        held.release()
        assert staging.result().attempt == 1
    three.move_leaders(copy.out)
    copy.commit()
    all_is_well(copy, three)
    assert copy.replaced() == []


# ---- amid a commit


@both_ways
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_coordinator_is_killed_over_the_end_of_a_transaction(
    make: Make, three: Brokers, way: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has heard of it; or when it has answered, and perhaps not written the markers."""
    copy = make(way)
    copy.stage()
    met = at_the_first_end(monkeypatch, when, lambda id: three.kill(three.coordinator(id)))
    committed_or_unknown(copy)
    assert met
    monkeypatch.undo()
    all_is_well(copy, three)


@both_ways
def test_the_leader_is_killed_over_the_end_of_a_transaction(
    make: Make, three: Brokers, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = make(way)
    copy.stage()
    met = at_the_first_end(monkeypatch, "after", lambda _: three.kill(most_often(three.leaders(copy.out))))
    committed_or_unknown(copy)
    assert met
    monkeypatch.undo()
    all_is_well(copy, three)


def at_the_first_end(monkeypatch: pytest.MonkeyPatch, when: str, fault: Callable[[str], object]) -> list[str]:
    """The fault hits once, around the first EndTxn. Returns the list of the ids that it has met."""
    inner, met = Transactions.end, list[str]()

    def end(known: Transactions, id: str, *arguments: Any, **more: Any) -> None:
        mine = not met
        met.extend([id] if mine else [])
        if mine and when == "before":
            fault(id)
        inner(known, id, *arguments, **more)
        if mine and when == "after":
            fault(id)

    monkeypatch.setattr(Transactions, "end", end)
    return met


def committed_or_unknown(copy: Copy) -> str:
    """A commit ends, or says that it does not know. Returns what it said."""
    try:
        assert copy.commit().state is State.COMMITTED
        return ""
    except OutcomeUnknown as error:
        assert copy.now().state is State.COMMITTING
        print(error)
        return str(error)


# ---- too few


@both_ways
def test_two_of_three_are_down_before_a_commit(make: Make, three: Brokers, way: str) -> None:
    """Neither the coordinators nor the partitions have a majority: nothing is decided."""
    copy = make(way)
    copy.stage()
    three.kill(1, 2)
    with raises(NotCommitted, "no-answer"):
        copy.commit()
    assert copy.now().state is State.STAGED
    three.start()
    copy.commit()
    all_is_well(copy, three)


@both_ways
def test_two_of_three_are_down_over_a_commit(
    make: Make, three: Brokers, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They die when it is decided. What happened is not known, and nothing is lost."""
    copy = make(way)
    copy.stage()
    append = StateTable.append

    def decide(table: StateTable, view: View, row: Row) -> View:
        after = append(table, view, row)
        if row.event is Event.COMMITTING:
            three.kill(1, 2)
        return after

    monkeypatch.setattr(StateTable, "append", decide)
    with raises(OutcomeUnknown, "kafka-unreachable"):
        copy.commit()
    monkeypatch.undo()
    assert copy.now().state is State.COMMITTING
    assert copy.now().waiting == ("copy",)
    all_is_well(copy, three)


def test_too_few_copies_for_the_markers_of_a_commit(make: Make, three: Brokers) -> None:
    """The leaders stay, and know how far their logs are replicated: it is decided, and nothing can be written."""
    copy = make(led_by=(2, 3), min_insync_replicas="3")
    copy.stage()
    three.kill(1)
    told = committed_or_unknown(copy)
    assert "min.insync.replicas" in told
    assert copy.now().waiting == ("copy",)
    all_is_well(copy, three)
    assert copy.replaced() == []


def test_too_few_copies_for_new_leaders_to_know_the_ends_of_their_logs(make: Make, three: Brokers) -> None:
    """A leader that was not told in time knows it only when all copies are back, and nothing is decided until then.

    One that was told lets it be decided, and cannot write the markers.
    """
    copy = make(led_by=(1,), min_insync_replicas="3")
    copy.stage()
    three.kill(1)
    told = committed_or_not_decided(copy)
    assert "min.insync.replicas" in told
    all_is_well(copy, three)
    assert copy.replaced() == []


def committed_or_not_decided(copy: Copy) -> str:
    """A commit ends, says that it does not know, or decides nothing. Returns what it said."""
    try:
        return committed_or_unknown(copy)
    except NotCommitted as error:
        assert error.code == "no-answer"
        assert copy.now().state is State.STAGED
        print(error)
        return str(error)


def test_too_few_copies_for_rows(make: Make, three: Brokers) -> None:
    copy = make("late", min_insync_replicas="3")
    copy.stage()
    three.kill(1)
    told = committed_or_unknown(copy)
    assert "min.insync.replicas" in told
    assert copy.now().waiting == ("copy",)
    all_is_well(copy, three)

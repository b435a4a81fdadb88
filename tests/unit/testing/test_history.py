"""The checker of histories: it finds each anomaly that is seeded, by its name, and none in a healthy history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from unit.testing.simulated_history import TABLE, TOPIC, Simulation

from onceonly.testing.history import (
    ANOMALIES,
    Batch,
    Fate,
    History,
    Read,
    Record,
    Send,
    Target,
    find_anomalies,
)
from onceonly.testing.history.__main__ import main


@given(st.integers(0, 2**32), st.integers(0, 60))
@example(0, 60)
def test_a_healthy_history_has_no_anomaly(seed: int, steps: int) -> None:
    assert find_anomalies(Simulation(Random(seed)).run(steps)) == []


@given(st.integers(0, 2**32), st.sampled_from(["lost", "doubled", "stranger"]))
def test_one_row_less_or_more_is_found_in_any_history(seed: int, damage: str) -> None:
    history = Simulation(Random(seed)).run(40)
    last = next(read for read in reversed(history.reads) if read.target == TABLE and read.is_final)
    acknowledged = {send.value for send in history.sends if send.fate is Fate.OK}
    places = [place for place, record in enumerate(last.records) if record.value in acknowledged]
    if not places:
        return
    records = list(last.records)
    if damage == "lost":
        del records[places[0]]
    elif damage == "doubled":
        records.append(records[places[0]])
    else:
        records.append(Record("nobody's"))
    history.reads[history.reads.index(last)] = replace(last, records=tuple(records))
    names = {anomaly.name for anomaly in find_anomalies(history)}
    assert names & {"lost": {"lost-write", "unseen"}, "doubled": {"duplicate"}, "stranger": {"unexpected"}}[damage]


# ---- each anomaly by its name


def make_history() -> History:
    """Six values of one partition in two batches, that one reader polls from a log and another reads in a table."""
    history = History(targets=[Target(TOPIC, is_ordered=True), Target(TABLE, is_atomic=True)])
    history.sends += [Send(value, 0, value, topic="numbers") for value in range(6)]
    for name, values, until in (("epoch 1", {0, 1, 2}, 1.0), ("epoch 2", {3, 4, 5}, 5.0)):
        history.batches += [Batch(target, name, frozenset(values), Fate.OK, until) for target in (TOPIC, TABLE)]
    add_poll(history, [0, 1, 2], 2.0)
    add_table(history, [0, 1, 2], 2.0)
    add_poll(history, [3, 4, 5], 6.0, is_final=True)
    add_table(history, [0, 1, 2, 3, 4, 5], 6.0, is_final=True)
    return history


def add_poll(history: History, values: list[int], at: float, is_final: bool = False) -> None:
    """Each value lies at the offset of its number."""
    records = tuple(Record(value, 0, value) for value in values)
    history.reads.append(Read(TOPIC, "ann", records, at, at, is_final=is_final))


def add_table(history: History, values: list[int], at: float, is_final: bool = False) -> None:
    records = tuple(map(Record, values))
    history.reads.append(Read(TABLE, "bob", records, at, at, is_whole=True, is_final=is_final))


def set_records(history: History, read: int, *records: Record) -> None:
    history.reads[read] = replace(history.reads[read], records=records)


def at(*values: int, partition: int = 0) -> list[Record]:
    return [Record(value, partition, value) for value in values]


FIRST_POLL, FIRST_TABLE, LAST_POLL, LAST_TABLE = range(4)


def lose_a_value(history: History) -> None:
    set_records(history, LAST_POLL, *at(3, 5))


def lose_what_was_there(history: History) -> None:
    set_records(history, LAST_TABLE, *map(Record, [0, 2, 3, 4, 5]))


def lose_the_end(history: History) -> None:
    set_records(history, LAST_POLL, *at(3, 4))


def double_in_the_log(history: History) -> None:
    set_records(history, LAST_POLL, *at(3, 4, 5), Record(3, 0, 6))


def double_in_the_table(history: History) -> None:
    set_records(history, LAST_TABLE, *map(Record, [0, 1, 2, 3, 4, 4, 5]))


def show_a_stranger(history: History) -> None:
    set_records(history, LAST_TABLE, *map(Record, [0, 1, 2, 3, 4, 5, 99]))


def show_what_a_producer_aborted(history: History) -> None:
    history.sends[4] = replace(history.sends[4], fate=Fate.FAIL)


def show_an_aborted_attempt(history: History) -> None:
    history.batches.append(Batch(TABLE, "epoch 2, attempt 1", frozenset({3, 4, 5}), Fate.FAIL))
    records = (Record(value, batch=f"epoch {1 + value // 3}") for value in (0, 1, 2, 4, 5))
    set_records(history, LAST_TABLE, *records, Record(3, batch="epoch 2, attempt 1"))


def show_a_part_of_a_batch(history: History) -> None:
    add_table(history, [0, 1, 2, 3], 5.5)


def show_staged_rows(history: History) -> None:
    add_table(history, [0, 1, 2, 3, 4, 5], 4.0)


def show_what_was_never_decided(history: History) -> None:
    history.batches[:] = [batch for batch in history.batches if batch.name != "epoch 2"]


def change_a_value(history: History) -> None:
    history.reads.append(Read(TOPIC, "eve", (Record(5, 0, 4),), 7.0, 7.0))


def skip_in_a_poll(history: History) -> None:
    history.reads.append(Read(TOPIC, "eve", tuple(at(0, 2)), 7.0, 7.0))


def skip_between_polls(history: History) -> None:
    history.reads.append(Read(TOPIC, "eve", tuple(at(0)), 7.0, 7.0))
    history.reads.append(Read(TOPIC, "eve", tuple(at(2)), 8.0, 8.0))


def go_back_in_a_poll(history: History) -> None:
    history.reads.append(Read(TOPIC, "eve", tuple(at(2, 1)), 7.0, 7.0))


def go_back_between_polls(history: History) -> None:
    history.reads.append(Read(TOPIC, "eve", tuple(at(2)), 7.0, 7.0))
    history.reads.append(Read(TOPIC, "eve", tuple(at(1)), 8.0, 8.0))


def reorder_within_a_batch(history: History) -> None:
    set_records(history, LAST_POLL, Record(3, 0, 3), Record(5, 0, 4), Record(4, 0, 5))


def reorder_batches(history: History) -> None:
    set_records(history, FIRST_POLL, Record(3, 0, 0), Record(4, 0, 1), Record(5, 0, 2))
    set_records(history, LAST_POLL, Record(0, 0, 3), Record(1, 0, 4), Record(2, 0, 5))


SEEDED: list[tuple[str, str, Callable[[History], None]]] = [
    ("lost-write", TOPIC, lose_a_value),
    ("lost-write", TABLE, lose_what_was_there),
    ("unseen", TOPIC, lose_the_end),
    ("duplicate", TOPIC, double_in_the_log),
    ("duplicate", TABLE, double_in_the_table),
    ("unexpected", TABLE, show_a_stranger),
    ("G1a", TABLE, show_what_a_producer_aborted),
    ("G1a", TABLE, show_an_aborted_attempt),
    ("G1b", TABLE, show_a_part_of_a_batch),
    ("precommitted-read", TABLE, show_staged_rows),
    ("precommitted-read", TABLE, show_what_was_never_decided),
    ("inconsistent-offsets", TOPIC, change_a_value),
    ("int-poll-skip", TOPIC, skip_in_a_poll),
    ("poll-skip", TOPIC, skip_between_polls),
    ("int-nonmonotonic-poll", TOPIC, go_back_in_a_poll),
    ("nonmonotonic-poll", TOPIC, go_back_between_polls),
    ("int-nonmonotonic-send", TOPIC, reorder_within_a_batch),
    ("nonmonotonic-send", TOPIC, reorder_batches),
]


def test_the_history_without_a_seed_is_healthy() -> None:
    assert find_anomalies(make_history()) == []


def test_each_anomaly_is_seeded() -> None:
    assert {name for name, _, _ in SEEDED} == set(ANOMALIES)


@pytest.mark.parametrize(("name", "target", "damage"), SEEDED, ids=[seed[2].__name__ for seed in SEEDED])
def test_a_seeded_anomaly_is_found(name: str, target: str, damage: Callable[[History], None], tmp_path: Path) -> None:
    history = make_history()
    damage(history)
    anomalies = find_anomalies(history)
    assert name in {anomaly.name for anomaly in anomalies if anomaly.target == target}
    history.write(tmp_path / "history.jsonl")
    assert find_anomalies(History.load(tmp_path / "history.jsonl")) == anomalies


# ---- what is no anomaly


def test_what_a_person_gave_up_may_be_missing() -> None:
    history = make_history()
    lose_what_was_there(history)
    history.targets[1] = replace(history.targets[1], fates={1: Fate.INFO})
    assert find_anomalies(history) == []


def test_what_a_person_gave_up_must_not_come_back() -> None:
    history = make_history()
    history.targets[1] = replace(history.targets[1], fates={1: Fate.FAIL})
    assert {anomaly.name for anomaly in find_anomalies(history)} == {"G1a"}


def test_a_send_without_an_answer_may_be_there_or_not() -> None:
    history = make_history()
    history.sends += [Send(6, fate=Fate.INFO), Send(7, fate=Fate.INFO)]
    set_records(history, LAST_TABLE, *map(Record, range(7)))
    history.batches.append(Batch(TABLE, "epoch 3", frozenset({6})))
    assert find_anomalies(history) == []


def test_a_value_that_was_sent_twice_is_refused() -> None:
    history = make_history()
    history.sends.append(Send(3))
    with pytest.raises(ValueError, match="sent once"):
        find_anomalies(history)


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = make_history()
    history.write(tmp_path / "history.jsonl")
    assert main(str(tmp_path / "history.jsonl")) == 0
    lose_a_value(history)
    history.write(tmp_path / "history.jsonl")
    assert main(str(tmp_path / "history.jsonl")) == 1
    assert "lost-write in copy: 4: ann does not find them in the end" in capsys.readouterr().out

"""What the markers of a transaction's partitions say together, and what is not decided by them yet."""

from __future__ import annotations

from typing import Any

import pytest
from codes import raises
from unit.kafka_log import ABORTED, COMMITTED, LOG_ENDS, NONE, UNKNOWN, Log, Writer, handle, part

from onceonly.errors import CannotPublish, NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.kafka import markers
from onceonly.kafka.log_ends import LogComparison, Replacement
from onceonly.sinks.kafka import open_transactions
from onceonly.sinks.kafka import outcome as kafkaoutcome
from onceonly.sinks.kafka.handle import LogEnd, Part, Resolution
from onceonly.sinks.kafka.outcome import TransactionFinisher, TxOutcome


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafkaoutcome, "SETTLED", 0.05)
    monkeypatch.setattr(kafkaoutcome, "PATIENCE", 0.0)
    monkeypatch.setattr(markers, "MISSING_SECONDS", 0.0)


def settle(log: Any, tx: Part | None = None) -> TxOutcome:
    return TransactionFinisher(log, {"t": "id"}).settle(tx or part())


def test_it_is_published_once_every_partition_shows_it():
    log = Log((COMMITTED, NONE), (COMMITTED, NONE), (COMMITTED, COMMITTED))
    assert settle(log) is TxOutcome.ALREADY_COMMITTED
    assert "commit" not in log.done
    assert settle(Log((NONE, NONE), (COMMITTED, NONE), (COMMITTED, COMMITTED))) is TxOutcome.COMMITTED


@pytest.mark.parametrize("looks", [((COMMITTED, NONE),), ((NONE, NONE), (NONE, COMMITTED))])
def test_while_one_partition_lacks_its_marker_the_outcome_is_not_known(looks):
    with pytest.raises(OutcomeUnknown) as error:
        settle(Log(*looks))
    assert not isinstance(error.value, CannotPublish)
    missing = 1 if looks[-1][1] is NONE else 0
    assert f"the log of t-{missing} does not show how" in error.value.what
    assert "Other partitions show that it was committed" in error.value.why
    assert "Publish again: onceonly recover" in error.value.todo
    assert "Do not abort it by hand" in error.value.todo
    assert "kafka-transactions" not in error.value.todo


def test_a_transaction_without_any_marker_may_be_aborted_by_hand():
    with pytest.raises(OutcomeUnknown) as error:
        settle(Log((NONE, NONE)))
    for number in (0, 1):
        assert f"abort --topic t --partition {number} --start-offset 17" in error.value.todo


def test_beside_a_log_that_is_gone_nothing_is_aborted_by_hand():
    with pytest.raises(OutcomeUnknown) as error:
        settle(Log((UNKNOWN, NONE)))
    assert "kafka-transactions" not in error.value.todo


@pytest.mark.parametrize("looks", [((COMMITTED, UNKNOWN),), ((UNKNOWN, NONE), (UNKNOWN, COMMITTED))])
def test_a_partition_whose_log_is_gone_is_not_waited_for(looks):
    assert settle(Log(*looks)) in (TxOutcome.COMMITTED, TxOutcome.ALREADY_COMMITTED)


@pytest.mark.parametrize("second", [NONE, UNKNOWN, ABORTED])
def test_an_abort_marker_anywhere_means_that_it_was_lost(second):
    assert settle(Log((ABORTED, second))) is TxOutcome.LOST


def test_it_is_fenced_before_it_counts_as_lost_where_a_partition_does_not_show_it():
    """Ended by hand in the other partition, it is still open for its coordinator, and a committer that hangs."""
    log = Log((ABORTED, NONE), (ABORTED, ABORTED))
    assert settle(log) is TxOutcome.LOST
    assert log.done == ["look", "fence", "look"]
    assert settle(Log((ABORTED, NONE), (ABORTED, COMMITTED))) is TxOutcome.DOUBT, "its commit had begun"


@pytest.mark.parametrize("seen", [(COMMITTED, ABORTED), (UNKNOWN, UNKNOWN)])
def test_what_is_contradicted_or_gone_is_in_doubt(seen):
    log = Log(seen)
    assert settle(log) is TxOutcome.DOUBT
    assert "commit" not in log.done


# ---- rows that the log has lost


def settle_with_ends(log: Log) -> TxOutcome:
    return TransactionFinisher(log, {"t": "id"}, [*map(LogEnd.from_json, LOG_ENDS)]).settle(part())  # type: ignore[arg-type]


def test_rows_that_are_there_are_committed() -> None:
    log = Log((NONE, NONE), (COMMITTED, COMMITTED))
    assert settle_with_ends(log) is TxOutcome.COMMITTED
    assert log.done == ["look", "compare", "commit", "look"]


@pytest.mark.parametrize("is_shorter", [True, False])
def test_rows_that_the_log_has_lost_are_not_committed(is_shorter: bool) -> None:
    """Its coordinator has it as open: what is left of it is aborted, and all of it written again."""
    log = Log((NONE, NONE), (ABORTED, ABORTED))
    if is_shorter:
        log.end_offsets["t", 1] = 0
    else:
        log.comparison = LogComparison({1: Replacement(None, 0)}, ())
    assert settle_with_ends(log) is TxOutcome.LOST
    assert "fence" in log.done
    assert "commit" not in log.done


def test_published_rows_need_no_comparison() -> None:
    """What a reader has seen cannot be taken back."""
    log = Log((COMMITTED, COMMITTED))
    log.end_offsets["t", 1] = 0
    assert settle_with_ends(log) is TxOutcome.ALREADY_COMMITTED
    assert "fence" not in log.done


def test_removed_rows_of_an_open_transaction_are_no_lost_end() -> None:
    log = Log((UNKNOWN, NONE), (COMMITTED, COMMITTED))
    log.comparison = LogComparison({}, (0, 1))
    assert settle_with_ends(log) is TxOutcome.COMMITTED


def test_other_topic_of_that_name_is_not_compared() -> None:
    log = Log((NONE, NONE), (COMMITTED, COMMITTED))
    log.topics = {"t": "another"}
    settle_with_ends(log)
    assert "compare" not in log.done


def test_each_end_of_a_log_is_compared() -> None:
    """What was written again has other ends than what was staged."""
    log_ends = [LogEnd.from_json(log_end) for log_end in [*LOG_ENDS, ["t", 0, 5, 4, 3, 79]]]
    log = Log((NONE, NONE))
    log.comparison = LogComparison({0: Replacement(None, None)}, ())
    assert open_transactions.find_cut_logs(log, {"t": "id"}, log_ends) == {(("t", 0), 1), (("t", 0), 5)}  # type: ignore[arg-type]
    assert log.done == ["compare", "compare"]


# ---- fenced: what a person gives up


def test_it_is_looked_at_only_after_it_was_fenced():
    log = Log((NONE, NONE), (ABORTED, ABORTED))
    assert Writer(log).fence(handle(part()), 1) is None
    assert log.done[0] == "fence"
    assert log.done.count("fence") == 1


def test_what_was_published_before_the_fence_is_told():
    outcome = Writer(Log((COMMITTED, COMMITTED))).fence(handle(part(), part()), 1)
    assert outcome is not None
    assert (outcome.already, outcome.detail) == (True, {"rows": 4})


def test_where_a_part_never_will_be_it_is_not_published():
    other = Part("1-spool.parquet", 2, None)
    assert Writer(Log((COMMITTED, COMMITTED))).fence(handle(part(), other), 1) is None


@pytest.mark.parametrize("committed", [True, False])
def test_resolution_counts_where_the_log_shows_nothing(committed: bool):
    resolved = part(resolution=Resolution(committed, "person"))
    outcome = TxOutcome.ALREADY_COMMITTED if committed else TxOutcome.LOST
    assert settle(Log((UNKNOWN, UNKNOWN)), resolved) is outcome
    assert (Writer(Log((UNKNOWN, UNKNOWN))).fence(handle(resolved), 1) is not None) is committed


@pytest.mark.parametrize("committed", [True, False])
def test_resolution_never_contradicts_the_log(committed: bool):
    resolved = part(resolution=Resolution(committed, "person"))
    assert settle(Log((COMMITTED, COMMITTED)), resolved) is TxOutcome.ALREADY_COMMITTED
    assert settle(Log((ABORTED, ABORTED)), resolved) is TxOutcome.LOST


def test_a_pooled_id_may_be_in_other_hands_and_is_not_fenced():
    log = Log((COMMITTED, COMMITTED))
    pooled = part("onceonly-0123456789ab-flights-late-pool-3-0")
    assert Writer(log).fence(handle(pooled), 1) is not None
    assert log.done == ["withdraw", "look"]


def test_brokers_that_do_not_answer_leave_it_open():
    class Silent(Log):
        def fence(self, id: str) -> None:
            raise NotCommitted(
                "the Kafka broker did not answer.", "Silence.", "This is safe to retry.", code="test-silent"
            )

    with raises(OutcomeUnknown, "test-silent", match="did not answer"):
        Writer(Silent((NONE, NONE))).fence(handle(part()), 1)


def test_an_end_that_does_not_show_yet_leaves_it_open():
    with raises(OutcomeUnknown, "marker-missing"):
        Writer(Log((COMMITTED, NONE))).fence(handle(part()), 1)


def test_without_transactions_there_is_nothing_to_fence():
    assert Writer(Log(), "at-least-once").fence(handle(part(), guarantee="at-least-once"), 1) is None
    written = Writer(Log(), "none").fence(handle(part(), guarantee="none"), 1)
    assert written is not None
    assert written.already


# ---- what an error says


class Short(Log):
    def list_refusing_partitions(self, topics: list[str]) -> list[str]:
        return [f"'{name}' partition 1 has 1 of 3 replicas in sync, and min.insync.replicas is 2" for name in topics]


class Silent(Log):
    def list_refusing_partitions(self, topics: list[str]) -> list[str]:
        raise NotCommitted("the Kafka broker did not answer.")


@pytest.mark.parametrize("kind", [NotCommitted, OutcomeUnknown])
def test_an_error_names_the_partitions_that_accept_nothing(kind: type[OnceonlyError]) -> None:
    with pytest.raises(kind, match="The brokers write nothing there now: 't' partition 1 has 1 of 3"):
        raised(Short(), kind("what", "2 rows not acknowledged.", "todo"))


def test_brokers_that_say_nothing_about_it_change_no_error() -> None:
    error = NotCommitted("what", "why", "todo", code="test-not-written")
    with raises(NotCommitted, "test-not-written", match=r"^what \[test-not-written\]\nwhy\ntodo$"):
        raised(Silent(), error)


def test_an_error_of_another_kind_is_left_as_it_is() -> None:
    error = CannotPublish("what", "why", "todo", code="test-refused")
    with raises(CannotPublish, "test-refused", match=r"^what \[test-refused\]\nwhy\ntodo$"):
        raised(Short(), error)


def raised(log: Log, error: OnceonlyError) -> None:
    with Writer(log)._explain_refusals(log):  # type: ignore[arg-type]
        raise error

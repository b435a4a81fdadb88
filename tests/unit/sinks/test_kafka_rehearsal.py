"""What a Kafka sink's rehearsal says before the decision, and how topics compare with what was published to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from codes import raises
from unit.kafka_log import ABORTED, COMMITTED, ID, LOG_ENDS, NONE, TXN, UNKNOWN, Log, Writer, handle, part

from onceonly.checkpoint.sink import REFUSALS, Answer, Publication
from onceonly.errors import ActionNeeded, InvalidPipeline, NotCommitted, OnceonlyError, StageAgain, TargetWentBack
from onceonly.kafka import markers
from onceonly.kafka.log_ends import Batch, LogComparison, Replacement
from onceonly.kafka.transactions import Described, MarkerState
from onceonly.sinks.kafka import outcome as kafkaoutcome
from onceonly.sinks.kafka import spool as kafkaspool
from onceonly.sinks.kafka.handle import Part, Resolution
from onceonly.sinks.kafka.spool import SPOOL_SCHEMA, SpoolFile

OPEN = Described("Ongoing", 1, 0, 60.0, None, frozenset())
Look = tuple[MarkerState, MarkerState]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafkaoutcome, "SETTLED", 0.05)
    monkeypatch.setattr(markers, "MISSING_SECONDS", 0.0)


def spooled(folder: Path, value: bytes = b"value", rows: int = 2) -> Part:
    """A part with its file, which has two rows unless told otherwise."""
    file = SpoolFile(str(folder / TXN), 0)
    columns = {"topic": "t", "partition": None, "key": b"key", "value": value, "timestamp": None, "headers": []}
    file.write(pa.RecordBatch.from_pylist([columns] * rows, SPOOL_SCHEMA))
    file.close()
    return Part(file.name, 2)


def staged(folder: Path, value: bytes = b"value") -> Part:
    """As `spooled`, in a transaction as well."""
    return replace(spooled(folder, value), tx=part().tx)


def last(**proof: Any) -> Publication:
    plain = {
        "target": "cluster/t",
        "bootstrap": "nowhere:1",
        "topics": {"t": "id"},
        "ends": {"t": {"0": 9, "1": 9}},
        "batches": {},
    }
    return Publication(1, 1, {**plain, **proof})


def code_of(log: Log, *parts: Part, folder: Path, kind: Any, before: Publication | None = None) -> str:
    with pytest.raises(kind) as error:
        Writer(log, spool=folder).rehearse(handle(*parts), 2, before)
    return str(error.value.code)


class Untouched(Log):
    """Whoever ends, fences or opens anything fails the test."""

    def end(self, *_: Any, commit: bool) -> None:
        raise AssertionError("a rehearsal ends nothing")

    def fence(self, id: str) -> None:
        raise AssertionError("a rehearsal fences nothing")

    def withdraw(self, *_: Any) -> None:
        raise AssertionError("a rehearsal aborts nothing")


# ---- transactions


def test_open_transaction_passes(tmp_path: Path) -> None:
    log = Untouched((NONE, NONE))
    log.described = {ID: OPEN}
    assert Writer(log, spool=tmp_path).rehearse(handle(part()), 1) == handle(part())


def test_open_transaction_passes_although_its_log_is_gone(tmp_path: Path) -> None:
    log = Untouched((UNKNOWN, UNKNOWN))
    log.described = {ID: OPEN}
    Writer(log, spool=tmp_path).rehearse(handle(part()), 1)


@pytest.mark.parametrize("look", [(COMMITTED, COMMITTED), (COMMITTED, NONE), (COMMITTED, UNKNOWN)])
def test_committed_transaction_passes(tmp_path: Path, look: Look) -> None:
    """A state table that went back finds it published, and needs no spool."""
    Writer(Untouched(look), spool=tmp_path).rehearse(handle(part()), 1)


@pytest.mark.parametrize("look", [(ABORTED, ABORTED), (ABORTED, NONE), (UNKNOWN, ABORTED)])
def test_lost_transaction_passes_with_its_spool(tmp_path: Path, look: Look) -> None:
    Writer(Untouched(look), spool=tmp_path).rehearse(handle(staged(tmp_path)), 1)
    assert code_of(Untouched(look), part(), folder=tmp_path, kind=StageAgain) == "spool-missing"


def test_open_transaction_without_its_rows_needs_its_spool(tmp_path: Path) -> None:
    log = Untouched((NONE, NONE))
    log.described, log.comparison = {ID: OPEN}, LogComparison({0: Replacement(None, 0)}, ())
    Writer(log, spool=tmp_path).rehearse({**handle(staged(tmp_path)), "log_ends": LOG_ENDS}, 1)
    with pytest.raises(StageAgain) as again:
        Writer(log, spool=tmp_path).rehearse({**handle(part()), "log_ends": LOG_ENDS}, 1)
    assert again.value.code == "spool-missing"


@pytest.mark.parametrize("look", [(UNKNOWN, UNKNOWN), (COMMITTED, ABORTED)])
def test_doubt_waits_for_a_person(tmp_path: Path, look: Look) -> None:
    """Staged again, its rows might be there twice."""
    code = code_of(Untouched(look), staged(tmp_path), folder=tmp_path, kind=ActionNeeded)
    assert code == "doubt-before-decision"


def test_resolved_doubt_passes(tmp_path: Path) -> None:
    resolved = part(resolution=Resolution(True, "person"))
    Writer(Untouched((UNKNOWN, UNKNOWN)), spool=tmp_path).rehearse(handle(resolved), 1)


@pytest.mark.parametrize("state", ["PrepareCommit", "CompleteCommit", "CompleteAbort"])
def test_ended_transaction_without_a_marker_is_no_answer(tmp_path: Path, state: str) -> None:
    """Its commit may be on its way to the log: to stage it again might publish it twice."""
    log = Untouched((NONE, NONE))
    log.described = {ID: replace(OPEN, state=state)}
    with pytest.raises(OnceonlyError) as error:
        Writer(log, spool=tmp_path).rehearse(handle(part()), 1)
    assert not isinstance(error.value, (*REFUSALS, StageAgain))


def test_marker_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafkaoutcome, "SETTLED", 10.0)
    log = Untouched((NONE, NONE), (NONE, NONE), (ABORTED, ABORTED))
    Writer(log, spool=tmp_path).rehearse(handle(staged(tmp_path)), 1)


def test_transaction_of_another_producer_is_not_ours(tmp_path: Path) -> None:
    log = Untouched((NONE, NONE))
    log.described = {ID: replace(OPEN, epoch=7)}
    with raises(OnceonlyError, "marker-missing"):
        Writer(log, spool=tmp_path).rehearse(handle(part()), 1)


def test_silent_brokers_are_no_answer(tmp_path: Path) -> None:
    class Silent(Untouched):
        def read_cluster_id(self) -> str:
            raise NotCommitted("the Kafka broker did not answer.")

    with pytest.raises(NotCommitted) as error:
        Writer(Silent(), spool=tmp_path).rehearse(handle(part()), 1)
    assert type(error.value) is NotCommitted


# ---- the spool


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_late_rows_need_their_spool(tmp_path: Path, guarantee: str) -> None:
    rows = spooled(tmp_path)
    writer = Writer(Untouched((NONE, NONE)), guarantee, tmp_path)
    writer.rehearse(handle(rows, guarantee=guarantee), 1)
    (tmp_path / TXN / rows.spool).unlink()
    with pytest.raises(StageAgain):
        writer.rehearse(handle(rows, guarantee=guarantee), 1)


def test_spool_without_all_rows_is_staged_again(tmp_path: Path) -> None:
    assert code_of(Untouched(), spooled(tmp_path, rows=1), folder=tmp_path, kind=StageAgain) == "spool-missing"


@pytest.mark.parametrize("position", [0.3, 0.99])
def test_damaged_spool_is_staged_again(tmp_path: Path, position: float) -> None:
    rows = spooled(tmp_path, b"x" * 5000)
    file = tmp_path / TXN / rows.spool
    content = bytearray(file.read_bytes())
    start = int(len(content) * position)
    content[start : start + 40] = bytes(len(content[start : start + 40]))
    file.write_bytes(content)
    assert code_of(Untouched(), rows, folder=tmp_path, kind=StageAgain) == "spool-missing"


def test_storage_that_fails_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: str, name: str) -> Any:
        raise OSError("Input/output error")

    monkeypatch.setattr(kafkaspool, "read", fail)
    monkeypatch.setattr(kafkaspool, "read_bytes", fail)
    with pytest.raises(OSError, match="Input/output"):
        Writer(Untouched(), spool=tmp_path).rehearse(handle(spooled(tmp_path)), 1)


def test_rows_are_compared_with_present_settings(tmp_path: Path) -> None:
    log, rows = Untouched(), spooled(tmp_path, b"x" * 500)
    Writer(log, spool=tmp_path).rehearse(handle(rows), 1)
    log.largest = 400
    with pytest.raises(InvalidPipeline):
        Writer(log, spool=tmp_path).rehearse(handle(rows), 1)


def test_shorter_limit_of_transactions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "read_max_transaction_timeout", lambda self: 1.0)
    with raises(InvalidPipeline, "transaction-timeout-too-long"):
        Writer(Untouched(), spool=tmp_path).rehearse(handle(spooled(tmp_path)), 1)


# ---- topics


@pytest.mark.parametrize("rows", [True, False])
def test_missing_topic_is_no_reason_to_abort(tmp_path: Path, rows: bool) -> None:
    log = Untouched((UNKNOWN, UNKNOWN))
    log.topics = {}
    assert code_of(log, *[part()][:rows], folder=tmp_path, kind=ActionNeeded) == "target-missing"


def test_recreated_topic_is_staged_for_again(tmp_path: Path) -> None:
    log = Untouched((UNKNOWN, UNKNOWN))
    log.topics = {"t": "another"}
    assert code_of(log, part(), folder=tmp_path, kind=StageAgain) == "target-recreated"


def test_another_cluster_waits_for_a_person(tmp_path: Path) -> None:
    log = Untouched((UNKNOWN, UNKNOWN))
    log.cluster, log.topics = "another", {}
    assert code_of(log, part(), folder=tmp_path, kind=ActionNeeded) == "another-cluster"


# ---- targets that went back


def test_proof_is_of_all_partitions() -> None:
    log = Log((COMMITTED, COMMITTED))
    log.end_offsets = {("t", 0): 5, ("t", 1): 1}
    outcome = Writer(log).commit(handle(part()), 1, Any)  # type: ignore[arg-type]
    assert outcome.proof == {
        "target": "cluster/t",
        "bootstrap": "nowhere:1",
        "topics": {"t": "id"},
        "ends": {"t": {"0": 5, "1": 2}},  # a marker is above the offset that the handle names
        "batches": {"t": {"0": [4, 8, 77], "1": [4, 8, 77]}},
    }


def test_topic_that_grew_is_the_same() -> None:
    log = Log()
    assert Writer(log).compare(last()).answer is Answer.SAME
    log.end_offsets["t", 1] = 12
    assert Writer(log).compare(last()).answer is Answer.SAME


def test_shorter_log_went_back() -> None:
    log = Log()
    log.end_offsets["t", 1] = 8
    history = Writer(log).compare(last())
    assert (history.answer, history.at_least) == (Answer.WENT_BACK, True)
    assert "topic 't' partition 1 ends below offset 9" in history.why


def test_log_that_was_cut_and_grew_again_went_back() -> None:
    log = Log()
    proven = last(batches={"t": {"1": [4, 8, 77]}})
    assert Writer(log).compare(proven).answer is Answer.SAME
    log.comparison = LogComparison({1: Replacement(None, 5)}, ())
    history = Writer(log).compare(proven)
    assert (history.answer, history.at_least) == (Answer.WENT_BACK, True)
    assert "partition 1 lost records below offset 9" in history.why


def test_log_without_its_last_batch_is_remarked_upon() -> None:
    log = Log()
    log.comparison = LogComparison({}, (0, 1))
    history = Writer(log).compare(last(batches={"t": {"0": [4, 8, 77], "1": [4, 8, 77]}}))
    assert history.answer is Answer.SAME
    assert "not known of partition 0, 1" in history.remarks[0]


def test_topic_that_may_not_be_read_has_no_batches() -> None:
    class Denied(Log):
        def read_end_batches(self, topic: Any, ends: Any) -> dict[int, Batch]:
            raise InvalidPipeline("the Kafka broker does not allow this.")

    outcome = Writer(Denied(), "at-least-once").commit(handle(guarantee="at-least-once"), 1, Any)  # type: ignore[arg-type]
    assert outcome.proof["batches"] == {}


@pytest.mark.parametrize("topics", [{}, {"t": "another"}])
def test_missing_or_other_topic_went_back(topics: dict[str, str]) -> None:
    log = Log()
    log.topics = topics
    history = Writer(log).compare(last())
    assert (history.answer, history.decision, history.at_least) == (Answer.WENT_BACK, 0, False)


def test_other_topics_are_elsewhere() -> None:
    assert Writer(Log()).compare(last(target="cluster/u")).answer is Answer.ELSEWHERE


@pytest.mark.parametrize(("bootstrap", "answer"), [("nowhere:1", Answer.WENT_BACK), ("moved:1", Answer.ELSEWHERE)])
def test_other_cluster_at_the_same_address_went_back(bootstrap: str, answer: Answer) -> None:
    assert Writer(Log()).compare(last(target="lost/t", bootstrap=bootstrap)).answer is answer


def test_late_answer_of_a_broker_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not know yet how far the log is replicated has not lost it."""

    class Behind(Log):
        def read_ends(self, partitions: Any) -> dict[tuple[str, int], int]:
            self.done.append("ends")
            return dict.fromkeys(partitions, 8 if len(self.done) == 1 else 9)

    monkeypatch.setattr(markers, "MISSING_SECONDS", 10.0)
    assert Writer(Behind()).compare(last()).answer is Answer.SAME


def test_accepted_target_is_the_same() -> None:
    log = Log()
    log.end_offsets["t", 1] = 8
    accepted = Writer(log).find_current_publication(last())
    assert accepted is not None
    assert accepted.decision == 0
    assert Writer(log).compare(accepted).answer is Answer.SAME
    log.topics = {}
    assert Writer(log).find_current_publication(last()) is None


@pytest.mark.parametrize("step", ["rehearse", "commit"])
def test_nothing_is_published_to_what_went_back(tmp_path: Path, step: str) -> None:
    log = Untouched((NONE, NONE))
    log.described, log.end_offsets["t", 1] = {ID: OPEN}, 8
    writer, staged_handle = Writer(log, spool=tmp_path), handle(part())
    with pytest.raises(TargetWentBack) as error:
        if step == "rehearse":
            writer.rehearse(staged_handle, 2, last())
        else:
            writer.commit(staged_handle, 2, Any, last())  # type: ignore[arg-type]
    assert error.value.code == "target-went-back"


def test_published_transaction_counts_wherever_the_target_is(tmp_path: Path) -> None:
    log = Untouched((COMMITTED, COMMITTED))
    log.end_offsets["t", 1] = 8
    writer, published = Writer(log, spool=tmp_path), handle(part())
    writer.rehearse(published, 2, last())
    assert writer.commit(published, 2, Any, last()).already  # type: ignore[arg-type]
    with pytest.raises(TargetWentBack):
        writer.rehearse(handle(part(), spooled(tmp_path)), 2, last())

"""What a verification of a pipeline on fakes finds: nothing healthy is accused, and each damage is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from person import Person
from unit.world import NOON, Durable, minutes

from onceonly.checkpoint.earlier_job import ConsumerGroup
from onceonly.checkpoint.verification import Finding, Judgement
from onceonly.coordinator.adopt import plan_takeover
from onceonly.coordinator.reprocess import Reprocess
from onceonly.coordinator.skip import Skip
from onceonly.errors import NotCommitted
from onceonly.statetable.table import Snapshot
from onceonly.verification import epochs
from onceonly.verification.archive import Archive
from onceonly.verification.encoding import to_json
from onceonly.verification.records import read_records
from onceonly.verification.result import Subject, Verification
from onceonly.verification.verify import Verifier

pytestmark = pytest.mark.slow

LAKE, TOPIC, STATE = Subject("sink", "lake"), Subject("source", "flights"), Subject("state table")


@pytest.fixture
def world(tmp_path: Path) -> Durable:
    world = Durable(tmp_path)
    for number in range(1, 4):
        world.put(number * 10, number * 10 + 1)
        run(world, f"run-{number}")
    return world


def run(world: Durable, owner: str, interval: Any = None) -> None:
    checkpoint = world.plan(owner, interval)
    assert checkpoint
    world.coordinator.stage("flights", checkpoint.epoch, world.parts.produce_counted, owner)
    world.commit(checkpoint.epoch)


def verify(world: Durable, **options: Any) -> Verification:
    """Verify as the command does: what was found before counts, and the result is recorded."""
    archive = Archive(world.state.uri)
    verifier = Verifier(lambda: Snapshot(world.state.uri), world.parts)
    result = verifier.verify("flights", earlier=archive.read_earlier("flights"), **options)
    archive.append(to_json(result))
    return result


def wrong(result: Verification) -> set[tuple[str, str, int | None]]:
    findings = result.list_findings(Judgement.WRONG)
    return {(str(subject), finding.code, finding.epoch) for subject, finding in findings}


def unknown(result: Verification) -> set[tuple[str, str, int | None]]:
    findings = result.list_findings(Judgement.UNKNOWN)
    return {(str(subject), finding.code, finding.epoch) for subject, finding in findings}


# ---- nothing healthy is accused


@pytest.mark.parametrize("is_deep", [False, True])
def test_healthy_pipeline_is_right(world: Durable, is_deep: bool) -> None:
    result = verify(world, is_deep=is_deep)
    assert (wrong(result), unknown(result)) == (set(), set())
    assert result.judgement is Judgement.RIGHT
    assert result.by_epoch == dict.fromkeys((1, 2, 3), Judgement.RIGHT)
    assert result.right_until == world.now(3).planned_at


def test_pipeline_without_checkpoints_is_right(tmp_path: Path) -> None:
    world = Durable(tmp_path)
    world.plan()
    result = verify(world)
    assert (result.judgement, result.open_epochs, result.right_until) == (Judgement.RIGHT, [1], None)


def test_open_checkpoints_are_not_judged(world: Durable) -> None:
    world.put(90)
    world.plan("run-9")
    world.stage(4)
    result = verify(world)
    assert (result.open_epochs, result.judgement) == ([4], Judgement.RIGHT)


def test_aborted_checkpoint_is_planned_again(world: Durable) -> None:
    world.put(90)
    world.plan("run-9")
    world.stage(4)
    world.abort(4)
    run(world, "run-10")
    assert verify(world).by_epoch[4] is Judgement.RIGHT


def test_rewound_checkpoints_are_taken_back(world: Durable) -> None:
    Person(world.coordinator).rewind("flights", 1, "somebody", "wrong code")
    run(world, "run-9")
    result = verify(world, is_deep=True)
    assert (wrong(result), unknown(result)) == (set(), set())


def test_rewind_takes_back_no_earlier_rewind(world: Durable) -> None:
    person = Person(world.coordinator)
    person.rewind("flights", 2, "somebody", "wrong code")
    person.rewind("flights", 1, "somebody", "wrong code before")
    run(world, "run-9")
    result = verify(world, is_deep=True)
    assert (wrong(result), unknown(result)) == (set(), set())


def test_skipped_offsets_are_left_out_on_purpose(world: Durable) -> None:
    world.put(70, 71, 72)
    position = world.source.log().partitions[0][1]
    Person(world.coordinator).skip_offsets("flights", Skip("flights", 0, position - 1, "somebody", "bad"))
    run(world, "run-9")
    result = verify(world, is_deep=True)
    assert (wrong(result), unknown(result)) == (set(), set())


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (2, set()),
        (1, {("source 'flights'", "offsets-passed-over", 2)}),
        (3, {("source 'flights'", "offsets-twice", 2)}),
    ],
)
def test_first_checkpoint_begins_where_the_other_job_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, expected: set[Any]
) -> None:
    world = Durable(tmp_path)
    world.source.commit_group("old", {0: 2})
    takeover = plan_takeover(world.pipeline, world.parts.sources(world.pipeline), ConsumerGroup("old"))
    world.coordinator.adopt(world.pipeline, takeover, "ann")
    run(world, "run-1")
    row = row_of(world, 1, "empty")
    moved = {**row.body["ranges"][0], "partitions": {"0": [place, place]}}
    edit_rows(world, monkeypatch, row.seq, body={**row.body, "ranges": [moved]})
    assert wrong(verify(world)) == expected


def test_intervals_in_any_order_are_right(tmp_path: Path) -> None:
    world = Durable(tmp_path, mode="interval")
    world.put(*range(5, 60))
    for start in (30, 0, 10):  # 20 to 30 is a gap
        run(world, f"run-{start}", minutes(start, start + 10))
    result = verify(world, is_deep=True)
    assert (wrong(result), unknown(result)) == (set(), set())
    assert result.right_until == NOON + timedelta(minutes=40)


def test_replaced_interval_counts_once(tmp_path: Path) -> None:
    world = Durable(tmp_path, mode="interval")
    world.put(*range(5, 60))
    run(world, "run-1", minutes(0, 10))
    run(world, "run-2", minutes(10, 20))
    request = Reprocess("again")
    again = world.coordinator.plan(world.pipeline, "run-3", world.alive, minutes(0, 10), request).checkpoint
    assert again and again.replaces == 1
    world.stage(again.epoch)
    world.commit(again.epoch)
    keeping = Reprocess("files as they are", keep=("files",), who="somebody", reason="a rate")
    repair = world.coordinator.plan(world.pipeline, "run-4", world.alive, minutes(0, 10), keeping).checkpoint
    assert repair and repair.only == ("lake",)
    world.stage(repair.epoch)
    world.commit(repair.epoch)
    all_again = Reprocess("all of it")
    last = world.coordinator.plan(world.pipeline, "run-5", world.alive, minutes(0, 10), all_again).checkpoint
    assert last and last.replaces == repair.epoch
    world.stage(last.epoch)
    world.commit(last.epoch)
    result = verify(world, is_deep=True)
    assert (wrong(result), unknown(result)) == (set(), set())


# ---- each damage is named


def test_missing_rows_are_wrong(world: Durable) -> None:
    world.lake.remove(world.now(2).transaction("lake").name)
    result = verify(world)
    assert wrong(result) == {("sink 'lake'", "commit-missing", 2)}
    assert result.by_epoch == {1: Judgement.RIGHT, 2: Judgement.WRONG, 3: Judgement.RIGHT}
    assert result.right_until == world.now(1).planned_at


def test_rows_that_nobody_published_are_wrong(world: Durable) -> None:
    file = world.lake.folder / "published.json"
    content = json.loads(file.read_text())
    content["entries"].append({**content["entries"][0], "txn": "x" + content["entries"][0]["txn"]})
    file.write_text(json.dumps(content))
    result = verify(world)
    assert wrong(result) == {("sink 'lake'", "commit-unrecorded", None)}
    assert result.right_until is None


def test_recreated_topic_is_wrong(world: Durable) -> None:
    world.source.recreate()
    assert wrong(verify(world)) == {("source 'flights'", "source-replaced", 3)}


def test_cut_log_is_wrong(world: Durable) -> None:
    world.source.lose(0, 9)
    world.put(80, 81, 82)
    assert wrong(verify(world)) == {("source 'flights'", "source-log-replaced", 3)}


def test_expired_records_can_no_longer_be_known(world: Durable) -> None:
    world.source.expire(0, 6)
    result = verify(world, is_deep=True)
    assert wrong(result) == set()
    assert unknown(result) == {("source 'flights'", "source-expired", 1)}
    assert result.judgement is Judgement.UNKNOWN


def test_what_was_right_once_stays_right(world: Durable) -> None:
    before = verify(world, is_deep=True)
    world.source.expire(0, 6)
    result = verify(world, is_deep=True)
    assert result.judgement is Judgement.RIGHT
    (cell,) = (cell for cell in result.cells if cell.checked_at)
    assert (cell.subject, cell.epoch, cell.checked_at) == (TOPIC, 1, before.at)
    again = verify(world, is_deep=True)
    assert {cell.checked_at for cell in again.cells} == {None, before.at}  # not the time of the second one


def test_shallow_look_does_not_vouch_for_rows(world: Durable) -> None:
    verify(world)
    world.source.expire(0, 6)
    assert verify(world, is_deep=True).judgement is Judgement.UNKNOWN


def test_result_of_another_table_does_not_count(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    verify(world, is_deep=True)
    world.source.expire(0, 6)
    archive = Archive(world.state.uri)
    earlier = [replace(result, row_id="f" * 32) for result in archive.read_earlier("flights")]
    verifier = Verifier(lambda: Snapshot(world.state.uri), world.parts)
    assert verifier.verify("flights", is_deep=True, earlier=earlier).judgement is Judgement.UNKNOWN


def test_count_of_records_is_compared(world: Durable) -> None:
    file = world.parts.folder / "flights.topic.json"
    topic = json.loads(file.read_text())
    topic["partitions"]["0"]["records"][2] = None
    file.write_text(json.dumps(topic))
    assert wrong(verify(world)) == set()
    assert wrong(verify(world, is_deep=True)) == {("source 'flights'", "records-differ", 1)}


def test_silent_target_is_unknown(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(type(world.lake), "verify", fail)
    result = verify(world)
    assert wrong(result) == set()
    assert {code for _, code, _ in unknown(result)} == {"target-silent"}
    assert len(unknown(result)) == 6


def fall_silent_after(answer: Callable[..., Iterator[Finding]]) -> Callable[..., Iterator[Finding]]:
    """Return a method that answers as `answer` does, and fails behind its last answer."""

    def answer_and_fail(*given: Any) -> Iterator[Finding]:
        yield from answer(*given)
        raise ConnectionError("no route to host")

    return answer_and_fail


def test_target_that_falls_silent_at_the_end_is_not_right(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody has published is looked for last."""
    sink_class = type(world.lake)
    monkeypatch.setattr(sink_class, "verify", fall_silent_after(sink_class.verify))
    result = verify(world)
    assert (result.judgement, wrong(result), result.right_until) == (Judgement.UNKNOWN, set(), None)
    assert {code for _, code, _ in unknown(result)} == {"target-silent"}


def test_source_that_falls_silent_at_the_end_is_not_right(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    source_class = type(world.source)
    monkeypatch.setattr(source_class, "count_ranges", fall_silent_after(source_class.count_ranges))
    result = verify(world, is_deep=True)
    assert (result.judgement, result.right_until) == (Judgement.UNKNOWN, None)
    assert {code for _, code, _ in unknown(result)} == {"source-silent"}


def test_sink_without_the_capability_is_unknown(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherSink:
        name = "lake"

    monkeypatch.setattr(world.parts, "sink", lambda pipeline, name: OtherSink())
    assert {code for _, code, _ in unknown(verify(world))} == {"not-verifiable"}


def test_since_leaves_older_checkpoints_out(world: Durable) -> None:
    world.lake.remove(world.now(1).transaction("lake").name)
    result = verify(world, since=world.now(2).updated_at)
    assert (sorted(result.by_epoch), wrong(result)) == ([3], set())


# ---- the state table is not believed


def edit_rows(world: Durable, monkeypatch: pytest.MonkeyPatch, seq: int, **changes: Any) -> None:
    """Let the state table show another row in place of one of its own."""
    history = Snapshot.history

    def edited(table: Snapshot, pipeline: str, *bounds: Any) -> Any:
        rows = []
        for row in history(table, pipeline, *bounds):
            rows.append(replace(row, **changes) if row.seq == seq else row)
        return rows

    monkeypatch.setattr(Snapshot, "history", edited)


def row_of(world: Durable, epoch: int, event: str) -> Any:
    return next(row for row in world.state.history("flights") if row.epoch == epoch and row.event.value == event)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (5, 7, set()),
        (6, 7, {("source 'flights'", "offsets-passed-over", 2)}),
        (4, 7, {("source 'flights'", "offsets-twice", 2)}),
        (5, 8, {("source 'flights'", "offsets-twice", 3)}),
        (5, 6, {("source 'flights'", "offsets-passed-over", 3)}),
    ],
)
def test_edited_offsets_are_wrong(
    world: Durable, monkeypatch: pytest.MonkeyPatch, start: int, end: int, expected: set[Any]
) -> None:
    row = row_of(world, 2, "planned")
    (range_json,) = row.body["ranges"]
    moved = {**range_json, "partitions": {"0": [start + 2, end + 2]}}
    edit_rows(world, monkeypatch, row.seq, body={**row.body, "ranges": [moved]})
    assert wrong(verify(world)) == expected


def test_edited_proof_is_wrong(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(world, 2, "published")
    proof = {**row.body["proof"], "txn": "another"}
    edit_rows(world, monkeypatch, row.seq, body={**row.body, "proof": proof})
    assert ("state table", "state-rows-damaged", 2) in wrong(verify(world))


def test_illegal_transition_is_wrong(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(world, 2, "committed")
    edit_rows(world, monkeypatch, row.seq, event=row_of(world, 1, "planned").event)
    assert ("state table", "state-rows-damaged", 2) in wrong(verify(world))


def test_every_publication_is_grouped_by_target(world: Durable) -> None:
    found = read_records(Snapshot(world.state.uri), "flights")
    assert [(group.sink, len(group.published)) for group in found.groups] == [("files", 3), ("lake", 3)]
    assert (found.faults, found.last_seq) == ([], world.state.view("flights").head.seq)


def test_epochs_are_written_as_spans() -> None:
    assert epochs.format_epochs([3, 1, 2, 7, 9, 10]) == "1-3, 7, 9-10"
    assert epochs.parse_epochs("1-3, 7, 9-10") == {1, 2, 3, 7, 9, 10}
    assert epochs.parse_epochs("") == set()


def test_result_that_cannot_be_recorded_is_said(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = Verifier(lambda: Snapshot(world.state.uri), world.parts)
    data = to_json(verifier.verify("flights"))
    (Path(world.state.uri) / "_verifications").write_text("no folder")
    with raises(NotCommitted, "verification-not-recorded"):
        Archive(world.state.uri).append(data)


def test_last_result_is_kept_for_each_pipeline(world: Durable) -> None:
    archive = Archive(world.state.uri)
    assert (archive.read_last("flights"), archive.read_summaries()) == (None, {})
    verify(world)
    world.lake.remove(world.now(2).transaction("lake").name)
    last = verify(world)
    (summary,) = archive.read_summaries().values()
    assert (summary.judgement, summary.at, summary.wrong_count) == ("wrong", last.at, 1)
    assert summary.right_until == world.now(1).planned_at
    assert archive.read_last("flights") == to_json(last)

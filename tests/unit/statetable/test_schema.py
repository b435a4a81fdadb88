"""The state table's rows, read by another library, keep the contract in schemas/state-row.v2.json."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from jsonschema import Draft202012Validator, ValidationError
from person import Person
from unit.chain import TEN, Chain

from onceonly.checkpoint.earlier_job import ConsumerGroup, PlannedBatch, StreamingProgress, TableEvidence
from onceonly.checkpoint.model import FORMAT, Event
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.coordinator.adopt import plan_takeover
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.forward import Forward
from onceonly.coordinator.reprocess import Reprocess
from onceonly.coordinator.skip import Skip
from onceonly.coordinator.stage import Produced
from onceonly.errors import CannotPublish, InDoubt, NotCommitted
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime.owners import is_never_alive
from onceonly.statetable import location, row_format
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts

SCHEMA = json.loads((Path(__file__).parents[3] / "schemas" / f"state-row.v{FORMAT}.json").read_text())
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
pytestmark = pytest.mark.slow
HOUR = timedelta(hours=1)
FLIGHTS = Pipeline(
    name="flights",
    source=KafkaSource("flights"),
    transform="jobs.flights:clean",
    sinks=[DeltaSink("lake", "lake"), DeltaSink("files", "files", ["day"])],
    mode="interval",
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[dict[str, Any]]:
    """Every event that there is, as written by a coordinator."""
    folder = tmp_path_factory.mktemp("schema")
    parts, state = FakeParts(folder), StateTable.make(str(folder / "state"))
    coordinator, source = Coordinator(state, parts), parts.sources(FLIGHTS)["flights"]
    source.append(0, (NOON, "a"), None, (NOON + 2 * HOUR, "b"))

    coordinator.plan(FLIGHTS, "run-1", is_never_alive, Interval(NOON, NOON + HOUR))
    coordinator.stage("flights", 1, parts.produce)
    coordinator.abort("flights", 1, "the gate failed")
    coordinator.plan(FLIGHTS, "run-2", is_never_alive, Interval(NOON, NOON + HOUR), instance="a")
    coordinator.stage("flights", 1, parts.produce)
    parts.sink(FLIGHTS, "lake").fail("commit", "refused", "refused")
    with pytest.raises(CannotPublish):
        coordinator.commit("flights", 1)
    Person(coordinator).give_up("flights", 1, "lake", "ann", "the table was dropped")
    _replace_and_doubt(coordinator, parts)
    coordinator.plan(FLIGHTS, "run-3", is_never_alive, Interval(NOON + 4 * HOUR, NOON + 5 * HOUR), instance="b")
    Person(coordinator).skip("flights", Interval(NOON + 3 * HOUR, NOON + 4 * HOUR), "ann", "a strike")
    _replace_interval_and_rewind(coordinator, parts)
    _hold_and_approve(coordinator, parts)
    _refuse_and_copy(coordinator, parts)
    _give_up_before_the_decision(coordinator, parts)
    _go_on(coordinator, parts)
    _lose_a_target(coordinator, parts)
    _take_over(coordinator, parts)
    chain = _come_after(folder / "chain")
    places = [location.table_folder(table.uri, name) for table in (state, chain) for name in table.pipelines()]
    tables = [DeltaTable(place).to_pyarrow_table() for place in places]
    return [decoded(record) for table in tables for record in table.to_pylist()]


def _come_after(folder: Path) -> StateTable:
    chain = Chain(folder, "interval")
    chain.put(*range(5))
    chain.run(chain.first, TEN)
    chain.plan(chain.second, TEN)
    chain.run(chain.first, TEN, "again, 1")
    chain.plan(chain.second, TEN)
    two = replace(chain.first, sinks=[*chain.first.sinks, DeltaSink("more", "more")])
    wish = Reprocess("ann: past", only=("more",), again=(), who="ann", reason="past")
    chain.through.plan(two, "ann", chain.alive, TEN, wish)
    return chain.state


def _go_on(coordinator: Coordinator, parts: FakeParts) -> None:
    """As where another state table is lost."""
    lost = Pipeline(**{**vars(FLIGHTS), "name": "lost", "mode": "chained"})
    ends = parts.sources(lost)["flights"].log().partitions
    Person(coordinator).forward(
        lost, Forward(7, "ann", "the disk is gone", {"flights": {p: end for p, (_, end) in ends.items()}})
    )
    Person(coordinator).forward(
        Pipeline(**{**vars(FLIGHTS), "name": "lost_days"}),
        Forward(7, "ann", "the disk is gone", intervals=[Interval(NOON, NOON + HOUR)]),
    )


def _replace_and_doubt(coordinator: Coordinator, parts: FakeParts) -> None:
    coordinator.plan(FLIGHTS, "run-4", is_never_alive, Interval(NOON + 2 * HOUR, NOON + 3 * HOUR))

    def produce(claimed):
        assert coordinator._stager.renew(claimed)
        reader = {"subject": "flights-value", "version": 2, "id": 7, "sha256": "ab" * 32}
        coordinator._stager.pin(claimed, {"flights": {"value": {"reader": reader, "writers": {"3": "cd" * 32}}}})
        return parts.produce(claimed)

    coordinator.stage("flights", 2, produce)
    parts.sink(FLIGHTS, "lake").fail("commit", "doubt", "doubt")
    parts.sink(FLIGHTS, "files").fail("commit", "lost")
    with pytest.raises(InDoubt):
        coordinator.commit("flights", 2)
    Person(coordinator).resolve_doubt("flights", 2, "lake", False, "ann", "the topic was cut by mistake")


def _replace_interval_and_rewind(coordinator: Coordinator, parts: FakeParts) -> None:
    again = coordinator.plan(
        FLIGHTS, "run-5", is_never_alive, Interval(NOON + 2 * HOUR, NOON + 3 * HOUR), Reprocess("run-5, 1")
    )
    assert again.checkpoint and again.checkpoint.replaces == 2
    chained = Pipeline(**{**vars(FLIGHTS), "name": "chained", "mode": "chained"})
    for number in (1, 2):
        parts.sources(FLIGHTS)["flights"].append(0, (NOON, f"more {number}"))
        coordinator.plan(chained, f"run-{number}", is_never_alive)
        coordinator.stage("chained", number, parts.produce)
        coordinator.commit("chained", number)
    Person(coordinator).rewind("chained", 1, "ann", "wrong prices")
    _leave_out_offsets_and_bad_records(coordinator, parts, chained)


def _leave_out_offsets_and_bad_records(coordinator: Coordinator, parts: FakeParts, chained: Pipeline) -> None:
    end = parts.sources(chained)["flights"].log().partitions[0][1]
    left_out = Person(coordinator).skip_offsets("chained", Skip("flights", 0, end, "ann", "damaged"))
    source = KafkaSource("flights", "json", "flights.ddl", on_bad_record="drop")
    parts.sources(chained)["flights"].append(0, (NOON, "bad"))
    bounded = Pipeline(**{**vars(chained), "source": source, "dead_letters": "lake", "max_bad": 0.5})
    coordinator.plan(bounded, "run-3", is_never_alive)
    bad = {"records": 1, "undecoded": {"flights": 0}, "rejected": 0}
    coordinator.stage("chained", left_out.epoch + 1, lambda checkpoint: Produced(parts.produce(checkpoint), bad))


def _hold_and_approve(coordinator: Coordinator, parts: FakeParts) -> None:
    more = {"name": "gated", "transform": "jobs.flights:gated", "gate": Gate(min_rows={"lake": 5}, on_fail="hold")}
    gated = Pipeline(**{**vars(FLIGHTS), **more})
    coordinator.plan(gated, "run-1", is_never_alive, Interval(NOON, NOON + HOUR))
    coordinator.stage("gated", 1, parts.produce)
    parts.inspector(gated).find("critical")
    coordinator.gate("gated", 1, "run-1")
    Person(coordinator).approve("gated", 1, "ann", "a known gap")
    Person(coordinator).abort("gated", 1, "on second thoughts", who="ann")


def _lose_a_target(coordinator: Coordinator, parts: FakeParts) -> None:
    """And it is there again."""
    folder, kept = parts.sink(FLIGHTS, "lake").folder, parts.folder / "unmounted"
    for _ in range(2):
        if folder.exists() and not kept.exists():
            folder.rename(kept)
        else:
            shutil.rmtree(folder)
            kept.rename(folder)
        Person(coordinator).accept_loss("flights", "lake", Acceptance("ann", "the disk is lost"))


def _take_over(coordinator: Coordinator, parts: FakeParts) -> None:
    """From a query that has committed no batch, and from a consumer group."""
    parts.sources(FLIGHTS)["flights"].commit_group("old", {0: 1})
    query = StreamingProgress("/old", "q-1", None, {}, PlannedBatch(0, {"flights": {0: 2}}))
    for name, job in (("of_query", query), ("of_group", ConsumerGroup("old"))):
        pipeline = Pipeline(**{**vars(FLIGHTS), "name": name, "mode": "chained", "transform": f"jobs.flights:{name}"})
        takeover = plan_takeover(pipeline, parts.sources(pipeline), job, [TableEvidence("/lake", 0)])
        coordinator.adopt(pipeline, takeover, "ann")


def _refuse_and_copy(coordinator: Coordinator, parts: FakeParts) -> None:
    """Rehearsals that refuse, that end the attempt, and that pass with a copy."""
    rehearsed = Pipeline(**{**vars(FLIGHTS), "name": "rehearsed", "transform": "jobs.flights:rehearsed"})
    coordinator.plan(rehearsed, "run-1", is_never_alive, Interval(NOON, NOON + HOUR))
    for failure in ("action", "again", "copied"):
        coordinator.stage("rehearsed", 1, parts.produce)
        parts.sink(rehearsed, "lake").fail("rehearse", failure)
        with suppress(NotCommitted):
            coordinator.commit("rehearsed", 1)


def _give_up_before_the_decision(coordinator: Coordinator, parts: FakeParts) -> None:
    dying = Pipeline(**{**vars(FLIGHTS), "name": "dying", "transform": "jobs.flights:dying"})
    coordinator.plan(dying, "run-1", is_never_alive, Interval(NOON, NOON + HOUR))
    coordinator.stage("dying", 1, parts.produce)
    parts.sink(dying, "lake").fail("discard", "before")
    Person(coordinator).abort("dying", 1, "its cluster is gone", who="ann", gone=["lake"])


def decoded(record: dict[str, Any]) -> dict[str, Any]:
    texts = {name: json.loads(record[name]) for name in ("head", "body")}
    return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in {**record, **texts}.items()}


def test_the_schema_is_one():
    Draft202012Validator.check_schema(SCHEMA)


def test_every_row_of_every_event_keeps_the_contract(rows):
    assert {row["event"] for row in rows} == {event.value for event in Event}
    validator = Draft202012Validator(SCHEMA)
    for row in rows:
        validator.validate(row)


def test_the_contract_and_the_table_have_the_same_columns(rows):
    assert SCHEMA["required"] == list(row_format.COLUMNS) == row_format.arrow_schema().names
    assert set(SCHEMA["properties"]) == set(row_format.COLUMNS)
    assert SCHEMA["properties"]["event"]["enum"] == [event.value for event in Event]


@pytest.mark.parametrize("broken", [{"reason": "", "forwarded": 0}, {"forwarded": 3, "reason": None}])
def test_what_a_person_says_of_the_targets_keeps_the_contract(rows, broken):
    forwarded = [row for row in rows if "forwarded" in row["body"]]
    assert sorted(row["interval_start"] is None for row in forwarded) == [False, True]
    row = {**forwarded[0], "body": {**forwarded[0]["body"], **broken}}
    with pytest.raises(ValidationError):
        Draft202012Validator(SCHEMA).validate(row)


@pytest.mark.parametrize("broken", [{"skipped": ""}, {"forwarded": 3, "reason": "x"}, {"reason": "x"}])
def test_what_a_person_leaves_out_keeps_the_contract(rows, broken):
    skipped = [row for row in rows if "skipped" in row["body"]]
    assert sorted(row["interval_start"] is None for row in skipped) == [False, True]
    for row in skipped:
        with pytest.raises(ValidationError):
            Draft202012Validator(SCHEMA).validate({**row, "body": {**row["body"], **broken}})


@pytest.mark.parametrize("broken", [{"records": -1}, {"undecoded": {"t": "many"}}, {"more": 1}, {"rejected": None}])
def test_numbers_of_bad_records_keep_the_contract(rows, broken):
    (row,) = [row for row in rows if "bad" in row["body"]]
    bad = {**row["body"]["bad"], **broken}
    with pytest.raises(ValidationError):
        Draft202012Validator(SCHEMA).validate({**row, "body": {**row["body"], "bad": bad}})


@pytest.mark.parametrize(
    ("event", "broken"),
    [
        ("planned", {"body": {}}),
        ("planned", {"owner": None}),
        ("empty", {"interval_end": None}),
        ("empty", {"decision": 3}),
        ("claimed", {"body": {"nonce": "a-b", "state_id": "0" * 32, "worker": "x"}}),
        ("staged", {"body": {"handles": {}}}),
        ("verdict", {"body": {"outcome": "perhaps", "sinks": {}, "docs": None, "by": "run-1"}}),
        ("verdict", {"sink": "lake"}),
        ("approved", {"body": {"who": "ann", "reason": ""}}),
        ("committing", {"decision": None}),
        ("replaced", {"sink": None}),
        ("replaced", {"body": {"handle": {"kind": "fake"}, "verdict": "aborted"}}),
        ("in_doubt", {"body": {"why": ""}}),
        ("published", {"sink": None}),
        ("given_up", {"body": {"who": "ann", "reason": ""}}),
        ("missing", {"body": {"who": "ann", "reason": "x"}}),
        ("found", {"sink": None}),
        ("accepted", {"body": {"who": "ann", "reason": "x"}}),
        ("committed", {"body": {"note": "x"}}),
        ("aborting", {"sink": "lake"}),
        ("aborted", {"extra": 1}),
        ("aborted", {"body": {"gone": {}}}),
        ("aborted", {"format": FORMAT + 1}),
    ],
)
def test_a_row_that_breaks_the_contract_is_reported(rows, event, broken):
    of_interval = [row for row in rows if event != "empty" or row["interval_start"]]
    row = next(row for row in of_interval if row["event"] == event and "forwarded" not in row["body"])
    with pytest.raises(ValidationError):
        Draft202012Validator(SCHEMA).validate({**row, **broken})

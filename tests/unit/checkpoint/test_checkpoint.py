"""The life of a checkpoint as data."""

import itertools
import pickle
from datetime import UTC, datetime

import pytest
from codes import raises

from onceonly import errors
from onceonly.checkpoint.model import (
    TRANSITIONS,
    Checkpoint,
    Claim,
    Event,
    Row,
    State,
    Transaction,
    first,
    fold,
)
from onceonly.checkpoint.offsets import TopicRange
from onceonly.errors import InvalidPipeline, OnceonlyError, OutcomeUnknown
from onceonly.names import check_name

RANGE = TopicRange("flights", "id-1", {0: (3, 8)})
PLAN = {"definition": {"name": "flights"}, "ranges": [RANGE.to_json()]}
BODIES = {
    Event.PLANNED: PLAN,
    Event.EMPTY: PLAN,
    Event.REWOUND: {**PLAN, "handles": {"lake": {"rows": 0}}, "to": 2, "reason": "because"},
    Event.CLAIMED: {"nonce": "n1", "state_id": "s", "worker": "host:1"},
    Event.PINNED: {"schemas": {"flights": {"value": {"writers": {"7": "ab" * 32}}}}},
    Event.STAGED: {"handles": {"lake": {"rows": 5}, "files": {"rows": 2}}},
    Event.VERDICT: {"outcome": "passed", "sinks": {}, "docs": None, "by": "run-1"},
    Event.APPROVED: {"who": "ann", "reason": "known"},
    Event.REPLACED: {"handle": {"rows": 5, "made": "again"}},
    Event.IN_DOUBT: {"why": "its log was cut"},
    Event.ABORTING: {"reason": "because"},
}
# A shortest way to every state; None is "no checkpoint yet".
WAYS = {
    None: [],
    State.PLANNED: [Event.PLANNED],
    State.STAGED: [Event.PLANNED, Event.CLAIMED, Event.STAGED],
    State.COMMITTING: [Event.PLANNED, Event.CLAIMED, Event.STAGED, Event.COMMITTING],
    State.COMMITTED: [Event.PLANNED, Event.CLAIMED, Event.STAGED, Event.COMMITTING, Event.COMMITTED],
    State.ABORTING: [Event.PLANNED, Event.ABORTING],
    State.ABORTED: [Event.PLANNED, Event.ABORTING, Event.ABORTED],
}
LEGAL = {
    (None, Event.PLANNED): State.PLANNED,
    (None, Event.EMPTY): State.COMMITTED,
    (None, Event.REWOUND): State.COMMITTING,
    (State.PLANNED, Event.PLANNED): State.PLANNED,
    (State.PLANNED, Event.CLAIMED): State.PLANNED,
    (State.PLANNED, Event.RENEWED): State.PLANNED,
    (State.PLANNED, Event.PINNED): State.PLANNED,
    (State.PLANNED, Event.STAGED): State.STAGED,
    (State.PLANNED, Event.ABORTING): State.ABORTING,
    (State.STAGED, Event.VERDICT): State.STAGED,
    (State.STAGED, Event.APPROVED): State.STAGED,
    (State.STAGED, Event.REFUSED): State.STAGED,
    (State.STAGED, Event.COMMITTING): State.COMMITTING,
    (State.STAGED, Event.ABORTING): State.ABORTING,
    (State.COMMITTING, Event.REPLACED): State.COMMITTING,
    (State.COMMITTING, Event.IN_DOUBT): State.COMMITTING,
    (State.COMMITTING, Event.PUBLISHED): State.COMMITTING,
    (State.COMMITTING, Event.GIVEN_UP): State.COMMITTING,
    (State.COMMITTING, Event.COMMITTED): State.COMMITTED,
    (State.COMMITTED, Event.MISSING): State.COMMITTED,
    (State.COMMITTED, Event.FOUND): State.COMMITTED,
    (State.COMMITTED, Event.ACCEPTED): State.COMMITTED,
    (State.ABORTING, Event.ABORTED): State.ABORTED,
    (State.ABORTED, Event.PLANNED): State.PLANNED,
    (State.ABORTED, Event.CLAIMED): State.PLANNED,
}


def row(seq: int, event: Event, attempt: int = 1, sink: str | None = None) -> Row:
    return Row("flights", seq, 4, event, attempt, owner="run-1", sink=sink, decision=6, body=BODIES.get(event, {}))


def told(events: list[Event]) -> Checkpoint:
    return fold(row(seq, event, sink="lake") for seq, event in enumerate(events, 1))[4]


@pytest.mark.parametrize(("state", "event"), list(itertools.product(WAYS, Event)))
def test_only_the_drawn_transitions_are_legal(state, event):
    if expected := LEGAL.get((state, event)):
        assert told([*WAYS[state], event]).state is expected
    else:
        with raises(OutcomeUnknown, "state-table-damaged"):
            told([*WAYS[state], event])


def test_nothing_leads_from_the_decision_to_an_abort():
    reached, edge = {State.COMMITTING}, {State.COMMITTING}
    while edge:
        edge = {to for come_from, to in TRANSITIONS.values() if come_from & reached} - reached
        reached |= edge
    assert reached == {State.COMMITTING, State.COMMITTED}


def test_an_aborted_checkpoint_is_planned_again_with_the_same_offsets():
    again = fold(
        [*map(row, range(1, 4), WAYS[State.ABORTED]), Row("flights", 4, 4, Event.PLANNED, 1, owner="run-2", body=PLAN)]
    )[4]
    assert (again.ranges, again.owner, again.owners) == ((RANGE,), "run-2", ("run-1", "run-2"))


def test_a_new_claim_forgets_the_handles_of_the_attempt_before():
    staged = told(WAYS[State.STAGED])
    aborted = staged.apply(row(4, Event.ABORTING)).apply(row(5, Event.ABORTED))
    claimed = aborted.apply(row(6, Event.CLAIMED, attempt=2))
    assert (claimed.attempt, claimed.handles, sorted(claimed.claims)) == (2, {}, [1, 2])


def test_sinks_wait_until_each_is_published_or_given_up():
    checkpoint = told(WAYS[State.COMMITTING])
    assert checkpoint.waiting == ("lake", "files")
    checkpoint = checkpoint.apply(row(5, Event.PUBLISHED, sink="files"))
    assert checkpoint.waiting == ("lake",)
    assert checkpoint.apply(row(6, Event.GIVEN_UP, sink="lake")).waiting == ()


@pytest.mark.parametrize("ending", [Event.REPLACED, Event.PUBLISHED, Event.GIVEN_UP])
def test_doubt_lasts_until_a_new_handle_or_an_outcome_is_recorded(ending):
    doubtful = told(WAYS[State.COMMITTING]).apply(row(5, Event.IN_DOUBT, sink="lake"))
    assert (list(doubtful.in_doubt), doubtful.waiting) == (["lake"], ("lake", "files"))
    assert doubtful.apply(row(6, ending, sink="files")).in_doubt == doubtful.in_doubt
    assert doubtful.apply(row(6, ending, sink="lake")).in_doubt == {}


def test_rows_are_counted_only_when_every_handle_says_them():
    staged = first(row(1, Event.PLANNED)).apply(row(2, Event.STAGED))
    assert staged.rows == 7
    assert first(row(1, Event.PLANNED)).rows is None


def test_only_committed_and_aborted_are_settled():
    assert {state for state in State if state.is_settled} == {State.COMMITTED, State.ABORTED}


def test_a_transaction_is_found_again_from_its_name():
    txn = Transaction("5e1f", "flights_by_day", "lake", 12, 3, "a1b2")
    assert Transaction.parse(txn.name) == txn
    assert txn.name.startswith(f"{txn.prefix}-")
    assert txn.app_id == "onceonly/5e1f/flights_by_day/lake"


@pytest.mark.parametrize(
    "name", ["", "part-0001.parquet", "a-b-c-d-1-n", "a-b-c-1-n-2", "a-b-c-1-2-n-more", "a-b-c-1-2", "a-b-c-²-2-n"]
)
def test_names_that_are_not_ours_are_no_transactions(name):
    assert Transaction.parse(name) is None


def test_a_transaction_belongs_to_the_state_table_that_claimed_it():
    claimed = told([Event.PLANNED, Event.CLAIMED])
    assert claimed.claims[1] == Claim("n1", "s", "host:1")
    assert claimed.transaction("lake").name == "s-flights-lake-4-1-n1"


@pytest.mark.parametrize("name", ["flights", "f", "flights_2013", "a" * 63])
def test_names(name):
    check_name("pipeline", name)


@pytest.mark.parametrize("name", ["", "Flights", "2013", "_x", "by-day", "by day", "a/b", "é", "a" * 64, None, "a\n"])
def test_names_that_would_break_an_identity_are_refused(name):
    with raises(InvalidPipeline, "name-invalid") as refused:
        check_name("sink", name)
    assert "Use lower-case letters" in str(refused.value)


def all_errors(base: type[OnceonlyError] = OnceonlyError) -> list[type[OnceonlyError]]:
    return [base, *(error for direct in base.__subclasses__() for error in all_errors(direct))]


@pytest.mark.parametrize("error", all_errors())
def test_errors_keep_their_three_lines_from_one_process_to_another(error):
    copy = pickle.loads(pickle.dumps(error("what", "why", "todo")))
    assert type(copy) is error
    assert (copy.what, copy.why, copy.todo, str(copy)) == ("what", "why", "todo", "what\nwhy\ntodo")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotCommitted("x"), 1),
        (errors.Busy("x"), 1),
        (errors.Fenced("x"), 1),
        (errors.InvalidPipeline("x"), 2),
        (errors.CannotPublish("x"), 3),
        (ZeroDivisionError(), 3),
    ],
)
def test_an_error_that_nobody_classified_counts_as_unknown(error, code):
    assert errors.exit_code(error) == code


def test_rows_are_stamped_with_a_unique_id_and_utc():
    one, other = row(1, Event.PLANNED), row(1, Event.PLANNED)
    assert one.id != other.id
    assert datetime.now(UTC) >= one.at

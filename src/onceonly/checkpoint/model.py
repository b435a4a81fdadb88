"""The life of a checkpoint, as data: states, events, legal transitions, and the fold over recorded rows.

PLANNED ──▶ STAGED ──▶ COMMITTING ──▶ COMMITTED
   └──────────┴──▶ ABORTING ──▶ ABORTED ──▶ (planned or claimed again: same offsets, next attempt)

Where the pipeline has a gate, STAGED also holds the attempt's verdict, and the decision needs it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from onceonly.checkpoint.definition import Definition
from onceonly.checkpoint.offsets import Interval, Ranges, TopicRange
from onceonly.errors import OutcomeUnknown

FORMAT = 2  # version of the state-table row; a reader refuses any other

Handle = Mapping[str, Any]  # a sink's receipt: plain JSON without secrets, from which any process can finish


class State(Enum):
    PLANNED = "planned"  # offsets pinned; a crash here aborts
    STAGED = "staged"  # every sink pre-committed, handles recorded
    COMMITTING = "committing"  # the decision is taken; a crash here commits
    COMMITTED = "committed"
    ABORTING = "aborting"  # will never be published; a crash here aborts
    ABORTED = "aborted"  # discarded, except rows that the gate keeps; may be planned again

    @property
    def is_settled(self) -> bool:
        return self in (State.COMMITTED, State.ABORTED)


class Event(Enum):
    PLANNED = "planned"  # offsets pinned; planned again: a new owner or definition, the same offsets
    REWOUND = "rewound"  # a checkpoint that retracts later ones; it starts with the decision
    EMPTY = "empty"  # no records, or skipped: boundaries are pinned and the checkpoint is settled, in one step
    CLAIMED = "claimed"  # a stage process began the next attempt
    RENEWED = "renewed"  # the stage process is still running
    PINNED = "pinned"  # by which registered schemas the records are decoded, now and in every later attempt
    STAGED = "staged"
    VERDICT = "verdict"  # the gate's, on the staged rows; one per attempt, the first one counts
    APPROVED = "approved"  # by a person, with a reason: may be published although the gate failed it
    REFUSED = "refused"  # one sink, by its rehearsal: not decided until a person has acted
    COMMITTING = "committing"  # the decision
    REPLACED = "replaced"  # one sink's handle: what the old one names will never be published
    IN_DOUBT = "in_doubt"  # one sink: the evidence no longer exists, so manual resolution is needed
    PUBLISHED = "published"  # one sink
    GIVEN_UP = "given_up"  # one sink, by a person, with a reason
    MISSING = "missing"  # one sink: its target has lost what was published to it, accepted by a person
    FOUND = "found"  # one sink: its target shows again what was recorded as missing
    ACCEPTED = "accepted"  # one sink: it continues from its target as it is, by manual resolution
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"


MAX_UNFIT_ATTEMPTS = 3  # then staging again does not help, and a person has to look

# event -> (states it may come from, state it leads to); None is "no checkpoint yet"
TRANSITIONS: Mapping[Event, tuple[frozenset[State | None], State]] = {
    Event.PLANNED: (frozenset({None, State.PLANNED, State.ABORTED}), State.PLANNED),
    Event.REWOUND: (frozenset({None}), State.COMMITTING),
    Event.EMPTY: (frozenset({None}), State.COMMITTED),
    Event.CLAIMED: (frozenset({State.PLANNED, State.ABORTED}), State.PLANNED),
    Event.RENEWED: (frozenset({State.PLANNED}), State.PLANNED),
    Event.PINNED: (frozenset({State.PLANNED}), State.PLANNED),
    Event.STAGED: (frozenset({State.PLANNED}), State.STAGED),
    Event.VERDICT: (frozenset({State.STAGED}), State.STAGED),
    Event.APPROVED: (frozenset({State.STAGED}), State.STAGED),
    Event.REFUSED: (frozenset({State.STAGED}), State.STAGED),
    Event.COMMITTING: (frozenset({State.STAGED}), State.COMMITTING),
    Event.REPLACED: (frozenset({State.COMMITTING}), State.COMMITTING),
    Event.IN_DOUBT: (frozenset({State.COMMITTING}), State.COMMITTING),
    Event.PUBLISHED: (frozenset({State.COMMITTING}), State.COMMITTING),
    Event.GIVEN_UP: (frozenset({State.COMMITTING}), State.COMMITTING),
    Event.COMMITTED: (frozenset({State.COMMITTING}), State.COMMITTED),
    Event.MISSING: (frozenset({State.COMMITTED}), State.COMMITTED),
    Event.FOUND: (frozenset({State.COMMITTED}), State.COMMITTED),
    Event.ACCEPTED: (frozenset({State.COMMITTED}), State.COMMITTED),
    Event.ABORTING: (frozenset({State.PLANNED, State.STAGED}), State.ABORTING),
    Event.ABORTED: (frozenset({State.ABORTING}), State.ABORTED),
}


@dataclass(frozen=True)
class Row:
    """One transition, one row of the state table (contract: schemas/state-row.v2.json)."""

    pipeline: str
    seq: int  # the pipeline's sequence number, also the version of its Delta `txn` action
    epoch: int
    event: Event
    attempt: int
    owner: str | None = None
    sink: str | None = None
    decision: int | None = None
    interval: Interval | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    head: Mapping[str, Any] = field(default_factory=dict)  # what the pipeline's next row needs: row_format.Head
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    format: int = FORMAT


@dataclass(frozen=True)
class Transaction:
    """Identifies a sink's pending output. Its name is part of every folder and transactional id."""

    state_id: str
    pipeline: str
    sink: str
    epoch: int
    attempt: int
    nonce: str
    slot: int | None = field(default=None, compare=False)  # of the pipeline's pool of ids, if it has one

    @property
    def name(self) -> str:
        return f"{self.prefix}-{self.epoch}-{self.attempt}-{self.nonce}"

    @property
    def prefix(self) -> str:
        """The part that all transactions of one sink of one pipeline of one state table share."""
        return f"{self.state_id}-{self.pipeline}-{self.sink}"

    @property
    def app_id(self) -> str:
        """The Delta application id under which this sink's decisions are numbered."""
        return f"onceonly/{self.state_id}/{self.pipeline}/{self.sink}"

    @classmethod
    def parse(cls, name: str) -> Transaction | None:
        """Return the transaction of that name; None if it is not the name of one."""
        parts = name.split("-")
        if len(parts) != 6 or not (parts[3].isdecimal() and parts[4].isdecimal()):
            return None
        return cls(parts[0], parts[1], parts[2], int(parts[3]), int(parts[4]), parts[5])


@dataclass(frozen=True)
class Claim:
    """A stage process's right to one attempt. Its output is identified by the nonce."""

    nonce: str
    state_id: str
    worker: str  # host and process, for people
    slot: int | None = None  # leased from the pipeline's pool of ids until the checkpoint is settled
    # which code makes the rows, for people: "version", "clean" and "digest", each where it is known
    code: Mapping[str, Any] | None = field(default=None, hash=False)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Outcome:
    """The result of publishing.

    Args:
        already: it had been published before.
        detail: recorded with PUBLISHED, for people.
        proof: by which the target can be recognised later (see `sink.TargetHistory`): plain JSON, small, without
            secrets. It holds "target": the place that was published to. Recorded with PUBLISHED and in the pipeline's
            head; empty: nothing is proven.
    """

    already: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict)
    proof: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """One consistent cut of one pipeline, folded from its rows."""

    pipeline: str
    epoch: int
    state: State
    definition: Definition
    ranges: Ranges
    interval: Interval | None
    owners: tuple[str, ...]
    first_seq: int
    last_seq: int  # moves with every transition
    planned_at: datetime
    updated_at: datetime
    changed_seq: int = 0  # the last row that changed what people are shown: all but heartbeats do
    instances: tuple[str | None, ...] = (None,)  # by owner: which one of several runs with its name, if known
    attempt: int = 0
    claims: Mapping[int, Claim] = field(default_factory=dict)  # by attempt
    claimed_under: Mapping[int, Definition] = field(default_factory=dict)  # by attempt: its definition
    live_nonce: str | None = None  # the nonce of the claim that may record STAGED, unless something ended it since
    schemas: Mapping[str, Any] = field(default_factory=dict)  # by topic: the registered schemas it is decoded by
    handles: Mapping[str, Handle] = field(default_factory=dict)
    bad: Mapping[str, Any] = field(default_factory=dict)  # records, and the bad ones among them: see `bad_records`
    read: Mapping[str, Any] = field(default_factory=dict)  # what was read, by topic and partition: see `read_counts`
    verdict: Mapping[str, Any] | None = None  # on the current attempt
    approved: Mapping[str, Any] | None = None  # the manual approval of the current attempt
    failed_attempts: frozenset[int] = frozenset()  # those that the gate failed
    refused: Mapping[str, Any] | None = None  # the current attempt: which sink waits for a person, and why
    unfit_attempts: frozenset[int] = frozenset()  # ended by a rehearsal, since a person last aborted the checkpoint
    gone: frozenset[tuple[int, str]] = (
        frozenset()
    )  # (attempt, sink): a person has said that the sink never answers again
    decision: int | None = None
    in_doubt: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    given_up: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # published once; the target has lost it
    reason: str | None = None  # of the last abort, or the rewind
    rewinds_to: int | None = None  # the epoch from which the pipeline continues: later ones are retracted
    replaces: int | None = None  # the epoch whose place it takes, in the sinks that it writes
    request: str | None = None  # who requested the replacement, and when
    only: tuple[str, ...] | None = None  # the sinks that a repair writes; None: it is none, and writes all
    repairs: int | None = None  # the epoch of all sinks whose records a repair writes once more
    again: tuple[str, ...] = ()  # of its sinks: what is published stays, and the rows come once more
    lacking: tuple[str, ...] = ()  # of `again`: those that had no rows of these records, and get them only in that case
    absent: tuple[str, ...] = ()  # of its sinks: a person has said that rows given up there are not in the target
    requested_by: Mapping[str, Any] = field(default_factory=dict)  # of a repair: "who" asked for it, and the "reason"
    continued_by: tuple[Mapping[str, Any], ...] = ()  # of an aborted repair: who has asked for it since, and why
    skipped: str | None = None  # the reason a person gave for leaving this interval, or these offsets, out
    forwarded: int | None = None  # the decision that the targets show, recorded manually; it published nothing
    adopted: Mapping[str, Any] | None = None  # the other job that ended where it begins, recorded manually
    after: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by pipeline: the epochs whose rows it reads

    @property
    def owner(self) -> str:
        return self.owners[-1]

    def was_of(self, owner: str, instance: str | None) -> bool:
        """Whether that run planned it or took it over. Runs of one name that cannot be told apart all count."""
        runs = [run for name, run in zip(self.owners, self.instances, strict=True) if name == owner]
        return bool(runs) and (instance is None or None in runs or instance in runs)

    def is_shown_by(self, sink: str) -> bool:
        """Whether it was published there, and is not recorded as missing since."""
        return sink in self.published and sink not in self.missing

    @property
    def waiting(self) -> tuple[str, ...]:
        """Sinks to which the decision was not published yet."""
        return tuple(sink for sink in self.handles if sink not in self.published and sink not in self.given_up)

    @property
    def sinks(self) -> tuple[str, ...]:
        """The sinks that it writes, in the order of its definition."""
        return self._written(self.definition)

    @property
    def is_repair(self) -> bool:
        """Whether it writes only some sinks, in place of an earlier checkpoint: no later one continues from it."""
        return self.only is not None

    @property
    def named_again(self) -> tuple[str, ...]:
        """The sinks that a person has named to get the rows once more."""
        return (*self.again, *self.absent)

    @property
    def data_end(self) -> datetime:
        """Up to when its rows are complete: the end of its interval, or when its offsets were pinned."""
        return self.interval.end if self.interval else self.planned_at

    @property
    def asked_last_by(self) -> Mapping[str, Any]:
        """Who asked last for this repair, and why."""
        return self.continued_by[-1] if self.continued_by else self.requested_by

    @property
    def origin(self) -> int:
        """The epoch that first covered its records in all sinks: of a repair the one that it repairs, else its own."""
        return self.epoch if self.repairs is None else self.repairs

    def _written(self, definition: Definition) -> tuple[str, ...]:
        """Return the sinks of a definition that it writes."""
        names = definition.sink_names
        if self.only is None:
            return names
        return tuple(name for name in names if name in self.only)

    @property
    def rows(self) -> int | None:
        """Staged rows of all sinks; None if a handle does not contain the number."""
        counts = [handle.get("rows") for handle in self.handles.values()]
        if not counts or None in counts:
            return None
        return int(sum(filter(None, counts)))

    @property
    def bad_records(self) -> int | None:
        """Records that were dropped or became dead letters; None if they are not counted, or nothing is staged."""
        if not self.bad:
            return None
        return int(sum(self.bad["undecoded"].values()) + self.bad["rejected"])

    @property
    def gate(self) -> Mapping[str, Any] | None:
        """The definition of its gate; None if it has none."""
        return self.definition.gate

    @property
    def has_been_held(self) -> bool:
        """Whether a gate with on_fail="hold" failed this attempt, so that only a person may approve or abort it.

        It stays so after the approval: `is_held` is whether it still waits.
        """
        if self.gate is None or self.verdict is None:
            return False
        return self.gate["on_fail"] == "hold" and self.attempt in self.failed_attempts

    @property
    def has_to_be_staged_again(self) -> bool:
        """Whether a rehearsal ended its last attempt, and nobody has staged it again."""
        return self.state in (State.ABORTING, State.ABORTED) and self.attempt in self.unfit_attempts

    @property
    def is_held(self) -> bool:
        """Whether it waits for a person to approve or abort it."""
        return self.state is State.STAGED and self.has_been_held and self.approved is None

    def keeps_rows_of(self, attempt: int) -> bool:
        """Whether the rows of an unpublished attempt are kept for people to examine."""
        if self.gate is None or attempt not in self.failed_attempts:
            return False
        latest = attempt == self.attempt and self.state in (State.ABORTING, State.ABORTED)
        return latest or bool(self.gate["keep_failed"])

    def sinks_of(self, attempt: int) -> tuple[str, ...]:
        """Return the attempt's sinks, without those that are gone.

        A checkpoint that is planned again may have other sinks.
        """
        return tuple(name for name in self._written(self.claimed_under[attempt]) if (attempt, name) not in self.gone)

    def transaction(self, sink: str, attempt: int | None = None) -> Transaction:
        number = self.attempt if attempt is None else attempt
        claim = self.claims[number]
        return Transaction(claim.state_id, self.pipeline, sink, self.epoch, number, claim.nonce, claim.slot)

    def apply(self, row: Row) -> Checkpoint:
        """Return the checkpoint after `row`.

        Raises:
            OutcomeUnknown: the row is not a legal transition from this state.
        """
        allowed, state = TRANSITIONS[row.event]
        if self.state not in allowed:
            raise _illegal_row_error(row, self.state)
        changes = {"state": state, "last_seq": row.seq, "updated_at": row.at, **_changes(self, row)}
        if row.event is not Event.RENEWED:
            changes["changed_seq"] = row.seq
        after = object.__new__(Checkpoint)
        # `replace` would go through all fields, and a status of many pipelines makes thousands
        after.__dict__.update(self.__dict__, **changes)
        return after


def first(row: Row) -> Checkpoint:
    """Return the checkpoint after its first row.

    Raises:
        OutcomeUnknown: no checkpoint begins with such a row.
    """
    allowed, state = TRANSITIONS[row.event]
    if None not in allowed:
        raise _illegal_row_error(row, None)
    return Checkpoint(
        pipeline=row.pipeline,
        epoch=row.epoch,
        state=state,
        definition=Definition(row.body["definition"]),
        ranges=_parse_ranges(row.body),
        interval=row.interval,
        owners=(row.owner or "",),
        instances=(row.body.get("instance"),),
        first_seq=row.seq,
        last_seq=row.seq,
        changed_seq=row.seq,
        planned_at=row.at,
        updated_at=row.at,
        handles=row.body.get("handles", {}),
        decision=row.decision,
        reason=row.body.get("reason"),
        rewinds_to=row.body.get("to"),
        replaces=row.body.get("replaces"),
        request=row.body.get("request"),
        **_parse_repair(row.body),
        skipped=row.body.get("skipped"),
        forwarded=row.body.get("forwarded"),
        adopted=row.body.get("adopted"),
        after=_parse_after(row.body),
    )


def fold(rows: Iterable[Row]) -> dict[int, Checkpoint]:
    """Return checkpoints by epoch, from their complete histories in the order of `seq`."""
    checkpoints: dict[int, Checkpoint] = {}
    for row in rows:
        checkpoint = checkpoints.get(row.epoch)
        checkpoints[row.epoch] = checkpoint.apply(row) if checkpoint else first(row)
    return checkpoints


TARGET_EVENTS = frozenset({Event.MISSING, Event.FOUND, Event.ACCEPTED})  # what a target has lost, or shows again
SINK_EVENTS = TARGET_EVENTS | {Event.REPLACED, Event.IN_DOUBT, Event.PUBLISHED, Event.GIVEN_UP}
NOTHING_STAGED: Mapping[str, Any] = dict(
    handles={}, bad={}, read={}, verdict=None, approved=None, refused=None, live_nonce=None
)


def _changes(checkpoint: Checkpoint, row: Row) -> dict[str, Any]:
    """Return the fields that a row changes, but for those that every row changes."""
    match row.event:
        case Event.PLANNED:
            return _apply_plan(checkpoint, row)
        case Event.CLAIMED:
            return _apply_claim(checkpoint, row)
        case Event.PINNED:
            return {"schemas": row.body["schemas"]}
        case Event.STAGED:
            staged = {"handles": row.body["handles"], "bad": row.body.get("bad", {}), "read": row.body.get("read", {})}
            return {**staged, "live_nonce": None}
        case Event.VERDICT | Event.APPROVED:
            return _apply_verdict(checkpoint, row)
        case Event.REFUSED:
            return {"refused": {"sink": row.sink, **row.body}}
        case Event.COMMITTING:
            handles = {**checkpoint.handles, **row.body.get("handles", {})}  # with those that the rehearsal has changed
            return {"decision": row.decision, "handles": handles, "refused": None}
        case event if event in SINK_EVENTS:
            apply = _apply_to_target if event in TARGET_EVENTS else _apply_to_sink
            return apply(checkpoint, row)
        case Event.ABORTING | Event.ABORTED:
            return _apply_abort(checkpoint, row)
        case _:
            return {}


def _apply_plan(checkpoint: Checkpoint, row: Row) -> dict[str, Any]:
    """Return what planning again changes: another owner or definition, the same offsets, and nothing is staged."""
    plan: dict[str, Any] = {"definition": Definition(row.body["definition"])}
    plan["request"] = row.body.get("request", checkpoint.request)
    owners = {
        "owners": (*checkpoint.owners, row.owner or ""),
        "instances": (*checkpoint.instances, row.body.get("instance")),
    }
    if "repair" in row.body:
        plan["continued_by"] = (*checkpoint.continued_by, row.body["repair"])
    return {**owners, **plan, **NOTHING_STAGED, "schemas": _keep_schemas(checkpoint, row), **_repin_ranges(row)}


def _apply_abort(checkpoint: Checkpoint, row: Row) -> dict[str, Any]:
    if row.event is Event.ABORTING:
        unfit = checkpoint.unfit_attempts | {row.attempt} if "unfit" in row.body else frozenset()
        return {"reason": row.body.get("reason"), "live_nonce": None, "refused": None, "unfit_attempts": unfit}
    gone = {(number, sink) for number in checkpoint.claims for sink in row.body.get("gone", ())}
    claims = {number: replace(claim, slot=None) for number, claim in checkpoint.claims.items()}
    return {"claims": claims, "gone": checkpoint.gone | gone}


def _keep_schemas(checkpoint: Checkpoint, row: Row) -> Mapping[str, Any]:
    """Return the schemas that stay pinned: none, if a source has another definition.

    Whoever changes a source's definition asks for another way to read the same records.
    """
    is_unchanged = checkpoint.definition.json.get("source") == row.body["definition"].get("source")
    return checkpoint.schemas if is_unchanged else {}


def _repin_ranges(row: Row) -> dict[str, Any]:
    """Return the ranges that a row pins in place of the earlier ones; empty: those stay.

    Only what other pipelines have published is pinned again: an interval of theirs was replaced before it was read to
    the end.
    """
    if "ranges" not in row.body:
        return {}
    return {"ranges": _parse_ranges(row.body), "after": _parse_after(row.body)}


def _parse_ranges(body: Mapping[str, Any]) -> Ranges:
    return tuple(TopicRange.from_json(range_) for range_ in body["ranges"])


def _parse_repair(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a checkpoint that say which sinks it writes, and who asked for that."""
    repair = body.get("repair")
    if repair is None:
        return {}
    only = repair.get("only")
    request = {key: repair[key] for key in ("who", "reason") if key in repair}
    return {
        "only": tuple(only) if only is not None else None,
        "repairs": repair.get("of"),
        "again": tuple(repair.get("again", ())),
        "lacking": tuple(repair.get("lacking", ())),
        "absent": tuple(repair.get("absent", ())),
        "requested_by": request,
    }


def _parse_after(body: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(epochs) for name, epochs in body.get("after", {}).items()}


def _apply_claim(checkpoint: Checkpoint, row: Row) -> dict[str, Any]:
    claim = Claim(**row.body)
    claims = {**checkpoint.claims, row.attempt: claim}
    under = {**checkpoint.claimed_under, row.attempt: checkpoint.definition}
    changes = {"attempt": row.attempt, "claims": claims, "claimed_under": under, "live_nonce": claim.nonce}
    return {**NOTHING_STAGED, **changes}


def _apply_verdict(checkpoint: Checkpoint, row: Row) -> dict[str, Any]:
    if row.event is Event.APPROVED:
        return {"approved": dict(row.body)}
    failed = {row.attempt} if row.body["outcome"] == "failed" else set()
    return {"verdict": dict(row.body), "failed_attempts": checkpoint.failed_attempts | failed}


def _apply_to_sink(checkpoint: Checkpoint, row: Row) -> dict[str, Any]:
    sink, body = row.sink or "", dict(row.body)
    changes: dict[str, Any] = {"in_doubt": _without(checkpoint.in_doubt, row.sink)}
    match row.event:
        case Event.IN_DOUBT:
            changes["in_doubt"] = {**checkpoint.in_doubt, sink: body}
        case Event.REPLACED:
            changes["handles"] = {**checkpoint.handles, sink: row.body["handle"]}
        case Event.PUBLISHED:
            changes["published"] = {**checkpoint.published, sink: body}
        case Event.GIVEN_UP:
            changes["given_up"] = {**checkpoint.given_up, sink: body}
    return changes


def _apply_to_target(checkpoint: Checkpoint, row: Row) -> dict[str, Any]:
    changes: dict[str, Any] = {"updated_at": checkpoint.updated_at}  # when it was committed
    if row.event is Event.MISSING:
        changes["missing"] = {**checkpoint.missing, row.sink or "": dict(row.body)}
    if row.event is Event.FOUND:
        changes["missing"] = _without(checkpoint.missing, row.sink)
    return changes


def _without(by_sink: Mapping[str, Any], sink: str | None) -> dict[str, Any]:
    return {name: value for name, value in by_sink.items() if name != sink}


def _illegal_row_error(row: Row, state: State | None) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{row.pipeline} epoch {row.epoch}: the state table holds an illegal transition.",
        f"Row {row.id} (seq {row.seq}) says '{row.event.value}' after '{state.value if state else 'nothing'}'.",
        "Nothing was changed. Was the table edited by hand? Restore it to the version before that row.",
        code="state-table-damaged",
    )

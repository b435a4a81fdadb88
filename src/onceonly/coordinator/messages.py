"""Sentences that several steps say."""

from __future__ import annotations

from collections.abc import Sequence

from onceonly.checkpoint.commands import PLAN_AGAIN
from onceonly.checkpoint.interfaces import OpenTransaction
from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.checkpoint.offsets import TopicLog
from onceonly.counts import count
from onceonly.documentation import name_page
from onceonly.errors import Busy, Fenced, OnceonlyError, OutcomeUnknown, first_sentence

MAX_CHECKPOINTS_NAMED = 8  # in a message, one by one


def how_to_settle(checkpoint: Checkpoint) -> str:
    """Return the command that ends an unsettled checkpoint whose owner has ended."""
    which = f"{checkpoint.pipeline} {checkpoint.epoch} --reason … --seen {checkpoint.changed_seq}"
    if checkpoint.is_held:
        return f"Decide: onceonly approve {which}, or: onceonly abort {which}"
    return f"Settle it: onceonly recover {checkpoint.pipeline}"


EVENTS_IN_WORDS = {
    Event.PLANNED: "planned",
    Event.CLAIMED: "attempt {attempt} began",
    Event.RENEWED: "attempt {attempt} is still running",
    Event.PINNED: "its schemas were pinned",
    Event.STAGED: "attempt {attempt} was staged",
    Event.APPROVED: "approved",
    Event.REFUSED: "was refused by sink '{sink}'",
    Event.COMMITTING: "its publication was decided",
    Event.REPLACED: "sink '{sink}' got a new transaction",
    Event.IN_DOUBT: "sink '{sink}' is in doubt",
    Event.PUBLISHED: "published to sink '{sink}'",
    Event.GIVEN_UP: "sink '{sink}' was given up",
    Event.MISSING: "is missing in the target of sink '{sink}'",
    Event.FOUND: "is there again in the target of sink '{sink}'",
    Event.ACCEPTED: "is where sink '{sink}' continues from its target as it is",
    Event.COMMITTED: "committed",
    Event.ABORTING: "aborted",
    Event.ABORTED: "what it had staged was removed",
}


def event_in_words(row: Row) -> str:
    """Write a row for people: when, what, by whom, and why.

    Such as "10:02:11 UTC epoch 7 approved by ann (a known gap)".
    """
    who = row.body.get("who") or row.owner or row.body.get("by") or row.body.get("worker")
    reason = row.body.get("reason") or row.body.get("skipped") or (row.event is Event.REFUSED and row.body["why"])
    words = f"{row.at:%H:%M:%S} UTC epoch {row.epoch} {_what_happened(row)}"
    if who:
        words += f" by {who}"
    if reason:
        words += f" ({reason})"
    return words


def _what_happened(row: Row) -> str:
    if row.event is Event.REWOUND:
        return f"went back to epoch {row.body['to']}"
    if row.event is Event.VERDICT:
        return f"got the verdict '{row.body['outcome']}' on attempt {row.attempt}"
    if row.event is Event.EMPTY and "forwarded" in row.body:
        return f"continued after decision {row.body['forwarded']}"
    if row.event is Event.EMPTY and "skipped" in row.body:
        return "was left out"
    if row.event is Event.EMPTY and "adopted" in row.body:
        return "took over from another job"
    if row.event is Event.EMPTY:
        return "had no records"
    if row.event is Event.REPLACED and "verdict" in row.body:
        return f"sink '{row.sink}' was resolved as {row.body['verdict']}"
    return EVENTS_IN_WORDS[row.event].format(attempt=row.attempt, sink=row.sink)


def name_checkpoints(checkpoints: Sequence[Checkpoint]) -> str:
    """Write 'epoch 5', 'epochs 5, 6', with their intervals; of many the first ones and the last one."""
    names = []
    for checkpoint in checkpoints:
        name = f"{checkpoint.epoch}"
        if checkpoint.interval:
            name += f" {checkpoint.interval}"
        names.append(name)
    if len(names) == 1:
        return f"epoch {names[0]}"
    if len(names) <= MAX_CHECKPOINTS_NAMED:
        return f"epochs {', '.join(names)}"
    first = ", ".join(names[: MAX_CHECKPOINTS_NAMED - 1])
    return f"{count(len(names), 'checkpoint')}: epochs {first} … {names[-1]}"


def reason_in_brackets(checkpoint: Checkpoint) -> str:
    """Return why a checkpoint was aborted, to put behind its state; empty: no reason is known."""
    if not checkpoint.reason:
        return ""
    return f" ({checkpoint.reason})"


def fenced_error(checkpoint: Checkpoint, why: str, what: str = "ownership was lost") -> Fenced:
    """Return the error of a process that acts on a checkpoint which others have taken over, decided or settled."""
    return Fenced(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: {what}.",
        f"It is {checkpoint.state.value}, and {why}.",
        "The current attempt was not touched. This process stops.",
        code="ownership-lost",
    )


def require_attempt(checkpoint: Checkpoint, attempt: int | None) -> None:
    """Refuse to act on another attempt than the one that was looked at; None: on any. A number never comes again."""
    if attempt is not None and checkpoint.attempt != attempt:
        raise fenced_error(
            checkpoint, f"attempt {checkpoint.attempt} is current; this process looked at attempt {attempt}"
        )


def hidden_records_error(name: str, log: TopicLog, transaction: OpenTransaction) -> Busy:
    """Return the error of a plan that finds no new data while records wait behind somebody's open transaction."""
    producer = since = overdue = ""
    if transaction.producer:
        producer = f" of {transaction.producer}"
    if transaction.since:
        since = f", since {transaction.since:%Y-%m-%dT%H:%M:%SZ}"
    if transaction.is_overdue:
        overdue = ", longer than its brokers should let it be"
    where = f"--topic {log.topic} --partition {transaction.partition}"
    return Busy(
        f"{name}: there is nothing that can be read, and records wait.",
        f"{log.label} partition {transaction.partition}: a transaction{producer} is open from offset "
        f"{transaction.offset} on{since}{overdue}. Nobody can read the {transaction.hidden_offsets} offsets behind it "
        "before it ends.",
        f"To go on, {PLAN_AGAIN}. The brokers end it after its time-out (15 minutes at most by default). Look at its "
        f"producer: kafka-transactions --bootstrap-server … describe-producers {where} "
        f"({name_page('kafka', 'open-transactions')}). Nothing was written.",
        code="open-transaction",
    )


def uncommitted_error(checkpoint: Checkpoint) -> OutcomeUnknown:
    waiting = ", ".join(checkpoint.waiting) or "none"
    return OutcomeUnknown(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch} is decided, and not yet committed.",
        f"It is {checkpoint.state.value}; sinks that wait to be published: {waiting}.",
        f"Retry: onceonly recover {checkpoint.pipeline}",
        code="publication-unfinished",
    )


def classify_settle_error(error: Exception, checkpoint: Checkpoint) -> OnceonlyError:
    """Return the error that was met while a checkpoint was settled, classified.

    One that nobody classified (of Spark, of a store) gets our own words.
    """
    name, epoch = checkpoint.pipeline, checkpoint.epoch
    if isinstance(error, OnceonlyError):
        error.naming(name, epoch)
    return _classify(error, name, f"{name} epoch {epoch}: not everything that it has staged could be settled.")


def classify_sweep_error(error: Exception, name: str) -> OnceonlyError:
    """Return the error that was met in a sweep, classified as by `classify_settle_error`."""
    return _classify(error, name, f"{name}: not everything that ended attempts have staged could be removed.")


def _classify(error: Exception, name: str, what: str) -> OnceonlyError:
    """Return the error, or what is said in its place if nobody classified it: that the outcome is not known."""
    if isinstance(error, OnceonlyError):
        return error.naming(name)
    todo = f"What is recorded stands, and the rest stays to be settled. Fix the cause, then: onceonly recover {name}"
    unknown = OutcomeUnknown(what, first_sentence(error), todo, code="outcome-unknown")
    unknown.__cause__ = error
    return unknown

"""Sentences that several steps say."""

from __future__ import annotations

import re

from onceonly.checkpoint.interfaces import OpenTransaction
from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.checkpoint.offsets import TopicLog
from onceonly.errors import Busy, Fenced, OnceonlyError, OutcomeUnknown

MAX_TEXT = 1_000  # characters of another library's error
PY4J = re.compile(r"An error occurred while calling [\w.$]+\.?$")


def how_to_settle(checkpoint: Checkpoint) -> str:
    """The command that ends an unsettled checkpoint whose owner has ended."""
    which = f"{checkpoint.pipeline} {checkpoint.epoch} --reason … --seen {checkpoint.changed_seq}"
    if checkpoint.held:
        return f"Decide: onceonly approve {which}, or: onceonly abort {which}"
    return f"Settle it: onceonly recover {checkpoint.pipeline}"


EVENTS_IN_WORDS = {
    Event.PLANNED: "planned",
    Event.CLAIMED: "attempt {attempt} began",
    Event.RENEWED: "attempt {attempt} is still running",
    Event.PINNED: "its schemas were pinned",
    Event.STAGED: "attempt {attempt} was staged",
    Event.APPROVED: "approved",
    Event.REFUSED: "could not be published to sink '{sink}', and waits for a person",
    Event.COMMITTING: "its publication was decided",
    Event.REPLACED: "a transaction of sink '{sink}' was replaced",
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
    """A row for people: when, what, by whom, and why, such as "10:02:11 UTC epoch 7 approved by ann (a known gap)"."""
    who = row.body.get("who") or row.owner or row.body.get("by") or row.body.get("worker")
    reason = row.body.get("reason") or row.body.get("skipped")
    by, why = f" by {who}" if who else "", f" ({reason})" if reason else ""
    return f"{row.at:%H:%M:%S} UTC epoch {row.epoch} {_what_happened(row)}{by}{why}"


def _what_happened(row: Row) -> str:
    if row.event is Event.REWOUND:
        return f"went back to epoch {row.body['to']}"
    if row.event is Event.VERDICT:
        return f"got the verdict '{row.body['outcome']}' on attempt {row.attempt}"
    if row.event is Event.EMPTY and "forwarded" in row.body:
        return f"continued after decision {row.body['forwarded']}"
    if row.event is Event.EMPTY:
        return "was left out" if "skipped" in row.body else "had no records"
    if row.event is Event.REPLACED and "verdict" in row.body:
        return f"sink '{row.sink}' was resolved as {row.body['verdict']}"
    return EVENTS_IN_WORDS[row.event].format(attempt=row.attempt, sink=row.sink)


def because(checkpoint: Checkpoint) -> str:
    """Why it was aborted, to put behind its state."""
    return f" ({checkpoint.reason})" if checkpoint.reason else ""


def fenced(checkpoint: Checkpoint, why: str, what: str = "ownership was lost") -> Fenced:
    """The refusal of a process that acts on a checkpoint which others have taken over, decided or settled."""
    return Fenced(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: {what}.",
        f"It is {checkpoint.state.value}, and {why}.",
        "The current attempt was not touched. This process stops.",
    )


def require_attempt(checkpoint: Checkpoint, attempt: int | None) -> None:
    """Refuse to act on another attempt than the one that was looked at; None: on any. A number never comes again."""
    if attempt is not None and checkpoint.attempt != attempt:
        raise fenced(checkpoint, f"attempt {checkpoint.attempt} is current; this process looked at attempt {attempt}")


def held_up(name: str, log: TopicLog, transaction: OpenTransaction) -> Busy:
    """The refusal to say that there is no new data while records wait behind somebody's open transaction."""
    producer = f" of {transaction.producer}" if transaction.producer else ""
    since = f", since {transaction.since:%Y-%m-%dT%H:%M:%SZ}" if transaction.since else ""
    overdue = ", longer than its brokers should let it be" if transaction.is_overdue else ""
    where = f"--topic {log.topic} --partition {transaction.partition}"
    return Busy(
        f"{name}: there is nothing that can be read, and records wait.",
        f"{log.called} partition {transaction.partition}: a transaction{producer} is open from offset "
        f"{transaction.offset} on{since}{overdue}. Nobody can read the {transaction.held} offsets behind it before it "
        "ends.",
        "Plan again: the brokers end it after its time-out (15 minutes at most by default). Look at its producer: "
        f"kafka-transactions --bootstrap-server … describe-producers {where} (docs/kafka.md, Open transactions). "
        "Nothing was written.",
        code="open-transaction",
    )


def first_sentence(error: BaseException) -> str:
    """What an error says first, without the traces of other languages that follow.

    Py4J begins with "An error occurred while calling o72.save.", and tells the cause on the next line, behind the name
    of a Java class.
    """
    if isinstance(error, OnceonlyError):
        return f"{error.what} {error.why}".strip()
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and PY4J.match(lines[0]):
        lines = lines[1:] or lines
    causes = [line for line in lines if line.startswith("Caused by: ")]
    first = (lines or [""])[0].removeprefix(": ")
    last = causes[-1].removeprefix("Caused by: ") if causes else ""
    text = f"{first} (caused by {last})" if last and last not in first else first
    return f"{type(error).__name__}: {text}"[:MAX_TEXT] if text else type(error).__name__


def cause(error: Exception) -> str:
    """What an error says, to be a part of another's why."""
    return first_sentence(error)


def not_committed_yet(checkpoint: Checkpoint) -> OutcomeUnknown:
    waiting = ", ".join(checkpoint.waiting) or "none"
    return OutcomeUnknown(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch} is decided, and not yet committed.",
        f"It is {checkpoint.state.value}; sinks that wait to be published: {waiting}.",
        f"Retry: onceonly recover {checkpoint.pipeline}",
    )


def unsettled(error: Exception, checkpoint: Checkpoint) -> OnceonlyError:
    """An error while a checkpoint is settled; one that nobody classified (of Spark, of a store) gets our own words."""
    name, epoch = checkpoint.pipeline, checkpoint.epoch
    return in_words(error, name, f"{name} epoch {epoch}: not everything that it has staged could be settled.")


def unswept(error: Exception, name: str) -> OnceonlyError:
    """The same of a sweep."""
    return in_words(error, name, f"{name}: not everything that ended attempts have staged could be removed.")


def in_words(error: Exception, name: str, what: str) -> OnceonlyError:
    if isinstance(error, OnceonlyError):
        return error
    todo = f"What is recorded stands, and the rest stays to be settled. Fix the cause, then: onceonly recover {name}"
    unknown = OutcomeUnknown(what, cause(error), todo)
    unknown.__cause__ = error
    return unknown

"""Sentences that several steps say."""

from __future__ import annotations

from onceonly.checkpoint.model import Checkpoint
from onceonly.errors import Fenced, OnceonlyError, OutcomeUnknown


def how_to_settle(checkpoint: Checkpoint) -> str:
    """The command that ends an unsettled checkpoint whose owner has ended."""
    which = f"{checkpoint.pipeline} {checkpoint.epoch} --reason …"
    if checkpoint.held:
        return f"Decide: onceonly approve {which}, or: onceonly abort {which}"
    return f"Settle it: onceonly recover {checkpoint.pipeline}"


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


def cause(error: Exception) -> str:
    """What an error says, to be a part of another's why."""
    return f"{error.what} {error.why}" if isinstance(error, OnceonlyError) else f"{type(error).__name__}: {error}"


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

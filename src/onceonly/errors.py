"""Errors by outcome, not by origin: the class says what may be done next.

OnceonlyError
├── NotCommitted         surely nothing was published: clean up, may be retried
│   ├── InvalidPipeline  for the user to fix: definition, topic, table, transform
│   ├── SourceLost       what was pinned is no longer in the log
│   ├── BadRecord        a record that cannot be decoded
│   ├── Busy             another checkpoint is in flight: retry later
│   └── GateFailed       the gate failed the staged rows
│       └── GateHeld     and holds them: a person has to approve or abort
├── Fenced               someone newer owns the attempt: stop, touch nothing of theirs
└── OutcomeUnknown       keep everything, recover; anything unclassified counts as this
    └── CannotPublish    decided, and this sink refuses: a person must act
        ├── InDoubt      even the evidence no longer exists: manual resolution must say what happened
        └── StateBehind  the target shows decisions that the state table does not know: it was restored

Every message has three lines: what, why, what to do.
"""

from __future__ import annotations


class OnceonlyError(Exception):
    """Base of all; `exit_code` is what the command line ends with."""

    exit_code = 3

    def __init__(self, what: str, why: str = "", todo: str = "") -> None:
        super().__init__("\n".join(part for part in (what, why, todo) if part))
        self.what, self.why, self.todo = what, why, todo

    def __reduce__(self) -> tuple[type[OnceonlyError], tuple[str, str, str]]:
        return type(self), (self.what, self.why, self.todo)


class NotCommitted(OnceonlyError):
    """Surely nothing was published."""

    exit_code = 1


class InvalidPipeline(NotCommitted):
    """Bad input, refused before anything was written."""

    exit_code = 2


class SourceLost(NotCommitted):
    """A pinned range, topic or partition no longer exists; retrying alone cannot help."""


class BadRecord(NotCommitted):
    """A record of the source cannot be decoded."""


class Busy(NotCommitted):
    """Another checkpoint of this pipeline is unsettled and its owner is alive."""


class GateFailed(NotCommitted):
    """The gate failed what is staged; only other rows, or a person, can change that."""


class GateHeld(GateFailed):
    """The gate failed what is staged, and a person has to approve or abort it."""

    exit_code = 4


class Fenced(OnceonlyError):
    """A newer attempt, an abort or another owner has taken this over."""

    exit_code = 1


class OutcomeUnknown(OnceonlyError):
    """Whether it landed is not known: delete nothing, recover."""


class CannotPublish(OutcomeUnknown):
    """The decision stands, but this sink cannot carry it out as things are."""


class InDoubt(CannotPublish):
    """Whether it was published can no longer be found out; only manual resolution can say."""


class StateBehind(CannotPublish):
    """The target shows a later decision, or another transaction at this one: the state table went back."""


def exit_code(error: BaseException) -> int:
    """By outcome (docs: `onceonly --help`); an error that nobody classified leaves the outcome unknown."""
    return error.exit_code if isinstance(error, OnceonlyError) else OutcomeUnknown.exit_code

"""Errors by outcome, not by origin: the class says what may be done next.

OnceonlyError
├── NotCommitted         nothing was published, for certain: clean up, may be retried
│   ├── InvalidPipeline  for the user to fix: definition, topic, table, transform
│   ├── SourceLost       a pinned range is no longer in the log
│   ├── BadRecord        a record cannot be decoded
│   ├── Busy             another checkpoint is in flight: retry later
│   ├── StageAgain       what is staged cannot be published, and staging it again helps
│   ├── ActionNeeded     it stays as it is, and is not decided, until a person acts
│   └── GateFailed       the gate failed the staged rows
│       └── GateHeld     and somebody has to approve or abort them
├── Fenced               a newer attempt or owner has taken over: stop, touch nothing of it
└── OutcomeUnknown       keep everything, recover; any unclassified error counts as this
    └── CannotPublish    decided, but this sink refuses: manual action needed
        ├── InDoubt      the evidence no longer exists: manual resolution needed
        ├── TargetWentBack  the target lacks what was published to it: it was restored, replaced or is not mounted
        └── StateBehind  the target shows decisions that the state table does not have: it was restored

Every message has three lines: what happened, why, what to do. At the end of the first stands the error's `code`: a
stable word, which `onceonly explain` and docs/errors.md explain (`onceonly.error_codes`). The text may change.
"""

from __future__ import annotations

import re

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PY4J = re.compile(r"An error occurred while calling [\w.$:]+?\.?(\s+Trace:)?$")
PY4J_WITHOUT_CAUSE = "Spark's JVM failed, and said nothing else."
BLANK_PIPELINE = re.compile(r"(?<=onceonly )(?P<command>[a-z-]+(?: [a-z]+)?) PIPELINE\b")
MAX_TEXT = 1_000  # characters of another library's error


class OnceonlyError(Exception):
    """Base class of all errors; `exit_code` is that of the command line.

    Args:
        code: a stable word that names the fault, such as "target-went-back"; empty if it has none.
    """

    exit_code = 3
    pipeline = ""  # that it is about, once that is known

    def __init__(self, what: str, why: str = "", todo: str = "", code: str = "") -> None:
        if "\x1b" in why:  # object stores' clients tell a chain of causes in colours, over many lines
            why = " ".join(COLOURS.sub("", why).split())
        self.what, self.why, self.todo, self.code = what, why, todo, code
        super().__init__(self._message())

    def naming(self, pipeline: str, epoch: int | None = None) -> OnceonlyError:
        """Return this error, with the names in its commands that whoever raised it had to leave blank."""
        self.pipeline = pipeline
        if epoch is not None:
            self.todo = self.todo.replace("PIPELINE EPOCH", f"{pipeline} {epoch}")
        self.advise(BLANK_PIPELINE.sub(rf"\g<command> {pipeline}", self.todo))
        return self

    def advise(self, todo: str) -> None:
        """Replace what to do."""
        self.todo = todo
        self.args = (self._message(),)

    def _message(self) -> str:
        return "\n".join(part for part in (headline(self.what, self.code), self.why, self.todo) if part)

    def __reduce__(self) -> tuple[type[OnceonlyError], tuple[str, str, str, str]]:
        return type(self), (self.what, self.why, self.todo, self.code)


class NotCommitted(OnceonlyError):
    """Nothing was published, for certain."""

    exit_code = 1


class InvalidPipeline(NotCommitted):
    """Bad input, refused before anything was written."""

    exit_code = 2


class SourceLost(NotCommitted):
    """A pinned range, topic or partition no longer exists. A retry alone cannot help."""


class BadRecord(NotCommitted):
    """A record of the source cannot be decoded."""


class Busy(NotCommitted):
    """Another checkpoint of this pipeline is unsettled, and its owner is alive."""


class StageAgain(NotCommitted):
    """What is staged cannot be published any more, for certain, and staging it again helps."""


class ActionNeeded(NotCommitted):
    """What is staged cannot be published until a person acts. It stays staged, and is not decided."""

    exit_code = 4


class GateFailed(NotCommitted):
    """The gate failed the staged rows. A retry needs other rows, or manual approval."""


class GateHeld(GateFailed):
    """The gate failed the staged rows and holds them until somebody approves or aborts the checkpoint."""

    exit_code = 4


class Fenced(OnceonlyError):
    """A newer attempt, an abort or another owner has taken over."""

    exit_code = 1


class OutcomeUnknown(OnceonlyError):
    """It is not known whether the operation succeeded: delete nothing, recover."""


class CannotPublish(OutcomeUnknown):
    """The decision stands, but this sink cannot publish until something is fixed."""


class InDoubt(CannotPublish):
    """It can no longer be determined whether it was published: manual resolution needed."""


class TargetWentBack(CannotPublish):
    """The target lacks what is recorded as published to it: it was restored, replaced, removed or is not mounted."""


class StateBehind(CannotPublish):
    """The target shows a later decision, or another transaction for this one: an older state table was restored."""


def headline(what: str, code: str) -> str:
    """Return the first line of a message: what happened, and the code of the error in brackets."""
    return f"{what} [{code}]" if code else what


def first_sentence(error: BaseException) -> str:
    """Return what an error says first, without the traces of other languages that follow.

    Py4J begins with "An error occurred while calling o72.save.", and tells the cause on the next line, behind the name
    of a Java class.
    """
    if isinstance(error, OnceonlyError):
        return f"{error.what} {error.why}".strip()
    text = first_cause(str(error))
    return f"{type(error).__name__}: {text}"[:MAX_TEXT] if text else type(error).__name__


def first_cause(text: str) -> str:
    """Return the first line that tells a cause, with the innermost cause of a Java trace."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and PY4J.match(lines[0]):
        lines = lines[1:] or [PY4J_WITHOUT_CAUSE]
    if len(lines) > 1 and lines[0].endswith("Exception:"):  # of an exception whose text begins with an empty line
        lines = [f"{lines[0]} {lines[1]}", *lines[2:]]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    first = (lines or [""])[0].removeprefix(": ")
    innermost = causes[-1].removeprefix("Caused by: ") if causes else ""
    if innermost and innermost not in first:
        return f"{first} (caused by {innermost})"
    return first


def exit_code(error: BaseException) -> int:
    """Return the exit code by outcome (see `onceonly --help`).

    An unclassified error means that the outcome is unknown.
    """
    return error.exit_code if isinstance(error, OnceonlyError) else OutcomeUnknown.exit_code

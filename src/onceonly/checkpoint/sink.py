"""What a sink promises. `Sink` is what every sink has; the classes below it are what one may be able to do beside that.

A sink says what it is able to do by being a subclass: the coordinator asks `isinstance`, and a call that was forgotten
fails when the sink is made. All of them have to be idempotent, and safe to be called by several processes at once.

    Sink            two-phase output
    KeepsCopies     keeps rows after the commit, in case that they are lost
    KeepsNames      what it has published keeps the names of its transactions
    HoldsOpen       holds what a process could still publish, such as a broker's open transaction
    Traced          its target shows which decision it has seen last
    Replaceable     what it has published can be taken back
    Inspectable     a gate can look at what is staged
    PoolsIds        uses the same few ids again
    Explaining      shows a person what there is to see of an outcome
    Resolvable      can be in doubt, and takes a manual resolution
    KeepsState      what it publishes is read by the next checkpoint
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypedDict

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.offsets import Offsets
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.shapes import Count


class Receipts(Protocol):
    """A sink's handle as the state table has it, for a sink that has to change it while publishing."""

    def replace(self, old: Handle, new: Handle) -> Handle:
        """Record `new` in place of `old`, by compare-and-set; returns the handle that is recorded now.

        That is another one than `new` where another process was first. Only for an `old` that will surely never be
        published. Raises Fenced when the sink no longer waits to be published.
        """


class AnyHandle(TypedDict):
    """What every handle holds."""

    rows: Count


class Sink(ABC):
    """Two-phase output. `stage` runs in the Spark job, everything else anywhere."""

    name: str
    handle_shape: ClassVar[Any] = AnyHandle  # of its handles (pipeline/shapes.py); one that does not fit is refused

    @abstractmethod
    def check(self) -> list[str]:
        """Notes for the user (such as which publish path is taken); raises InvalidPipeline."""

    @abstractmethod
    def stage(self, txn: Transaction, rows: Any) -> Handle:
        """Write `rows` (a DataFrame) durably and invisibly, under the name of `txn`.

        Returns:
            What any process needs to finish it: plain JSON, no secret, with the number of "rows". People are shown
            these where they are there: "target" (where the rows go), "bytes" and "files".
        """

    @abstractmethod
    def commit(self, handle: Handle, decision: int, receipts: Receipts) -> Outcome:
        """Publish, idempotently. Raises InDoubt, CannotPublish or OutcomeUnknown, never guesses.

        Published already is what the target shows under the name of this very transaction. Another name at this
        decision, or a later decision, is StateBehind.
        """

    @abstractmethod
    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """See to it that no process can publish `handle` any more, and only then look whether it was published.

        Idempotent; rows are kept. A commit that comes later raises Fenced or CannotPublish.

        Returns:
            Its outcome where it was published after all; None: it never will be.
        Raises:
            OutcomeUnknown: the target does not answer, so a process may still publish it.
        """

    @abstractmethod
    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        """Remove everything that carries `txn`'s name and is not published, so that it never will be.

        Idempotent; a handle may be lost. Asked before the decision, and of attempts that were never recorded.
        """

    @abstractmethod
    def leftovers(self, prefix: str) -> list[Transaction]:
        """Transactions with that `Transaction.prefix` that hold unpublished output."""


class KeepsCopies(ABC):
    """Keeps something of a transaction until its outcome is recorded: what a commit needs, or a copy of its rows."""

    @abstractmethod
    def release(self, txn: Transaction) -> None:
        """The outcome, published, is recorded: remove what was kept until then. Idempotent.

        Not `discard`: it need not look whether the rows are published, and never removes any that were, even where
        the target has been rewritten since and does not refer to them any more.
        """


class KeepsNames(ABC):
    """Its `leftovers` look through what was ever published, as that keeps the names of its transactions.

    So a recovery asks for single transactions by name, and for all of them now and then.
    """

    @abstractmethod
    def holds(self, txn: Transaction) -> bool:
        """Whether it is one of the `leftovers`, at a cost that does not grow with what is published."""

    @abstractmethod
    def swept_ago(self, prefix: str) -> float | None:
        """Seconds since all leftovers with that prefix were last dealt with; None: that is not known."""

    @abstractmethod
    def note_swept(self, prefix: str) -> None:
        """All of them were dealt with now."""


class HoldsOpen(ABC):
    """Leaves something behind while staging that a process could publish without asking the state table."""

    @abstractmethod
    def revoke(self, txn: Transaction) -> None:
        """See to it that no process can publish it any more, as far as the sink knows a way; rows are kept. Idempotent.

        Not `discard`, which removes the rows as well. Not `fence`, which is asked after the decision, and has to be
        sure of the outcome.
        """


@dataclass(frozen=True)
class Trace:
    """The last decision of a pipeline that a target, or a consumer group, shows.

    Args:
        state_id: of the state table that took it; empty where that is not said.
        where: for people, such as "table /lake/flights".
        ends: by topic, where the pipeline was to go on after it, as far as that is shown.
        epoch: the last one that is shown, where the target names what is published by its epoch: none up to it can be
            published there again.
    """

    state_id: str
    decision: int
    where: str
    ends: Mapping[str, Offsets] = field(default_factory=dict)
    epoch: int = field(default=0, compare=False)


class Traced(ABC):
    """Its target remembers decisions, by which a state table that was restored from an older copy is noticed."""

    @abstractmethod
    def traces(self, pipeline: str) -> list[Trace]:
        """What the target shows of this pipeline and sink, one entry for each state table that has written to it."""


class Replaceable(ABC):
    """What it has published can be taken back, in the commit that publishes something else."""

    @abstractmethod
    def check_replace(self, old: Handle) -> None:
        """Raise InvalidPipeline, unless a handle with `old` under "replaces" can be published in its place."""

    @abstractmethod
    def retraction(self, txn: Transaction, olds: Sequence[Handle], held: Handle | None) -> Handle:
        """A handle whose publication takes out what `olds` brought, the youngest first.

        Args:
            held: its handle of the checkpoint to which the pipeline goes back, where it has one.
        Raises:
            InvalidPipeline: it cannot.
        """


class Inspectable(ABC):
    """A gate can look at the very rows that would be published. Its config says so, too (`SinkConfig.inspectable`)."""

    @abstractmethod
    def staged(self, handle: Handle) -> Any:
        """What is staged, as a pyarrow RecordBatchReader: the rows that would be published, in no order.

        None: only Spark can read them.
        """

    @abstractmethod
    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        """The same as a DataFrame."""

    def columns(self) -> list[str] | None:
        """Of the rows that are staged for it, where that is known before any is; `staged_frame` has the same."""
        return None


@dataclass(frozen=True)
class Pooled:
    """An open transaction under an id of a pool, which does not say whose it is: the state table does, by its slot."""

    pipeline: str
    sink: str
    slot: int
    id: str
    producer: tuple[int, int]  # producer id and epoch


class PoolsIds(ABC):
    """Uses the same few ids again, one slot of them for each attempt whose outcome is not recorded."""

    @abstractmethod
    def pooled(self, prefix: str) -> list[Pooled]:
        """What is open under its pooled ids, of whatever attempt."""

    @abstractmethod
    def needs(self, handle: Handle, txn: Pooled) -> bool:
        """Whether a handle that waits to be published names `txn`, or may come to name it."""

    @abstractmethod
    def discard_pooled(self, txns: Sequence[Pooled]) -> None:
        """See to it that they are not open, except where the id is in other hands by now."""


class Explaining(ABC):
    """Has something to show to a person who has to decide."""

    @abstractmethod
    def evidence(self, handle: Handle) -> list[str]:
        """What the sink shows about the outcome now, line by line; changes nothing."""


class Resolvable(ABC):
    """Its `commit` may raise InDoubt, where nothing shows any more what happened."""

    @abstractmethod
    def judged(self, handle: Handle, committed: bool) -> Handle:
        """The handle with a manual resolution of what is in doubt; what can be seen is not changed by it."""


class KeepsState(ABC):
    """What it publishes is given to the transform of the next checkpoint. Its config says so, too (`keeps_state`)."""

    @abstractmethod
    def read(self, spark: Any, before: Handle | None) -> Any:
        """The state that the handle `before` left, as a DataFrame; empty for None."""


@dataclass(frozen=True)
class Changes:
    """What a `KeepsState` is given to stage: what the transform wants changed, and the state that it was given."""

    rows: Any
    before: Handle | None


def replaceable(sink: Sink) -> Replaceable:
    """It, as one that can take back. Raises InvalidPipeline where it cannot."""
    if not isinstance(sink, Replaceable):
        raise cannot_take_back(sink.name)
    return sink


def inspectable(sink: Sink) -> Inspectable:
    """It, as one that a gate can look at. Raises InvalidPipeline where it cannot."""
    if not isinstance(sink, Inspectable):
        raise InvalidPipeline(f"sink '{sink.name}': a gate cannot look at it.", todo="Leave it out of the gate.")
    return sink


def cannot_take_back(sink: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{sink}': what is published there cannot be taken back.",
        "Readers may have seen it.",
        "Process again into a target that can be replaced (a Delta table, files), or under a new name. "
        "Nothing was written.",
    )


def never_in_doubt(sink: str) -> InvalidPipeline:
    return InvalidPipeline(f"sink '{sink}' is never in doubt.", todo="Settle it: onceonly recover")

"""What the contract of a sink needs: an output that tests can read and break, and a process that publishes to it."""

from __future__ import annotations

import hashlib
import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import Publication, Sink
from onceonly.errors import Fenced
from onceonly.testing.fake_rows import FakeRows
from onceonly.testing.fakes import FakeReceipts

SINK = "lake"  # the name of the sink under test
Rows = Callable[..., Any]  # numbers -> the argument of `stage`: rows with a column n
Stage = Callable[..., Handle]  # transaction, numbers -> the handle after a round trip through JSON
Undo = Callable[[], None]


class Target(ABC):
    """An output by name. A frozen dataclass of plain data, so that another process can use it, too.

    These say what the output can show:
        shows_decisions: the last published decision, and its transaction.
        shows_each: the outcome of every transaction, not only of the last one.
        tells_first: of several parallel commits, exactly one reports that it was the first.
        is_atomic: a commit and a fence in parallel end in one of the two, for all rows.
        is_repairable: a repair may write to it: not to the state of a pipeline.

    These are for `pytest --onceonly-sink`, which calls the class with a path at which nothing is yet:
        breaks, damages: see `SinkContract`.
    """

    shows_decisions: bool = True
    shows_each: bool = False
    tells_first: bool = True
    is_atomic: bool = True
    is_repairable: bool = True
    breaks: ClassVar[Sequence[Break]] = ()
    damages: ClassVar[Sequence[Damage]] = ()

    @abstractmethod
    def sink(self) -> Sink:
        """Return a new sink for each call, because a sink must not depend on its memory. Its name is `SINK`."""

    @abstractmethod
    def published(self) -> list[int]:
        """Return the rows that a reader sees, sorted."""

    @abstractmethod
    def traces(self, txn: Transaction) -> list[Any]:
        """Return everything that has the transaction's name, except published rows."""

    def digests(self) -> Mapping[str, str]:
        """Return a digest of each published file, record or log entry, by its name; none: that cannot be told."""
        return {}


def digest_files(paths: Iterable[Path]) -> dict[str, str]:
    """Return a digest of each file, for `Target.digests`."""
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@dataclass(frozen=True)
class Break:
    """One thing that changes between stage and commit, and what a rehearsal has to say to it.

    Args:
        name: for the test's name, such as "staged file removed".
        do: changes it; called with the target (as the suite's fixture returns it), the staged handle and its
            transaction. Returns what undoes the change; None if nothing can. It may skip the test, such as
            `pytest.skip("needs root")`.
        expected: what `rehearse` raises: "again" (StageAgain), "action" (ActionNeeded, or another error that waits for
            a person), "no answer" (any other error); or "passes".
        first: whether it also holds for a pipeline's first checkpoint. Otherwise, one was published before.
    """

    name: str
    do: Callable[[Any, Handle, Transaction], Undo | None]
    expected: Literal["again", "action", "no answer", "passes"]
    first: bool = False


@dataclass(frozen=True)
class Damage:
    """One thing that may become of a target after rows were published to it.

    Args:
        name: for the test's name, such as "published file removed".
        do: does it; called with the target, the handle of the second of three publications, and its transaction. What
            it returns is not used: the `do` of a `Break` is one as well.
        codes: one of these is found, of that epoch, of the target as a whole, or of all epochs.
        deep: only reading the rows shows it.
        heals: it is healthy: nothing is to be found, such as of an OPTIMIZE.
        unknown: it can no longer be known.
    """

    name: str
    do: Callable[[Any, Handle, Transaction], object]
    codes: tuple[str, ...] = ()
    deep: bool = False
    heals: bool = False
    unknown: bool = False


class GivenUp:
    """The `Receipts` of a sink that was given up."""

    def replace(self, old: Handle, new: Handle) -> Handle:
        raise Fenced("it was given up", code="test-given-up")


@dataclass(frozen=True)
class Committer:
    """Rehearses, commits and fences like the coordinator, with the recorded handle."""

    target: Target
    receipts: str

    def rehearse(
        self, handle: Handle, decision: int, last: Publication | None = None, sink: Sink | None = None
    ) -> Handle:
        """Rehearse by `sink`, or by a new one. Returns the handle to decide on after a round trip through JSON."""
        rehearsed: Handle = json.loads(json.dumps((sink or self.target.sink()).rehearse(handle, decision, last)))
        return rehearsed

    def commit(
        self, handle: Handle, decision: int, last: Publication | None = None, sink: Sink | None = None
    ) -> Outcome:
        """Commit by `sink`, or by a new one, the handle that is recorded now."""
        receipts = self._receipts_of(handle)
        return (sink or self.target.sink()).commit(receipts.current(handle), decision, receipts, last)

    def find_recorded(self, handle: Handle) -> Handle:
        """Return the handle that is recorded now: a commit may have replaced it."""
        return self._receipts_of(handle).current(handle)

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """Fence the handle that is recorded now."""
        return self.target.sink().fence(self._receipts_of(handle).current(handle), decision)

    def commit_given_up(self, handle: Handle, decision: int) -> Outcome:
        """Commit while the state table shows that the sink was given up."""
        return self.target.sink().commit(self._receipts_of(handle).current(handle), decision, GivenUp())

    def _receipts_of(self, handle: Handle) -> FakeReceipts:
        """Return where this handle is recorded. Every process finds the same file, by the handle's content."""
        receipt = hashlib.sha256(json.dumps(handle, sort_keys=True).encode()).hexdigest()
        return FakeReceipts(Path(self.receipts) / receipt)


class ContractFixtures:
    """The fixtures of the suite. `target` has to be overridden."""

    state_id: str
    breaks: ClassVar[Sequence[Break]] = ()  # for every sink: whatever can change between stage and commit

    @pytest.fixture
    def target(self) -> Target:
        raise NotImplementedError("Override the fixture `target`: see onceonly.testing.contract.")

    @pytest.fixture
    def make_rows(self) -> Rows:
        """Return the function that makes rows of numbers. Override it if `stage` needs DataFrames of Spark."""
        return lambda *numbers: FakeRows(({"n": number} for number in numbers), {"n": "long"})

    @pytest.fixture
    def session(self) -> Any:
        """A Spark session, if reading the staged rows on Spark should be tested, too."""
        return None

    @pytest.fixture(autouse=True)
    def own_state_table(self) -> None:
        """Each test has its own state table. The services may be shared."""
        self.state_id = uuid.uuid4().hex

    @pytest.fixture
    def committer(self, target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Committer]:
        yield Committer(target, str(tmp_path_factory.mktemp("receipts")))

    @pytest.fixture
    def stage(self, target: Target, make_rows: Rows) -> Stage:
        def stage(txn: Transaction, *numbers: int) -> Handle:
            handle: Handle = json.loads(json.dumps(target.sink().stage(txn, make_rows(*numbers))))
            return handle

        return stage

    def txn(self, epoch: int = 1, attempt: int = 1, pipeline: str = "flights") -> Transaction:
        return Transaction(self.state_id, pipeline, SINK, epoch, attempt, f"{epoch:04x}{attempt:04x}0000")

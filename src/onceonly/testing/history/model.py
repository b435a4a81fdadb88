"""The history of a test, as plain data: what was sent, what readers saw and when, and what was published together.

All times are seconds of one monotonic clock. Each value is sent once, so wherever it is seen it tells where it is from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

Value = int | str
BEGINNING = float("-inf")


class Fate(StrEnum):
    """What is known of a write, in Jepsen's words."""

    OK = "ok"  # acknowledged: it has to be seen
    FAIL = "fail"  # aborted: nobody may see it
    INFO = "info"  # unknown: it may be seen


@dataclass(frozen=True)
class Send:
    """A value that a producer sent.

    Args:
        partition: of its topic. What is sent to one partition has an order.
        offset: that was acknowledged; None: unknown, then the order of the sends counts.
    """

    value: Value
    partition: int = 0
    offset: int | None = None
    fate: Fate = Fate.OK
    topic: str = ""


@dataclass(frozen=True)
class Record:
    """A value as a reader saw it.

    Args:
        offset: in a log; None: the target has no order.
        batch: the name of the batch that it says it is of; None: it says nothing.
    """

    value: Value
    partition: int = 0
    offset: int | None = None
    batch: str | None = None


@dataclass(frozen=True)
class Read:
    """What a reader saw of a target.

    Args:
        records: in the order in which they were seen.
        is_whole: it is all that the target showed; else it goes on where the same reader ended before.
        is_final: every pipeline had ended before, so it has to show everything. If it is not whole, it counts with all
            that the same reader saw before.
    """

    target: str
    reader: str
    records: tuple[Record, ...]
    began: float = 0.0
    ended: float = 0.0
    is_whole: bool = False
    is_final: bool = False


@dataclass(frozen=True)
class Batch:
    """The values that one decision publishes to a target.

    Args:
        name: of the checkpoint or of the attempt.
        fate: FAIL: aborted; its values may be in another batch.
        undecided_until: when somebody last saw that it was not decided.
    """

    target: str
    name: str
    values: frozenset[Value]
    fate: Fate = Fate.OK
    undecided_until: float = BEGINNING


@dataclass(frozen=True)
class Target:
    """What a target promises.

    Args:
        is_ordered: values of one partition of the source that arrive in one partition do so in their order.
        is_atomic: a reader sees all values of a batch, or none.
        fates: of values whose fate is another one here than at their producer. FAIL: not meant for this target, or
            given up before they came; INFO: a person has accepted that they may be missing.
    """

    name: str
    is_ordered: bool = False
    is_atomic: bool = False
    fates: Mapping[Value, Fate] = field(default_factory=dict)


@dataclass
class History:
    """Everything that was seen of one test. Several threads may append to it."""

    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    def list_targets(self) -> list[Target]:
        """Return each target that was described, or of which there is a read."""
        targets = {target.name: target for target in self.targets}
        for read in self.reads:
            targets.setdefault(read.target, Target(read.target))
        return list(targets.values())

    def write(self, path: Path) -> None:
        """Write it as lines of JSON, for `python -m onceonly.testing.history PATH`."""
        with path.open("w", encoding="utf-8") as file:
            for kind, events in vars(self).items():
                for event in events:
                    file.write(json.dumps({kind: _to_json(event)}) + "\n")

    @classmethod
    def load(cls, path: Path) -> History:
        """Return the history of a file that `write` has written."""
        history = cls()
        for line in path.read_text("utf-8").splitlines():
            ((kind, event),) = json.loads(line).items()
            getattr(history, kind).append(_PARSERS[kind](event))
        return history


def _to_json(event: Any) -> dict[str, Any]:
    event_json = asdict(event)
    if isinstance(event, Batch):
        event_json["values"] = sorted(event.values, key=str)
        event_json["undecided_until"] = max(event.undecided_until, -1e300)  # JSON has no infinity
    if isinstance(event, Target):
        event_json["fates"] = list(event.fates.items())  # a key of JSON would be a text
    return event_json


def _parse_send(data: Mapping[str, Any]) -> Send:
    return Send(**{**data, "fate": Fate(data["fate"])})


def _parse_read(data: Mapping[str, Any]) -> Read:
    return Read(**{**data, "records": tuple(_parse_records(data["records"]))})


def _parse_records(records: list[dict[str, Any]]) -> Iterator[Record]:
    for record in records:
        yield Record(**record)


def _parse_batch(data: Mapping[str, Any]) -> Batch:
    return Batch(**{**data, "values": frozenset(data["values"]), "fate": Fate(data["fate"])})


def _parse_target(data: Mapping[str, Any]) -> Target:
    fates = {}
    for value, fate in data["fates"]:
        fates[value] = Fate(fate)
    return Target(**{**data, "fates": fates})


_PARSERS = {"sends": _parse_send, "reads": _parse_read, "batches": _parse_batch, "targets": _parse_target}

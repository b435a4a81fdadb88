"""What a verification finds, and the capabilities that it asks for.

A sink can compare its target with all that was published to it, and a source what was read with its log.

A verification changes nothing, and believes nothing that it can read for itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol, runtime_checkable

from onceonly.checkpoint.model import Handle
from onceonly.checkpoint.offsets import TopicRange
from onceonly.checkpoint.sink import Publication


class Judgement(Enum):
    """Of one sink of one checkpoint, or of one source."""

    RIGHT = "right"
    WRONG = "wrong"
    UNKNOWN = "can no longer be known"  # what could tell has expired; never taken for RIGHT, and never for WRONG


@dataclass(frozen=True)
class Published:
    """What the state table records of one sink of one checkpoint, and what its target has to show.

    Args:
        handle: the one that was published.
        publication: with the proof of the target as it was then.
        already: a later commit found it published; its own proof is of a later look at the target.
        taken_out_by: the epoch of the checkpoint that retracted or replaced its rows; None: they are to be there.
        missing: a person has accepted that the target has lost them.
    """

    epoch: int
    decision: int
    handle: Handle
    publication: Publication
    at: datetime
    already: bool = False
    taken_out_by: int | None = None
    missing: bool = False


@dataclass(frozen=True)
class Finding:
    """One answer of a verification.

    Args:
        judgement: an epoch is right if it has a finding RIGHT and no other.
        code: of what was found, such as "right" or "file-missing"; one of a fixed list, for programs.
        why: one sentence for people: what was compared, with figures and, where something else did it, with its
            version, time and user as the target shows them. No value of a row.
        epoch: the checkpoint; None: the target or the source as a whole.
        advice: what to do about it; empty: nothing.
    """

    judgement: Judgement
    code: str
    why: str
    epoch: int | None = None
    advice: str = ""


def _say_nothing(_done: int, _of: int) -> None:
    return


@dataclass(frozen=True)
class Depth:
    """How closely to look.

    Args:
        reads_rows: read data files and logs, rather than names, sizes, statistics and offsets alone (`--deep`).
        show_progress: is told how far it is, as (done, of how many), for a progress bar.
        since: what is said of publications before that time is not used. They are given all the same, so that
            nothing of theirs is taken for what nobody has published; None: all are looked at.
        open_epochs: checkpoints that are not settled: what a target shows of them is awaited, and not accused.
    """

    reads_rows: bool = False
    show_progress: Callable[[int, int], None] = _say_nothing
    since: datetime | None = None
    open_epochs: frozenset[int] = frozenset()


class VerifiableTarget(ABC):
    """Its target can be compared with all that was published to it."""

    @abstractmethod
    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        """Compare the target with what the state table records, and find what nobody published. Changes nothing.

        It is given all publications of a sink at once, in the order of their decisions, so that a target is listed
        once, and not per checkpoint. Every epoch that is given gets at least one finding.

        Raises:
            OutcomeUnknown: the target does not answer.
        """


@dataclass(frozen=True)
class ReadRange:
    """What the state table records of one source of one checkpoint.

    Args:
        records: by partition, how many records the stage has read; a partition is left out where that was not
            recorded.
    """

    epoch: int
    range_: TopicRange
    records: Mapping[int, int]


@runtime_checkable
class CountableLog(Protocol):
    """A source whose records can be counted in its log as they were read once: a topic."""

    def count_ranges(self, ranges: Sequence[ReadRange], depth: Depth) -> Iterator[Finding]:
        """Count the committed records in each range, and compare them with what was recorded. Reads the log once.

        What retention or compaction has taken is UNKNOWN. Every epoch that is given gets at least one finding.

        Raises:
            NotCommitted: the log does not answer.
        """

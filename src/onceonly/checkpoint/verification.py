"""What a verification finds, and the capability of a sink to compare its target with all that was published to it.

A verification changes nothing, and believes nothing that it can read for itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from onceonly.checkpoint.model import Handle
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
    """

    reads_rows: bool = False
    show_progress: Callable[[int, int], None] = _say_nothing


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

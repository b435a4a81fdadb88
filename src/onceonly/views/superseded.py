"""What later checkpoints have made of the rows that an earlier one has published: replaced them, or taken them back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceonly.checkpoint.model import Checkpoint, State

if TYPE_CHECKING:
    from onceonly.statetable.table import StateTable


@dataclass(frozen=True)
class Superseded:
    """A checkpoint whose rows are not what is published any more, or soon will not be.

    Args:
        by: the epoch that replaces it, or the rewind that takes it back.
        rewound: it is taken back, and not replaced.
        done: it has happened in every sink; else it is decided, or some sink was given up.
    """

    by: int
    rewound: bool
    done: bool

    @property
    def word(self) -> str:
        """Return what happened to the rows: 'rewound' or 'replaced'."""
        if self.rewound:
            return "rewound"
        return "replaced"

    def __str__(self) -> str:
        """Return 'replaced by epoch 9', or 'replaced, not in every sink, by epoch 9'."""
        limit = "" if self.done else ", not in every sink,"
        return f"{self.word}{limit} by epoch {self.by}"


def superseded(state: StateTable, checkpoints: Collection[Checkpoint]) -> dict[int, Superseded]:
    """Return by epoch those whose rows were replaced or taken back, of some checkpoints of one pipeline."""
    published, epochs = [], []
    for checkpoint in checkpoints:
        if checkpoint.state is State.COMMITTED and checkpoint.published:
            published.append(checkpoint)
            epochs.append(checkpoint.epoch)
    if not published:
        return {}
    later = state.superseding(published[0].pipeline, epochs)
    return match_successors(published, later)


def match_successors(published: Iterable[Checkpoint], later: Collection[Checkpoint]) -> dict[int, Superseded]:
    """Return by epoch which published checkpoints a later one replaces or takes back.

    Args:
        later: those that replace or take back, in order; the first one that reaches an epoch counts.
    """
    superseded_by_epoch = {}
    for checkpoint in published:
        if checkpoint.rewinds_to is not None:  # a rewind only takes rows back
            continue
        fate = _find_fate(checkpoint, later)
        if fate:
            superseded_by_epoch[checkpoint.epoch] = fate
    return superseded_by_epoch


def _find_fate(checkpoint: Checkpoint, later: Collection[Checkpoint]) -> Superseded | None:
    for successor in later:
        if successor.decision is None:
            continue
        rewound = successor.rewinds_to is not None and successor.rewinds_to < checkpoint.epoch < successor.epoch
        if rewound or successor.replaces == checkpoint.epoch:
            done = successor.state is State.COMMITTED and not successor.given_up
            return Superseded(successor.epoch, rewound, done)
    return None


def to_json(superseded_by_epoch: Mapping[int, Superseded], epoch: int) -> dict[str, int | None]:
    """Return the keys "replaced_by" and "rewound_by" of a checkpoint's JSON: epochs, or null."""
    fate = superseded_by_epoch.get(epoch)
    if fate is None:
        return {"replaced_by": None, "rewound_by": None}
    if fate.rewound:
        return {"replaced_by": None, "rewound_by": fate.by}
    return {"replaced_by": fate.by, "rewound_by": None}

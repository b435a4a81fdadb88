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
    """Its rows are not what is published any more, or soon will not be.

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
        return "rewound" if self.rewound else "replaced"

    def __str__(self) -> str:
        """'replaced by epoch 9'."""
        return f"{self.word}{'' if self.done else ', not in every sink,'} by epoch {self.by}"


def superseded(state: StateTable, checkpoints: Collection[Checkpoint]) -> dict[int, Superseded]:
    """By epoch, of those checkpoints of one pipeline whose rows were replaced or taken back."""
    published = [each for each in checkpoints if each.state is State.COMMITTED and each.published]
    if not published:
        return {}
    later = state.superseding(published[0].pipeline, [each.epoch for each in published])
    return by_epoch(published, later)


def by_epoch(published: Iterable[Checkpoint], later: Collection[Checkpoint]) -> dict[int, Superseded]:
    """`later`: those that replace or take back, in order; the first one that reaches an epoch counts."""
    found = ((each.epoch, _of(each, later)) for each in published if each.rewinds_to is None)
    return {epoch: superseded for epoch, superseded in found if superseded}


def _of(checkpoint: Checkpoint, later: Collection[Checkpoint]) -> Superseded | None:
    for each in later:
        rewound = each.rewinds_to is not None and each.rewinds_to < checkpoint.epoch < each.epoch
        if (rewound or each.replaces == checkpoint.epoch) and each.decision is not None:
            return Superseded(each.epoch, rewound, each.state is State.COMMITTED and not each.given_up)
    return None


def to_json(found: Mapping[int, Superseded], epoch: int) -> dict[str, int | None]:
    """Keys of a checkpoint's JSON."""
    known = found.get(epoch)
    return {
        "replaced_by": known.by if known and not known.rewound else None,
        "rewound_by": known.by if known and known.rewound else None,
    }

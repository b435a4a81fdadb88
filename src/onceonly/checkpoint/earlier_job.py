"""What is known of the job from which a pipeline takes over: how far it has come, by what it has left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from onceonly.checkpoint.offsets import Offsets

OffsetsByTopic = Mapping[str, Offsets]


class BatchOutcome(Enum):
    """What became of a batch that a query has planned and not recorded as committed."""

    PUBLISHED = "published"  # the target's log has it
    NOT_PUBLISHED = "not published"  # the target's log ends with the batch before it
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class PlannedBatch:
    """A batch that a query has planned and not recorded as committed. Its rows may be in the target, or not.

    Args:
        number: the batch id.
        ends: by topic, the offsets up to which it reads.
    """

    number: int
    ends: OffsetsByTopic


@dataclass(frozen=True)
class StreamingProgress:
    """How far a Structured Streaming query has come, by its checkpoint folder.

    Args:
        folder: the checkpoint folder.
        query_id: the id that it keeps across restarts.
        committed: the last batch that it has recorded as committed; None: there is none.
        ends: by topic, the offsets up to which it has read by then; without a batch, those at which it begins.
        planned: the batch behind that one, where there is one.
        other_sources: how many of its sources are no topics.
    """

    folder: str
    query_id: str
    committed: int | None
    ends: OffsetsByTopic
    planned: PlannedBatch | None = None
    other_sources: int = 0

    @property
    def origin(self) -> dict[str, Any]:
        """What the state table records of it."""
        return {"folder": self.folder, "query": self.query_id, "committed": self.committed}


@dataclass(frozen=True)
class ConsumerGroup:
    """A consumer group that shows how far a job has come."""

    name: str

    @property
    def origin(self) -> dict[str, Any]:
        """What the state table records of it."""
        return {"group": self.name}


@dataclass(frozen=True)
class TableEvidence:
    """What the log of a Delta table shows of a query, whose sink commits its id and the batch with the rows.

    Args:
        table: its path or URI.
        batch: the last batch of the query that is in the table; None: its log has none of that query.
        is_named: a person has said that the query writes to this table.
    """

    table: str
    batch: int | None
    is_named: bool = False

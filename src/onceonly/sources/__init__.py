"""Sources: what of a topic, table or folder a checkpoint covers, and its rows as Spark reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import TopicRange
from onceonly.checkpoint.sink import Trace
from onceonly.errors import SourceLost


class StoredSource(ABC):
    """The base of sources whose data lies in files: tables and folders.

    They have no consumer groups: what was read is in the state table and the targets.
    """

    @abstractmethod
    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        """Check that what was pinned is still there. Raises SourceLost if not."""

    def diagnose(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> Exception:
        """Return SourceLost if something that was pinned is not there, otherwise `error` itself."""
        from onceonly.spark.tables import looks_lost

        if looks_lost(error):
            try:
                self.verify(ranges)
            except SourceLost as lost:
                return lost
            except Exception:  # the original error says more than a failure to explain it
                return error
        return error

    def read_small_batch(self, ranges: tuple[TopicRange, ...]) -> None:
        """Read nothing: Spark reads files."""
        return

    def report(self, done: Checkpoint, state_id: str) -> None:
        """Do nothing: there is no consumer group to report to."""
        return

    def traces(self, pipeline: str) -> list[Trace]:
        """Return no traces: there is no consumer group that could have any."""
        return []

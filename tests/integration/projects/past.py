"""A state table with a past, written as the coordinator would have written it, at the times that a test wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from onceonly.checkpoint.model import Checkpoint, Event, Row, first
from onceonly.checkpoint.offsets import Interval, TopicRange
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable import location, row_files
from onceonly.statetable.local_log import LocalLog
from onceonly.statetable.log import MERGE, Commit
from onceonly.statetable.row_format import Head
from onceonly.statetable.table import StateTable

SECOND = timedelta(seconds=1)


class Past:
    """The rows of one pipeline, from its first one on; `write` makes the new ones the state table's, in one commit."""

    def __init__(self, state: StateTable, pipeline: Pipeline) -> None:
        self.state, self.pipeline = state, pipeline
        self._head, self._rows = Head(), list[Row]()
        self._known: dict[int, Checkpoint] = {}

    def known(self, epoch: int) -> Checkpoint:
        return self._known[epoch]

    def add(self, epoch: int, event: Event, at: datetime, **columns: Any) -> None:
        known = self._known.get(epoch)
        attempt = columns.pop("attempt", known.attempt if known else 0)
        decision = columns.pop("decision", known.decision if known else None)
        row = Row(self.pipeline.name, self._head.seq + 1, epoch, event, attempt, at=at, decision=decision, **columns)
        self._known[epoch] = now = known.apply(row) if known else first(row)
        self._head = self._head.apply(row, now)
        self._rows.append(replace(row, head=self._head.to_json()))

    def plan(
        self,
        epoch: int,
        at: datetime,
        owner: str,
        ends: Mapping[int, tuple[int, int]],
        interval: Interval | None = None,
        topic_id: str = "an-id",
        more: Mapping[str, Any] | None = None,
    ) -> None:
        ranges = [TopicRange(source.topic, topic_id, ends).to_json() for source in self.pipeline.sources]
        body = {"definition": self.pipeline.to_json(), "ranges": ranges, **(more or {})}
        self.add(epoch, Event.PLANNED, at, owner=owner, interval=interval, body=body)

    def claim(self, epoch: int, at: datetime, attempt: int = 1) -> None:
        body = {"nonce": f"{epoch:012x}", "state_id": self.state.id, "worker": "worker-1:4711"}
        self.add(epoch, Event.CLAIMED, at, attempt=attempt, body=body)

    def stage(self, epoch: int, at: datetime, handles: Mapping[str, Any], bad: Mapping[str, Any] | None = None) -> None:
        self.add(epoch, Event.STAGED, at, body={"handles": handles, **({"bad": bad} if bad else {})})

    def decide(self, epoch: int, at: datetime) -> None:
        self.add(epoch, Event.COMMITTING, at, decision=self._head.decision + 1)

    def publish(self, epoch: int, at: datetime, *sinks: str) -> None:
        for sink in sinks:
            self.add(epoch, Event.PUBLISHED, at, sink=sink, body={"already": False})

    def publish_with(self, epoch: int, at: datetime, sink: str, proof: Mapping[str, Any]) -> None:
        """With what the target has shown of its rows."""
        self.add(epoch, Event.PUBLISHED, at, sink=sink, body={"already": False, "proof": dict(proof)})

    def commit(self, epoch: int, at: datetime) -> None:
        self.add(epoch, Event.COMMITTED, at)

    def abort(self, epoch: int, at: datetime, reason: str) -> None:
        self.add(epoch, Event.ABORTING, at, body={"reason": reason})
        self.add(epoch, Event.ABORTED, at + SECOND)

    def write(self) -> None:
        """The first rows are merged already, but for the last one, as after tidying."""
        folder = location.table_folder(self.state.uri, self.pipeline.name)
        log = LocalLog(Path(folder))
        log.create()
        version = log.entries()[0]
        old, new = (self._rows[:-1], self._rows[-1:]) if version == 0 else ([], self._rows)
        if old:
            version += 1
            log.commit(version, Commit(MERGE, [row_files.put(folder, old, f"merged-{old[0].id}")]), None)
        for number, row in enumerate(new, start=version + 1):
            log.commit(number, Commit("WRITE", [row_files.put(folder, [row], row.id)], row), None)
        self._rows = []

"""A row of the state table as a record of JSON values, and the head that each row carries for the next.

A commit of a pipeline's log holds its row as such a record. The same columns are in the Parquet files (`arrow_format`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from onceonly.checkpoint.model import FORMAT, Checkpoint, Event, Row, canonical
from onceonly.checkpoint.offsets import Interval
from onceonly.checkpoint.sink import Publication
from onceonly.errors import InvalidPipeline

# name -> (Delta type, may be null); `head` and `body` are JSON
COLUMNS: Mapping[str, tuple[str, bool]] = {
    "format": ("integer", False),
    "id": ("string", False),
    "pipeline": ("string", False),
    "seq": ("long", False),
    "at": ("timestamp", False),
    "epoch": ("long", False),
    "event": ("string", False),
    "attempt": ("integer", False),
    "owner": ("string", True),
    "sink": ("string", True),
    "decision": ("long", True),
    "interval_start": ("timestamp", True),
    "interval_end": ("timestamp", True),
    "head": ("string", False),
    "body": ("string", False),
}
MAX_TARGETS = 16  # of one sink, whose last publications are kept in the head
TIMES = [name for name, (type_, _) in COLUMNS.items() if type_ == "timestamp"]


@dataclass(frozen=True)
class Head:
    """What a pipeline's last row contains for its next writer, which therefore need not read the history."""

    seq: int = 0
    changed: int = 0  # seq of the last row that is not a heartbeat
    epoch: int = 0  # last one issued
    decision: int = 0  # last one taken
    latest: int = 0  # seq of the first row of the last epoch
    open: Mapping[int, int] = field(default_factory=dict)  # unsettled epoch -> seq of its first row
    publications: Mapping[str, tuple[Publication, ...]] = field(default_factory=dict)  # by sink and target
    missing: Mapping[str, int] = field(default_factory=dict)  # by sink: how many checkpoints its target has lost
    unfit: tuple[int, ...] = ()  # epochs that have to be staged again, and that nobody has taken up

    @property
    def published(self) -> Mapping[str, Publication]:
        """By sink: its last publication."""
        return {sink: those[0] for sink in self.publications if (those := self.published_to(sink))}

    def published_to(self, sink: str) -> tuple[Publication, ...]:
        """The sink's last publication in each of the targets that it has had and that exist, the newest first."""
        return tuple(each for each in self.publications.get(sink, ()) if not each.absent)

    def after(self, row: Row, checkpoint: Checkpoint) -> Head:
        """The head once `row` has led to `checkpoint`."""
        open_ = {epoch: seq for epoch, seq in self.open.items() if epoch != row.epoch}
        if not checkpoint.state.settled:
            open_[row.epoch] = checkpoint.first_seq
        return Head(
            seq=row.seq,
            changed=self.changed if row.event is Event.RENEWED else row.seq,
            epoch=max(self.epoch, row.epoch),
            decision=max(self.decision, row.decision or 0),
            latest=row.seq if row.epoch > self.epoch else self.latest,
            open=open_,
            publications=self._publications_after(row),
            missing=self._missing_after(row),
            unfit=self._unfit_after(checkpoint),
        )

    def _publications_after(self, row: Row) -> Mapping[str, tuple[Publication, ...]]:
        """A publication without a proof says nothing of its target, so the one before it stays."""
        sink = row.sink or ""
        if row.event is Event.PUBLISHED and row.body.get("proof"):
            new = Publication(row.epoch, row.decision or 0, row.body["proof"])
        elif row.event is Event.ACCEPTED:
            new = Publication(**row.body["baseline"])
        else:
            return self.publications
        others = (each for each in self.publications.get(sink, ()) if each.target != new.target)
        return {**self.publications, sink: (new, *others)[:MAX_TARGETS]}

    def _missing_after(self, row: Row) -> Mapping[str, int]:
        if row.event not in (Event.MISSING, Event.FOUND) or not row.sink:
            return self.missing
        number = self.missing.get(row.sink, 0) + (1 if row.event is Event.MISSING else -1)
        others = {sink: each for sink, each in self.missing.items() if sink != row.sink}
        return {**others, row.sink: number} if number else others

    def _unfit_after(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        others = tuple(epoch for epoch in self.unfit if epoch != checkpoint.epoch)
        is_unfit = checkpoint.has_to_be_staged_again and checkpoint.state.settled
        return (*others, checkpoint.epoch) if is_unfit else others

    def to_json(self) -> dict[str, Any]:
        open_ = {str(epoch): seq for epoch, seq in self.open.items()}
        head = {
            "seq": self.seq,
            "changed": self.changed,
            "epoch": self.epoch,
            "decision": self.decision,
            "latest": self.latest,
            "open": open_,
        }
        published = {sink: [publication_json(each) for each in those] for sink, those in self.publications.items()}
        missing = {"missing": dict(self.missing)} if self.missing else {}
        unfit = {"unfit": list(self.unfit)} if self.unfit else {}
        return {**head, **({"published": published} if published else {}), **missing, **unfit}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Head:
        columns = dict(data)
        open_ = {int(epoch): seq for epoch, seq in columns.pop("open").items()}
        published = columns.pop("published", {})
        publications = {sink: tuple(Publication(**each) for each in listed) for sink, listed in published.items()}
        unfit = tuple(columns.pop("unfit", ()))
        return cls(**columns, open=open_, publications=publications, unfit=unfit)


def publication_json(publication: Publication) -> dict[str, Any]:
    columns = {"epoch": publication.epoch, "decision": publication.decision, "proof": dict(publication.proof)}
    return {**columns, "absent": True} if publication.absent else columns


def schema_json() -> str:
    """The columns as the schema of a Delta table."""
    fields = [
        {"name": name, "type": type_, "nullable": nullable, "metadata": {}}
        for name, (type_, nullable) in COLUMNS.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


def record(row: Row) -> dict[str, Any]:
    """The row by column; times are datetimes, `head` and `body` are JSON texts."""
    return {
        "format": row.format,
        "id": row.id,
        "pipeline": row.pipeline,
        "seq": row.seq,
        "at": row.at,
        "epoch": row.epoch,
        "event": row.event.value,
        "attempt": row.attempt,
        "owner": row.owner,
        "sink": row.sink,
        "decision": row.decision,
        "interval_start": row.interval.start if row.interval else None,
        "interval_end": row.interval.end if row.interval else None,
        "head": canonical(row.head),
        "body": canonical(row.body),
    }


def from_record(found: Mapping[str, Any]) -> Row:
    """The row of a `record`.

    Raises:
        InvalidPipeline: a row of another format.
    """
    check_format(found["format"])
    start, end = found["interval_start"], found["interval_end"]
    return Row(
        pipeline=found["pipeline"],
        seq=found["seq"],
        epoch=found["epoch"],
        event=Event(found["event"]),
        attempt=found["attempt"],
        owner=found["owner"],
        sink=found["sink"],
        decision=found["decision"],
        interval=Interval(start, end) if start else None,
        body=json.loads(found["body"]),
        head=json.loads(found["head"]),
        at=found["at"],
        id=found["id"],
        format=found["format"],
    )


def to_text(row: Row) -> str:
    """The row as one JSON text."""
    found = record(row)
    return canonical({**found, **{name: _iso(found[name]) for name in TIMES}})


def from_text(text: str) -> Row:
    found = json.loads(text)
    check_format(found["format"])
    found.update((name, datetime.fromisoformat(found[name])) for name in TIMES if found[name])
    return from_record(found)


def check_format(written: int) -> None:
    if written != FORMAT:
        raise InvalidPipeline(
            "the state table was written by another version of Onceonly.",
            f"It holds rows of format {written}, and this version reads and writes format {FORMAT} only.",
            "Install the version that wrote them. Nothing was written.",
            "state-row-format",
        )


def _iso(time: datetime | None) -> str | None:
    return time.astimezone(UTC).isoformat(timespec="microseconds") if time else None

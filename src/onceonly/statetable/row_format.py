"""A row of the state table in Arrow, and the head that each row carries for the next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from onceonly.checkpoint.model import FORMAT, Checkpoint, Event, Row, canonical
from onceonly.checkpoint.offsets import Interval
from onceonly.errors import InvalidPipeline

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        pa.field("format", pa.int32(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("pipeline", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("at", TIME, nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("owner", pa.string()),
        pa.field("sink", pa.string()),
        pa.field("decision", pa.int64()),
        pa.field("interval_start", TIME),
        pa.field("interval_end", TIME),
        pa.field("head", pa.string(), nullable=False),  # JSON
        pa.field("body", pa.string(), nullable=False),  # JSON
    ]
)


@dataclass(frozen=True)
class Head:
    """What a pipeline's last row contains for its next writer, which therefore need not read the history."""

    seq: int = 0
    epoch: int = 0  # last one issued
    decision: int = 0  # last one taken
    latest: int = 0  # seq of the first row of the last epoch
    open: Mapping[int, int] = field(default_factory=dict)  # unsettled epoch -> seq of its first row

    def after(self, row: Row, checkpoint: Checkpoint) -> Head:
        """The head once `row` has led to `checkpoint`."""
        open_ = {epoch: seq for epoch, seq in self.open.items() if epoch != row.epoch}
        if not checkpoint.state.settled:
            open_[row.epoch] = checkpoint.first_seq
        latest = row.seq if row.epoch > self.epoch else self.latest
        return Head(row.seq, max(self.epoch, row.epoch), max(self.decision, row.decision or 0), latest, open_)

    def to_json(self) -> dict[str, Any]:
        open_ = {str(epoch): seq for epoch, seq in self.open.items()}
        return {"seq": self.seq, "epoch": self.epoch, "decision": self.decision, "latest": self.latest, "open": open_}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Head:
        return cls(**{**data, "open": {int(epoch): seq for epoch, seq in data["open"].items()}})


def to_arrow(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist([_record(row) for row in rows], schema=SCHEMA)


def from_arrow(table: pa.Table) -> list[Row]:
    """Rows, unsorted.

    Raises:
        InvalidPipeline: a row of a newer format.
    """
    return [_row(record) for record in table.to_pylist()]


def check_format(found: int) -> None:
    if found > FORMAT:
        raise InvalidPipeline(
            "the state table was written by a newer Onceonly.",
            f"It holds rows of format {found}; this version reads up to {FORMAT}.",
            "Upgrade Onceonly here. Nothing was written.",
        )


def _record(row: Row) -> dict[str, Any]:
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


def _row(record: dict[str, Any]) -> Row:
    check_format(record["format"])
    start, end = record.pop("interval_start"), record.pop("interval_end")
    return Row(
        **{
            **record,
            "event": Event(record["event"]),
            "interval": Interval(start, end) if start else None,
            "head": json.loads(record["head"]),
            "body": json.loads(record["body"]),
        }
    )

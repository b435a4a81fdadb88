"""Plan + commit with 20,000 checkpoints of history against 10, on the real state table with fake sink and source."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

from deltalake import CommitProperties, Transaction, write_deltalake

from benchmarks.ratio import against, alternate
from benchmarks.results import Result, Row
from onceonly.checkpoint.model import Checkpoint, Event, first
from onceonly.checkpoint.model import Row as StateRow
from onceonly.checkpoint.offsets import Interval, TopicRange
from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable import location, row_format
from onceonly.statetable.row_format import Head
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts

HOUR = timedelta(hours=1)
START = datetime(2000, 1, 1, tzinfo=UTC)
Mode = Literal["chained", "interval"]
MODES: tuple[Mode, ...] = ("chained", "interval")
CHUNK = 2_000  # checkpoints in one generated file, about what tidying leaves


def history(folder: Path, epochs: int = 20_000, rounds: int = 15) -> Result:
    """One more checkpoint on a long history, and on a short one."""
    return Result(
        "History",
        "One more checkpoint on fakes (only the state table is written), by how many the pipeline has behind it.",
        [row for mode in MODES for row in _history(folder, mode, epochs, rounds)],
    )


def _history(folder: Path, mode: Mode, epochs: int, rounds: int) -> list[Row]:
    held = {f"{mode}, {number:,} epochs": steps(folder / f"{mode}-{number}", mode, number) for number in (epochs, 10)}
    sides = {name: partial(next, made) for name, made in held.items()}
    return against(alternate(sides, rounds, warm=3, unit="ms"))


def steps(folder: Path, mode: Mode, held: int) -> Iterator[None]:
    """After `held` checkpoints each step plans, stages (a fake: next to nothing) and commits one more."""
    pipeline = pipeline_named("p", mode)
    state = StateTable.make(str(folder / "state"))
    source = FakeParts(folder).sources(pipeline)["t"]
    source.append(0, *[(START, "past")])
    generate(state, pipeline, source.log().topic_id, held)
    yield from steps_of(state.uri, folder, pipeline, held)


def steps_of(state: str, folder: Path, pipeline: Pipeline, held: int = 0) -> Iterator[None]:
    """One checkpoint each, with a fake source and sink in `folder`."""
    parts = FakeParts(folder)
    source = parts.sources(pipeline)["t"]
    through = Coordinator(StateTable(state), parts)
    for number in count(held):
        start = START + number * HOUR
        source.append(0, (start, "row"))
        interval = Interval(start, start + HOUR) if pipeline.mode == "interval" else None
        planned = through.plan(pipeline, f"owner-{uuid.uuid4().hex}", lambda checkpoint: False, interval)
        assert planned.checkpoint is not None
        through.stage(pipeline.name, planned.checkpoint.epoch, lambda checkpoint: {"s": ["row"]})
        through.commit(pipeline.name, planned.checkpoint.epoch)
        yield


def pipeline_named(name: str, mode: Mode = "chained") -> Pipeline:
    sinks = [DeltaSink("s", path=name)]  # of its own: else it would count as renamed
    return Pipeline(name=name, source=KafkaSource("t"), transform="m:f", sinks=sinks, mode=mode)


def generate(state: StateTable, pipeline: Pipeline, topic_id: str, epochs: int) -> None:
    """Committed checkpoints of one offset each, as the coordinator would have written them."""
    rows = life(state, pipeline, topic_id, epochs)
    for start in range(0, len(rows), 6 * CHUNK):
        part, table = rows[start : start + 6 * CHUNK], location.open_(state.uri).table
        stamp = CommitProperties(app_transactions=[Transaction(pipeline.name, part[-1].seq)])
        write_deltalake(table, row_format.to_arrow(part), mode="append", commit_properties=stamp)


def life(state: StateTable, pipeline: Pipeline, topic_id: str, epochs: int) -> list[StateRow]:
    """The rows of that many committed checkpoints."""
    head, rows = Head(), []
    for epoch in range(1, epochs + 1):
        for row in _life(state, pipeline, topic_id, epoch, head):
            known: Checkpoint = known.apply(row) if row.event is not Event.PLANNED else first(row)  # noqa: F821
            head = head.after(row, known)
            rows.append(replace(row, head=head.to_json()))
    return rows


def _life(state: StateTable, pipeline: Pipeline, topic_id: str, epoch: int, head: Head) -> Iterator[StateRow]:
    start = START + (epoch - 1) * HOUR
    interval = Interval(start, start + HOUR) if pipeline.mode == "interval" else None
    ranges = [TopicRange("t", topic_id, {0: (0, 0)}).to_json()]
    planned = {"definition": pipeline.to_json(), "ranges": ranges}
    handle = {"folder": "staged-" + "x" * 80, "rows": 1, "app_id": "onceonly/" + "y" * 60}
    claim = {"nonce": "0" * 12, "state_id": state.id, "worker": "host:1"}
    events: list[tuple[Event, dict[str, object]]] = [
        (Event.PLANNED, {"owner": f"owner-{epoch - 1}", "interval": interval, "body": planned}),
        (Event.CLAIMED, {"attempt": 1, "body": claim}),
        (Event.STAGED, {"attempt": 1, "body": {"handles": {"s": handle}}}),
        (Event.COMMITTING, {"attempt": 1, "decision": epoch}),
        (Event.PUBLISHED, {"attempt": 1, "decision": epoch, "sink": "s", "body": {"already": False}}),
        (Event.COMMITTED, {"attempt": 1, "decision": epoch}),
    ]
    for offset, (event, columns) in enumerate(events, start=1):
        yield StateRow(
            pipeline=pipeline.name, seq=head.seq + offset, epoch=epoch, event=event, **{"attempt": 0} | columns
        )

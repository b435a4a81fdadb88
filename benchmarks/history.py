"""Plan + commit with 20,000 checkpoints of history against 10, on the real state table with fake sink and source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path

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
CHUNK = 2_000  # checkpoints in one generated file, about what tidying leaves


def history(folder: Path, epochs: int = 20_000, rounds: int = 15) -> Result:
    """One more checkpoint on a long history, and on a short one."""
    return Result(
        "History",
        "One more checkpoint on fakes (only the state table is written), by how many the pipeline has behind it.",
        [row for mode in ("chained", "interval") for row in _history(folder, mode, epochs, rounds)],
    )


def _history(folder: Path, mode: str, epochs: int, rounds: int) -> list[Row]:
    held = {f"{mode}, {number:,} epochs": steps(folder / f"{mode}-{number}", mode, number) for number in (epochs, 10)}
    sides = {name: partial(next, made) for name, made in held.items()}
    return against(alternate(sides, rounds, warm=3, unit="ms"))


def steps(folder: Path, mode: str, held: int) -> Iterator[None]:
    """After `held` checkpoints each step plans, stages (a fake: next to nothing) and commits one more."""
    folder.mkdir(parents=True)
    parts = FakeParts(folder)
    pipeline = Pipeline(name="p", source=KafkaSource("t"), transform="m:f", sinks=[DeltaSink("s", path="s")], mode=mode)
    source = parts.sources(pipeline)["t"]
    source.append(0, *[(START, "past")])
    state = StateTable.make(str(folder / "state"))
    generate(state, pipeline, source.log().topic_id, held)
    through = Coordinator(state, parts)
    for number in count(held):
        start = START + number * HOUR
        source.append(0, (start, "row"))
        interval = Interval(start, start + HOUR) if mode == "interval" else None
        planned = through.plan(pipeline, f"owner-{number}", lambda checkpoint: True, interval)
        assert planned.checkpoint is not None
        through.stage("p", planned.checkpoint.epoch, lambda checkpoint: {"s": ["row"]})
        through.commit("p", planned.checkpoint.epoch)
        yield


def generate(state: StateTable, pipeline: Pipeline, topic_id: str, epochs: int) -> None:
    """Committed checkpoints of one offset each, as the coordinator would have written them."""
    head, rows = Head(), []
    for epoch in range(1, epochs + 1):
        for row in _life(state, pipeline, topic_id, epoch, head):
            known: Checkpoint = known.apply(row) if row.event is not Event.PLANNED else first(row)  # noqa: F821
            head = head.after(row, known)
            rows.append(replace(row, head=head.to_json()))
        if epoch % CHUNK == 0 or epoch == epochs:
            table = location.open_(state.uri).table
            stamp = CommitProperties(app_transactions=[Transaction(pipeline.name, head.seq)])
            write_deltalake(table, row_format.to_arrow(rows), mode="append", commit_properties=stamp)
            rows = []


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

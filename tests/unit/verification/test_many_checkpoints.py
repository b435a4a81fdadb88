"""What a verification of many checkpoints costs: the state table is read once, and each target is asked once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from integration.projects.past import Past

from onceonly.checkpoint.verification import Depth, Finding, Judgement, Published, VerifiableTarget
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable.table import Snapshot, StateTable
from onceonly.verification.archive import Archive
from onceonly.verification.encoding import to_json
from onceonly.verification.verify import Verifier

SINKS = ("lake", "files", "mails")
CHECKPOINTS, RECORDS = 10_000, 1_000
START = datetime(2013, 1, 1, tzinfo=UTC)


class CountingTarget(VerifiableTarget):
    """A target that has all that was published to it, and counts how often it is listed."""

    def __init__(self, requests: Counter[str], name: str) -> None:
        self._requests, self._name = requests, name

    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        self._requests[self._name] += 1
        for publication in published:
            why = f"Its {publication.handle['rows']} rows are there, once."
            yield Finding(Judgement.RIGHT, "right", why, publication.epoch)


class CountingSource:
    def __init__(self, requests: Counter[str]) -> None:
        self._requests = requests

    def verify(self, ranges: Any) -> None:
        self._requests["source"] += 1


class CountingParts:
    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        return CountingTarget(self.requests, name)

    def sources(self, pipeline: Pipeline) -> Any:
        return {"flights": CountingSource(self.requests)}


def write_history(folder: Path, checkpoints: int) -> StateTable:
    """Write a state table whose checkpoints are all committed in three sinks, an hour each."""
    state = StateTable.make(str(folder / "state"))
    sinks = [DeltaSink(name, name) for name in SINKS]
    pipeline = Pipeline(name="flights", source=KafkaSource("flights"), transform="a:b", sinks=sinks)
    past, partitions = Past(state, pipeline), range(4)
    for number in range(checkpoints):
        epoch, at = number + 1, START + timedelta(hours=number)
        ends = {partition: (number * RECORDS, (number + 1) * RECORDS) for partition in partitions}
        past.plan(epoch, at, "cli:host:1", ends)
        past.claim(epoch, at)
        handle = {"kind": "delta", "folder": f"staged-{epoch}", "rows": 4 * RECORDS}
        past.stage(epoch, at, dict.fromkeys(SINKS, handle))
        past.decide(epoch, at)
        past.publish(epoch, at, *SINKS)
        past.commit(epoch, at)
    past.write()
    return state


@pytest.mark.slow
def test_many_checkpoints_take_seconds_and_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state, parts = write_history(tmp_path, CHECKPOINTS), CountingParts()
    reads: Counter[str] = Counter()
    history = Snapshot.history

    def counted(table: Snapshot, *arguments: Any) -> Any:
        reads["history"] += 1
        return history(table, *arguments)

    monkeypatch.setattr(Snapshot, "history", counted)
    archive = Archive(state.uri)
    for _ in range(2):
        parts.requests.clear()
        started = time.monotonic()
        verifier = Verifier(lambda: Snapshot(state.uri), parts)  # type: ignore[arg-type]
        result = verifier.verify("flights", earlier=archive.read_earlier("flights"))
        data = to_json(result)
        archive.append(data)
        seconds = time.monotonic() - started
        with capsys.disabled():
            print(f"\n{CHECKPOINTS:,} checkpoints in {len(SINKS)} sinks: {seconds:.1f} s, asked {dict(parts.requests)}")
        assert data["checkpoints"] == {"right": CHECKPOINTS, "wrong": 0, "unknown": 0}
        assert parts.requests == {"lake": 1, "files": 1, "mails": 1, "source": 1}
    assert reads == {"history": 2}  # one for each verification

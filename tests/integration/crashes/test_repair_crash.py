"""Killed at every durable step of a repair, of each kind, on real Delta, files and Kafka: each sink equals the truth.

A chain of processes, each SIGKILLed with its whole group at another point while it repairs another interval, each
finding what the one before left. What a repair keeps stays as it is, byte by byte.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from integration.faults.sampling import sampled, seconds, steps
from integration.programs.children import output
from integration.programs.repairing import child, live
from integration.projects.repairs import MORE, PER_INTERVAL, Shop, Truth
from integration.projects.targets import DELTA, FILES, NAME, TOPIC, Volumes

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.timeout(seconds(600))]
KILLED = -9

WISHES: dict[str, dict[str, list[str]]] = {
    "keep": {"keep": [FILES, TOPIC]},
    "optimized": {"keep": [FILES, TOPIC]},
    "again": {"again": [TOPIC]},
    "only": {"only": [MORE]},
    "lost": {"only": [DELTA]},
}
WRITTEN = {
    "keep": (DELTA,),
    "optimized": (DELTA,),
    "again": (DELTA, FILES, TOPIC),
    "only": (MORE,),
    "lost": (DELTA,),
}
WRITERS = {"again": "KafkaWriter", "only": "FileWriter"}  # of others: DeltaWriter


def points_of(kind: str) -> list[str]:
    """In an order in which each is reached: a discard is met only after a process died with a claim."""
    writer = WRITERS.get(kind, "DeltaWriter")
    names = ["planned row", "aborting row", "aborted row", "claimed row", f"discard of {writer}", f"stage of {writer}"]
    names += ["staged row", f"rehearse of {writer}", "committing row", f"commit of {writer}"]
    names += ["copy of others"] if kind == "optimized" else []  # in the rehearsal, and once more in the commit
    names += ["published row"]
    names += ["committed row", f"release of {writer}"]
    return [f"{side} {name}" for name in names for side in ("before", "after")]


# each step is met in one kind or another, each in an order in which it is reached
SAMPLE = {
    "keep": ["after claimed row", "before discard of DeltaWriter", "after stage of DeltaWriter"],
    "optimized": ["before copy of others", "after copy of others"],
    "again": ["before planned row", "after committing row", "before commit of KafkaWriter", "before committed row"],
    "only": ["before staged row", "after aborting row", "before aborted row", "after published row"],
    "lost": ["after planned row", "before rehearse of DeltaWriter", "after release of DeltaWriter"],
}


def test_the_sample_meets_every_step() -> None:
    """Whichever sink takes it."""
    sample = [point.partition(" of ")[0] for points in SAMPLE.values() for point in points]
    assert steps(sample) == steps(point.partition(" of ")[0] for kind in WISHES for point in points_of(kind))
    for kind, points in SAMPLE.items():
        assert set(points) <= set(points_of(kind))


@pytest.fixture
def shop(tmp_path: Path, broker: str) -> Iterator[Shop]:
    yield Shop(str(tmp_path), bootstrap=broker, out=f"copy-{uuid.uuid4().hex[:8]}").make()


@pytest.mark.parametrize("kind", WISHES)
def test_each_sink_is_the_truth_wherever_a_repair_dies(shop: Shop, kind: str) -> None:
    points, truth = sampled(points_of(kind), SAMPLE[kind]), Truth()
    intervals = range(1, 1 + len(points))
    shop.produce(range((1 + len(points)) * PER_INTERVAL))
    run_all(shop, truth, intervals, loses=kind == "lost")
    if kind == "optimized":
        assert shop.optimize() > len(points)  # rows of all checkpoints are in one file
    truth.check(shop, shop.sinks)
    kept = {sink: shop.digests(sink) for sink in shop.sinks if sink not in WRITTEN[kind]}

    repairing = replace(shop, version=1, has_more=kind == "only")
    works = [{"interval": number, "request": kind, "wish": WISHES[kind]} for number in intervals]
    for point, work in zip(points, works, strict=True):
        process = child(repairing, point, work)
        printed = output(process)
        assert process.returncode == KILLED, f"'{point}' was not reached: {printed}"
    live(repairing, *works, *works)  # the second time, nothing is left to do
    for number in intervals:
        truth.write(WRITTEN[kind], number, 1, again=(TOPIC,))
    truth.check(repairing, repairing.sinks)
    assert {sink: repairing.digests(sink) for sink in kept} == kept
    assert repairing.coordinator.state_table.view(NAME).open == []


def run_all(shop: Shop, truth: Truth, intervals: range, loses: bool) -> None:
    """Run interval 0, and then these; the table may lose all but the first one, which a person accepts."""
    works = [{"interval": number} for number in intervals]
    live(shop, {"interval": 0})
    volumes = Volumes(shop)
    volumes.copy(DELTA)
    live(shop, *works)
    for number in (0, *intervals):
        truth.write(shop.sinks, number, 0)
    if loses:
        volumes.restore(DELTA, "copy")
        live(shop, {"lost": DELTA})
        truth.versions[DELTA] = {0: [0]}

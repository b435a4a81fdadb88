"""A process that runs a chain of two pipelines, and SIGKILLs its own group at a named point.

Arguments: FOLDER SPARK MODE WHICH POINT SAID [HOUR …]. WHICH is 'first' (topic → table), 'second' (that table →
another one) or 'both'. SAID is the transform of the first; unless it is 'numbers', intervals are processed again. With
the point '-' a chain is run until nothing is left. Run by test_chain_crash.py.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from integration.faults.points import around, around_rows
from integration.projects.checkpoints import run_next
from integration.projects.project import Project, hour

from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource, KafkaSource
from onceonly.runtime import live_services, owners
from onceonly.sinks.delta.sink import DeltaWriter

MODE, WHICH, POINT, SAID = sys.argv[3:7]
HOURS = [int(number) for number in sys.argv[7:]]


def reach(point: str) -> None:
    if point == POINT:
        os.killpg(0, signal.SIGKILL)


def first(project: Project, said: str) -> Pipeline:
    return Pipeline(
        name="first",
        mode=MODE,
        source=KafkaSource(topic=project.topic, max_records=10 if MODE == "chained" else None),
        transform=f"transforms_{project.topic}:{said}",
        sinks=[DeltaSink("numbers", path="lake/first", partition_by=["part"])],
    )


def second(project: Project) -> Pipeline:
    return Pipeline(
        name="second",
        mode=MODE,
        source=DeltaSource("lake/first"),
        transform=f"transforms_{project.topic}:tenfold",
        sinks=[DeltaSink("numbers", path="lake/second")],
        after=["first"],
    )


def main() -> None:
    project = Project.found(*sys.argv[1:3])
    if WHICH == "second":  # it waits for what the first one has begun
        live_services.open_coordinator(project.parts).recover("first", owners.is_never_alive)
    around_rows(reach)
    for method in ("stage", "commit", "discard"):
        around(DeltaWriter, method, method, reach)
    chain = {"first": first(project, SAID), "second": second(project)}
    for pipeline in chain.values() if WHICH == "both" else [chain[WHICH]]:
        for interval in [hour(number) for number in HOURS] or [None]:
            while once(project, pipeline, interval) and MODE == "chained" and POINT == "-":
                pass


def once(project: Project, pipeline: Pipeline, interval: Any) -> bool:
    """Whether there was something to do."""
    done = run_next(project.parts, pipeline, interval, None if SAID == "numbers" else SAID)
    if done:
        print(f"{pipeline.name} epoch {done.epoch} {done.state.value}, after {dict(done.after)}")
    return done is not None


if __name__ == "__main__":
    main()

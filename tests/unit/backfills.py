"""Two pipelines, one behind the other, whose runs end anywhere: what a backfill of both leads to."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from unit.chain import MORE, NEXT, TEN, Chain

from onceonly.errors import Busy, InvalidPipeline
from onceonly.pipeline.definition import Pipeline

few = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
NAMES, STEPS = st.sampled_from(["first", "second"]), st.sampled_from(["plan", "stage", "decide", "run"])
RUNS = st.lists(st.tuples(NAMES, st.integers(0, 1), STEPS), max_size=7)  # whose, of which interval, until which step


def check_backfill(chain: Chain, runs: list[Any], *refused: type[Exception]) -> None:
    """After those runs. `refused`: what else a run may be told that cannot be done now."""
    chain.put(*range(20))
    for number, (name, which, until) in enumerate(runs):
        chain.added += 100
        interrupted(chain, getattr(chain, name), (TEN, NEXT)[which], f"request {number}", until, refused)
    chain.added += 100
    for pipeline in (chain.first, chain.second):
        for interval in (TEN, NEXT):
            chain.run(pipeline, interval, "backfill, 1")
    truth = [number + chain.added for number in range(20)]
    assert chain.rows("lake") == truth
    assert chain.rows("out") == [number + MORE for number in truth]


def interrupted(
    chain: Chain, pipeline: Pipeline, interval: Any, request: str, until: str, refused: tuple[type[Exception], ...]
) -> None:
    """A run that dies after that step."""
    owner = f"owner of {request}"
    try:
        planned = chain.plan(pipeline, interval, owner, request)
        if planned and until in ("stage", "run") and not planned.state.is_settled:
            chain.stage(planned)
        if planned and until == "run":
            chain.through.commit(pipeline.name, planned.epoch)
    except (Busy, InvalidPipeline, *refused):  # not published yet, or not known
        pass
    chain.ended.add(owner)

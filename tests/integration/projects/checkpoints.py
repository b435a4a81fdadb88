"""One whole checkpoint after another, as the commands of a process of its own would do it."""

from __future__ import annotations

import os
from typing import Any

from onceonly.checkpoint.model import Checkpoint
from onceonly.coordinator.reprocess import Reprocess
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime import live_services, owners, spark_stage


def run_next(parts: Any, pipeline: Pipeline, interval: Any = None, reprocess: str | None = None) -> Checkpoint | None:
    """Plan, stage and commit, whoever was at it before; None: there is nothing left to do."""
    through, owner = live_services.open_coordinator(parts), f"{owners.process_owner()} {os.urandom(4).hex()}"
    planned = through.plan(
        pipeline, owner, owners.is_never_alive, interval, reprocess and Reprocess(reprocess)
    ).checkpoint
    if planned is None or planned.state.is_settled:
        return None
    spark_stage.stage(parts, through, pipeline.name, planned.epoch, owner)
    return through.commit(pipeline.name, planned.epoch)


def ran(parts: Any, pipeline: Pipeline) -> bool:
    """As `run_next`, told; whether there was something to do."""
    done = run_next(parts, pipeline)
    if done:
        print(f"{pipeline.name} epoch {done.epoch} {done.state.value}")
    return done is not None

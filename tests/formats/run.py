"""A process that runs pipelines of the frozen project: one until a point, where it dies, or each until nothing is left.

Arguments: SPARK POINT PIPELINE …. The point '-' is never reached.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count

from formats.frozen import pipeline
from integration.faults.points import around_rows

from onceonly.runtime import live_services, owners, spark_stage
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings

NEVER = "-"
spark, point = sys.argv[1:3]
number = count(1)  # of a run: to plan again for the same owner is to plan nothing new


def reach(reached: str) -> None:
    if reached == point:
        os.killpg(0, signal.SIGKILL)


def run_checkpoint(services: LiveServices, name: str, abort: bool = False) -> bool:
    """Run the next checkpoint, or settle what is left; returns whether there was one to run."""
    coordinator, owner = live_services.open_coordinator(services), f"{owners.process_owner()}-{next(number)}"
    planned = coordinator.plan(pipeline(name), owner, owners.is_never_alive).checkpoint
    if planned is None:
        coordinator.recover(name, owners.is_never_alive)
        return False
    spark_stage.stage(services, coordinator, name, planned.epoch, owner)
    if abort:
        coordinator.abort(name, planned.epoch, "the formats are frozen with a checkpoint that is being aborted")
        return True
    if pipeline(name).gate:
        coordinator.gate(name, planned.epoch, owner)
    done = coordinator.commit(name, planned.epoch)
    print(f"{name} epoch {done.epoch} {done.state.value}", flush=True)
    return True


def main() -> None:
    services = LiveServices(Settings.from_env({**os.environ, "SPARK_REMOTE": spark}))
    for name in sys.argv[3:]:
        if point == NEVER:
            while run_checkpoint(services, name):
                pass
            continue
        run_checkpoint(services, name)
        around_rows(reach)
        run_checkpoint(services, name, abort="aborting" in point)


if __name__ == "__main__":
    main()

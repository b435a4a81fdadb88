"""A process that runs `everything` until nothing is left, while a test waits for its tasks and ends what runs them.

Arguments: SPARK TOPIC OUT FOLDER PLACE. Tasks of the first checkpoint wait, in FOLDER, where PLACE says: 'reading',
'writing' (to Kafka, in an open transaction), or 'alone' (as 'writing', and all copies of the first task wait, too).
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from integration.faults.holding import holding, waiting
from integration.projects import everything

from onceonly.errors import NotCommitted
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime import live_services, owners, spark_stage
from onceonly.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST = 2_000  # records of a checkpoint


def pipeline(topic: str, out: str) -> Pipeline:
    return everything.pipeline(topic, out, MOST, "integration.victims.on_fire:transform")


def transform(batch: DataFrame, state: DataFrame) -> tuple[dict[str, DataFrame], DataFrame]:
    folder = os.environ.get("WAIT_READING")
    return everything.transform(batch.mapInArrow(waiting(Path(folder)), batch.schema) if folder else batch, state)


def main() -> None:
    spark, topic, out, folder, place = sys.argv[1:]
    parts = live_services.LiveServices(Settings.from_env({**os.environ, "SPARK_REMOTE": spark}))
    with ExitStack() as until_end:
        if place == "reading":
            Path(folder).mkdir()
            os.environ["WAIT_READING"] = folder
        else:
            until_end.enter_context(holding(Path(folder), [0] if place == "alone" else []))
        for turn in count():
            if not run(parts, pipeline(topic, out), f"{owners.process_owner()}-{turn}"):
                return


def run(parts: Any, definition: Pipeline, owner: str) -> bool:
    """One checkpoint; whether there was one."""
    through = live_services.open_coordinator(parts)
    planned = through.plan(definition, owner, owners.is_never_alive).checkpoint
    if planned is None:
        through.recover(definition.name, owners.is_never_alive)
        return False
    staged(parts, through, definition.name, planned.epoch, owner)
    print(f"epoch {through.commit(definition.name, planned.epoch).epoch}", flush=True)
    return True


def staged(parts: Any, through: Any, name: str, epoch: int, owner: str) -> None:
    """A stage that fails is tried again, as Airflow does it."""
    while True:
        try:
            spark_stage.stage(parts, through, name, epoch, owner)
            return
        except NotCommitted as error:
            print(f"failed: {error}", flush=True)


if __name__ == "__main__":
    main()

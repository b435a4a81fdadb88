"""As `mortal_s3`, and Spark stages the rows. A process of this has its own Spark, which is killed with it.

Arguments: FOLDER ROOT. It says "ready" when its Spark is there, and begins when it is told to: no request before.
Run by test_s3_spark_crash.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from integration.victims import mortal_s3
from unit.lightdelta import no_spark

from onceonly.checkpoint.model import Checkpoint
from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.statetable.table import StateTable
from onceonly.storage import arbitration
from onceonly.testing.fakes import FakeParts


class SparkParts(mortal_s3.Parts):
    def __init__(self, folder: Path, root: str, spark: Any) -> None:
        super().__init__(folder, root)
        self.spark = spark

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        uri = f"{self.root}/{name}"
        return DeltaWriter(DeltaSink(name, uri, partition_by=["day"]), uri, no_spark)

    def produce(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Each sink gets the same rows, in two files at least."""
        rows = {name: [row["value"] for row in found] for name, found in FakeParts.produce(self, checkpoint).items()}
        return {name: self._frame(values) for name, values in rows.items()}

    def _frame(self, values: list[int]) -> Any:
        made = self.spark.createDataFrame([(value,) for value in values], "n BIGINT")
        return made.selectExpr("n", "CAST(n % 2 AS INT) AS day").repartition(2, "day")


def coordinator(folder: Path, root: str, spark: Any) -> Coordinator:
    return Coordinator(StateTable(f"{root}/state"), SparkParts(folder, root, spark))


def run(folder: Path, root: str, spark: Any, sinks: tuple[str, ...] = mortal_s3.SINKS) -> bool:
    """Settle what others have left, and do the next checkpoint; whether there was one."""
    through, owner = coordinator(folder, root, spark), f"run {os.getpid()} {os.urandom(4).hex()}"
    planned = through.plan(mortal_s3.flights(*sinks), owner, lambda checkpoint: False).checkpoint
    if planned is None or planned.state.is_settled:
        return False
    through.stage("flights", planned.epoch, through.parts.produce, owner)  # type: ignore[attr-defined]
    through.commit("flights", planned.epoch)
    return True


def settle(folder: Path, root: str, spark: Any) -> None:
    """Until nothing is left."""
    while run(folder, root, spark):
        pass


def main() -> None:
    from onceonly.settings import Settings
    from onceonly.spark.session import session

    spark = session(Settings.from_env(), {"spark.master": "local[2]"}, records=0)  # as for few: it starts sooner
    spark.range(1).collect()
    arbitration.require_put_if_absent(sys.argv[2])  # or the first stage would do it
    print("ready", flush=True)
    sys.stdin.readline()
    settle(Path(sys.argv[1]), sys.argv[2], spark)


if __name__ == "__main__":
    main()

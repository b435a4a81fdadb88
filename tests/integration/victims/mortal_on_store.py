"""A process with a Spark of its own, of which all that it keeps and writes is on an object store.

Arguments: FOLDER SPARK POINT OUT ROOT. It SIGKILLs its own group, Spark with it, at the point; with the point '-' it
runs until nothing is left. Run by test_all_on_stores.py.
"""

from __future__ import annotations

import os
import signal
import sys

from integration.faults.points import around, around_rows
from integration.projects.project import Project

from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services, owners, spark_stage
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.files.sink import FileWriter
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.state.sink import StateWriter
from onceonly.storage.folders import Folders


def pipeline(topic: str, out: str, root: str) -> Pipeline:
    gate = Gate(suites={"numbers": "numbers.expectations.json"})
    return Pipeline(
        name="all_on_store",
        source=KafkaSource(topic=topic, max_records=10),
        transform="of_store:parted",
        sinks=[
            DeltaSink("numbers", path=f"{root}/numbers", partition_by=["part"]),
            FileSink("files", path=f"{root}/files", format="json", partition_by=["part"]),
            KafkaSink(name="copy", topic=out),
            StateSink("totals", schema="part STRING, seen BIGINT", key=["part"], path=f"{root}/totals"),
        ],
        gate=gate,
    )


def reach(point: str) -> None:
    if point == sys.argv[3]:
        os.killpg(0, signal.SIGKILL)


def main() -> None:
    around_rows(reach)
    for kind in (DeltaWriter, FileWriter, KafkaWriter, StateWriter):
        for method in ("stage", "commit"):
            around(kind, method, f"{method} of {kind.__name__}", reach)
    around(Folders, "delete", "delete", reach)
    project = Project.found(sys.argv[1], sys.argv[2])
    parts = LiveServices(Settings.from_env())
    plan = pipeline(project.topic, *sys.argv[4:6])
    while done := one(parts, plan):
        print(done, flush=True)
    live_services.open_coordinator(parts).recover(plan.name, owners.is_never_alive)


def one(parts: LiveServices, plan: Pipeline) -> str | None:
    through, owner = live_services.open_coordinator(parts), f"{owners.process_owner()} {os.urandom(4).hex()}"
    planned = through.plan(plan, owner, owners.is_never_alive).checkpoint
    if planned is None or planned.state.is_settled:
        return None
    spark_stage.stage(parts, through, plan.name, planned.epoch, owner)
    through.gate(plan.name, planned.epoch, owner)
    return f"epoch {through.commit(plan.name, planned.epoch).epoch}"


if __name__ == "__main__":
    main()

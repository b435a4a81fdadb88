"""A process that copies numbers from a topic into a table, and is hit by a fault at one of its points.

Arguments: HOME TABLE POINT FAULT SERVER. POINT is the number of the point, counted from 1; 0: nothing happens. FAULT is
'dies', 'stops' or 'server' (the server is killed, whose process is SERVER). It prints each point that it reaches.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from arrow_rows import ArrowRows, number_rows
from integration.faults.points import around, around_rows
from integration.services.postgres import kill_server

from onceonly import KafkaSource, Pipeline
from onceonly.checkpoint.model import Checkpoint
from onceonly.runtime import live_services, owners
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.testing.fakes import FakeParts, FakeSource
from onceonly_postgres import PostgresSink, publish, staging_tables
from onceonly_postgres.ledger import Ledger
from onceonly_postgres.writer import PostgresWriter

TOPIC = "numbers"
CONNECTION = "shop_database"
MAX_RECORDS = 10


@dataclass
class Parts(LiveServices):
    """Live sinks, and fake topics."""

    def sources(self, pipeline: Pipeline) -> Mapping[str, FakeSource]:  # type: ignore[override]
        return {TOPIC: FakeSource(TOPIC, self.settings.home)}


def make_pipeline(table: str) -> Pipeline:
    sink = PostgresSink("lake", table, CONNECTION, schema=f"onceonly_{table}")
    source = KafkaSource(TOPIC, max_records=MAX_RECORDS)
    return Pipeline(name=TOPIC, source=source, transform="jobs:same", sinks=[sink])


def make_parts(home: Path) -> Parts:
    return Parts(Settings.from_env({"ONCEONLY_HOME": str(home), "ONCEONLY_PROJECT": str(home)}))


def produce(parts: Parts, checkpoint: Checkpoint) -> dict[str, Any]:
    numbers = []
    for rows in FakeParts(parts.settings.home).produce(checkpoint).values():
        numbers += [row["value"] for row in rows]
    return {"lake": number_rows(*numbers) if numbers else ArrowRows()}


def run(parts: Parts, pipeline: Pipeline) -> None:
    """Checkpoint after checkpoint until nothing is left; what others have left is settled."""
    turn = 0
    while True:
        turn += 1
        coordinator = live_services.open_planner(parts)
        owner = f"{owners.process_owner()}-{turn}"
        planned = coordinator.plan(pipeline, owner, owners.is_never_alive).checkpoint
        if planned is None:
            coordinator.recover(pipeline.name, owners.is_never_alive)
            return
        coordinator.stage(pipeline.name, planned.epoch, lambda checkpoint: produce(parts, checkpoint))
        coordinator.commit(pipeline.name, planned.epoch)


def main() -> None:
    home, table, point, fault, server = sys.argv[1:]
    points: list[str] = []

    def reach(name: str) -> None:
        points.append(name)
        print(f"{len(points)} {name}", flush=True)
        if len(points) != int(point):
            return
        if fault == "server":
            kill_server(int(server))
        else:
            os.killpg(0, {"dies": signal.SIGKILL, "stops": signal.SIGSTOP}[fault])

    around_rows(reach)
    around(staging_tables, "fill", "a staging table", reach)  # type: ignore[arg-type]
    around(publish, "publish_rows", "rows", reach)  # type: ignore[arg-type]
    around(publish, "drop_staged", "drop", reach)  # type: ignore[arg-type]
    around(Ledger, "lock", "lock", reach)
    around(Ledger, "publish", "ledger", reach)
    around(PostgresWriter, "rehearse", "rehearsal", reach)
    around(PostgresWriter, "commit", "commit", reach)
    around(psycopg.Connection, "commit", "COMMIT", reach)
    run(make_parts(Path(home)), make_pipeline(table))


if __name__ == "__main__":
    main()

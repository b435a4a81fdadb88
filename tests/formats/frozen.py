"""The project whose state folder, targets, spools and broker are kept as data: one pipeline per state of a checkpoint.

Each pipeline has committed one checkpoint, and was killed in the next one. Paths in a state table are absolute, so the
data is made and finished in one place.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink
from onceonly.pipeline.sources import KafkaSource

HOME = Path("/tmp/onceonly-formats")
ARCHIVES = Path(__file__).parent
SOURCE = "numbers"
PARTITIONS = 2
RECORDS_PER_CHECKPOINT = 10
CHECKPOINTS = 3  # one that is committed, one that is open, one that a later version plans
NUMBERS = range(RECORDS_PER_CHECKPOINT * CHECKPOINTS)
KEYS = 4
POINTS = {  # pipeline -> where its second checkpoint was killed, by tests/integration/faults/points.py
    "planned": "after planned row",
    "claimed": "after claimed row",
    "staging": "before staged row",
    "staged": "after staged row",
    "judged": "after verdict row",
    "decided": "after committing row",
    "publishing": "after published row",
    "aborting": "after aborting row",
}
TRANSFORM = """
def spread(batch, state):
    numbers = batch.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n")
    added = numbers.selectExpr("CAST(n % 4 AS INT) AS key", "n AS total").unionAll(state.select("key", "total"))
    sums = added.groupBy("key").sum("total").toDF("key", "total")
    return {"table": numbers, "files": numbers, "topic": batch.select("key", "value", "partition")}, sums
"""


def pipeline(name: str) -> Pipeline:
    return Pipeline(
        name=name,
        source=KafkaSource(SOURCE, max_records=RECORDS_PER_CHECKPOINT),
        transform="spreading:spread",
        sinks=[
            DeltaSink("table", path=f"lake/{name}/table"),
            FileSink("files", path=f"lake/{name}/files", format="parquet"),
            KafkaSink(name="topic", topic=f"out-{name}"),
            StateSink("sums", schema="key INT, total BIGINT", key=["key"]),
        ],
        gate=Gate(min_rows={"table": 1}) if name == "judged" else None,
    )


def environment(bootstrap: str) -> dict[str, str]:
    tests = ARCHIVES.parent
    return {
        "ONCEONLY_HOME": str(HOME),
        "ONCEONLY_PROJECT": str(HOME / "project"),
        "ONCEONLY_KAFKA_BOOTSTRAP": bootstrap,
        "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")]),
    }


def expected_sums() -> dict[int, int]:
    sums: Counter[int] = Counter()
    for number in NUMBERS:
        sums[number % KEYS] += number
    return dict(sums)

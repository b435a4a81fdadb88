"""A Structured Streaming query that reads a project's topic into its table, by Spark's own sources and sinks.

Arguments: FOLDER SPARK ENDS. It has a Spark of its own, which dies with it, and runs small batches until it is killed;
where ENDS is 'ends', larger ones until it has read all that is there.
"""

from __future__ import annotations

import sys

from integration.projects.project import Project

from onceonly.settings import Settings
from onceonly.spark.session import session

SMALL, LARGE = 8, 150  # records in one batch, at most


def run(project: Project, ends: bool) -> None:
    spark = session(Settings.from_env(project.env()), {"spark.master": "local[2]", "spark.ui.enabled": "false"})
    options = {
        "kafka.bootstrap.servers": project.bootstrap,
        "subscribe": project.topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(LARGE if ends else SMALL),
    }
    records = spark.readStream.format("kafka").options(**options).load()
    rows = records.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n", "CAST(partition AS STRING) AS part")
    writer = rows.writeStream.format("delta").partitionBy("part")
    writer = writer.option("checkpointLocation", str(project.folder / "checkpoint"))
    if ends:
        writer = writer.trigger(availableNow=True)
    writer.start(str(project.folder / "home" / "lake" / "chained")).awaitTermination()


if __name__ == "__main__":
    run(Project.found(sys.argv[1], sys.argv[2]), sys.argv[3] == "ends")

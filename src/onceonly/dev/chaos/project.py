"""The project of a chaos run: a topic of numbers, moved to a Delta table, a folder of files and another topic."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from onceonly.settings import Settings

PIPELINE, RECOVERY = "chaos", "chaos_recovery"
SOURCE, COPY = "numbers", "copy"  # topics
TABLE, FILES = "table", "files"  # sinks, beside the topic's
COLUMN = "n"
PARTITION_COUNT = 4
MAX_RECORDS = 1_000  # of a checkpoint
DEFINITION = f'''"""Numbers of a topic, each once in a table, in files and in another topic."""

from onceonly import DeltaSink, FileSink, KafkaSink, KafkaSource, Pipeline

{PIPELINE} = Pipeline(
    name="{PIPELINE}",
    source=KafkaSource(topic="{SOURCE}", max_records={MAX_RECORDS}),
    transform="moves:spread",
    sinks=[
        DeltaSink("{TABLE}", path="lake/table"),
        FileSink("{FILES}", path="lake/files", format="json"),
        KafkaSink("{COPY}", topic="{COPY}"),
    ],
)
'''
TRANSFORM = f'''def spread(batch):
    numbers = batch.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS {COLUMN}")
    return {{"{TABLE}": numbers, "{FILES}": numbers, "{COPY}": batch.select("key", "value", "timestamp", "partition")}}
'''
DAG = f'''"""The pipeline as a DAG, and the one that settles what ended runs left behind."""

from datetime import datetime, timedelta

from {PIPELINE}_pipeline import {PIPELINE}

from onceonly.airflow import checkpoint_dag, recovery_dag

RETRIES = {{"retry_delay": timedelta(seconds=2), "retries": 1}}
dag = checkpoint_dag({PIPELINE}, schedule=None, start_date=datetime(2026, 1, 1), default_args=RETRIES)
recovery = recovery_dag("{RECOVERY}", schedule=None, start_date=datetime(2026, 1, 1), default_args=RETRIES)
'''


@dataclass(frozen=True)
class ChaosProject:
    """Its files below one folder.

    Args:
        folder: of the whole run.
    """

    folder: Path

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def disk(self) -> Path:
        """What can be full: state, staged rows and targets."""
        return self.folder / "disk"

    @property
    def home(self) -> Path:
        return self.disk / "home"

    @property
    def table(self) -> Path:
        return self.home / "lake" / "table"

    @property
    def files(self) -> Path:
        return self.home / "lake" / "files"

    @property
    def pipeline_file(self) -> Path:
        return self.project / "dags" / f"{PIPELINE}_pipeline.py"

    def write(self) -> None:
        """Write the pipeline, its transform and its DAG."""
        (self.project / "dags").mkdir(parents=True)
        self.pipeline_file.write_text(DEFINITION)
        (self.project / "moves.py").write_text(TRANSFORM)
        (self.project / "dags" / f"{PIPELINE}_dag.py").write_text(DAG)
        self.home.mkdir(parents=True, exist_ok=True)

    def environment(self, bootstrap: str, spark: str, token: str) -> dict[str, str]:
        """Return the environment of its processes: that of this one without settings of other projects."""
        environment = {}
        for name, value in os.environ.items():
            if name == "ONCEONLY_JARS" or not name.startswith(("ONCEONLY_", "SPARK_")):
                environment[name] = value
        return environment | {
            "ONCEONLY_HOME": str(self.home),
            "ONCEONLY_PROJECT": str(self.project),
            "ONCEONLY_KAFKA_BOOTSTRAP": bootstrap,
            "SPARK_REMOTE": spark,
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self.project), os.environ.get("PYTHONPATH", "")))),
        }

    def settings(self, bootstrap: str) -> Settings:
        return Settings.from_env(
            {
                "ONCEONLY_HOME": str(self.home),
                "ONCEONLY_PROJECT": str(self.project),
                "ONCEONLY_KAFKA_BOOTSTRAP": bootstrap,
            }
        )

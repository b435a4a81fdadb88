"""A Kafka sink that stages without Spark, so that tests of what is decided about it need a broker alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from xxhash64 import xxhash64

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.kafka.connection import KafkaConnection
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka import digest, gate_view, python_writer, stage
from onceonly.sinks.kafka.job import Job
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.staging.checked_sink import with_checked_handles
from onceonly.testing.fakes import FakeParts

FIRST_SEED = 42  # of Spark's hash
PARTS = 2  # in place of Spark's partitions
SCHEMA = {"type": "struct", "fields": [{"name": "value", "type": "string", "nullable": True, "metadata": {}}]}


class LightKafka(KafkaWriter):
    """Rows have a field `value`, a number, which is also what decides about the partition."""

    partitions = 2

    def stage(self, txn: Transaction, rows: Iterable[Mapping[str, Any]], is_small_batch: bool = False) -> Handle:
        with (
            patch.object(stage, "records", lambda config, given, *_: given),
            patch.object(stage, "run", self._run),
            patch.object(gate_view, "staged_schema", lambda *_: SCHEMA),
        ):
            return super().stage(txn, [int(row["value"]) for row in rows])

    def _run(self, job: Job, values: list[int], *_: object) -> stage.Staged:
        receipts = (python_writer._stage_part(job, part, self._batches(values[part::PARTS])) for part in range(PARTS))
        total = sum(xxhash64(str(value).encode(), FIRST_SEED) for value in values)
        return stage.Staged("python", [receipt for receipt in receipts if receipt], digest.to_text(total))

    def _batches(self, values: list[int]) -> list[pa.RecordBatch]:
        columns = {
            "value": pa.array([str(value).encode() for value in values], pa.binary()),
            "partition": pa.array([value % self.partitions for value in values], pa.int32()),
        }
        return [pa.RecordBatch.from_pydict(columns)] if values else []


class KafkaParts(FakeParts):
    """As fake parts, with Kafka sinks on real brokers."""

    def __init__(self, folder: Path, late: bool = False) -> None:
        super().__init__(folder)
        self.late = late

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        config = pipeline.sink(name)
        if not isinstance(config, KafkaSink):
            return super().sink(pipeline, name)
        connection = KafkaConnection.plaintext(str(config.bootstrap))
        return with_checked_handles(
            LightKafka(config, connection, self.late, str(self.folder / "spool"), self.folder), "kafka"
        )

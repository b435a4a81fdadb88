"""Flights into every kind of sink at once: a table, a topic, files, and hours that stay open from run to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.windows import state_key, state_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def pipeline(
    topic: str, out: str, most: int = 900, transform: str = "integration.projects.everything:transform"
) -> Pipeline:
    return Pipeline(
        name="everything",
        source=KafkaSource(topic=topic, format="avro", schema="schemas/flight.v1.avsc", max_records=most),
        transform=transform,
        sinks=[
            DeltaSink("flights", path="lake/flights", partition_by=["day"]),
            KafkaSink(name="late", topic=out, format="avro", schema="schemas/late-flight.v1.avsc", ids="pool"),
            FileSink("delays", path="lake/delays", partition_by=["day"]),
            StateSink(
                "open_hours",
                schema=state_schema("carrier STRING", "flights BIGINT, departed BIGINT, minutes BIGINT, worst INT"),
                key=state_key("carrier"),
            ),
        ],
    )


def transform(batch: DataFrame, state: DataFrame) -> tuple[dict[str, DataFrame], DataFrame]:
    from jobs.delays import by_hour
    from jobs.flights import clean_and_late

    outputs, changes = by_hour(batch, state)
    return {**clean_and_late(batch), "delays": outputs["delays"]}, changes

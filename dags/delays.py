"""Departure delays per carrier and hour, in Parquet files by day: hours stay open across checkpoints, in the state."""

from datetime import datetime

from onceonly import FileSink, Gate, KafkaSource, Pipeline, StateSink
from onceonly.airflow import checkpoint_dag
from onceonly.windows import state_key, state_schema

delays = Pipeline(
    name="delays",
    source=KafkaSource(topic="flights", format="avro", schema="schemas/flight.v1.avsc", max_records=30_000),
    transform="jobs.delays:by_hour",
    sinks=[
        FileSink("delays", path="lake/delays", partition_by=["day"]),
        FileSink("too_late", path="lake/delays-too-late", format="json"),
        StateSink(
            "open_hours",
            schema=state_schema("carrier STRING", "flights BIGINT, departed BIGINT, minutes BIGINT, worst INT"),
            key=state_key("carrier"),
        ),
    ],
    gate=Gate(suites={"delays": "schemas/delays.expectations.json"}),
)
dag = checkpoint_dag(delays, schedule=None, start_date=datetime(2013, 1, 1))

"""For the trials alone: January by the schedule, in intervals and in capped checkpoints that catch up."""

from datetime import datetime

from onceonly.airflow import checkpoint_dag
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource

overlap_daily = Pipeline(
    name="overlap_daily",
    mode="interval",
    source=KafkaSource(topic="flights", format="avro", schema="schemas/flight.v1.avsc"),
    transform="jobs.flights:clean",
    sinks=[DeltaSink("overlap_daily", path="lake/overlap_daily")],
)
daily = checkpoint_dag(
    overlap_daily,
    schedule="@daily",
    start_date=datetime(2013, 1, 1),
    end_date=datetime(2013, 1, 31),
    catchup=True,
    max_active_runs=4,
)
overlap_capped = Pipeline(
    name="overlap_capped",
    mode="chained",
    source=KafkaSource(topic="flights", format="avro", schema="schemas/flight.v1.avsc", max_records=3_000),
    transform="jobs.flights:clean",
    sinks=[DeltaSink("flights", path="lake/flights")],  # the table that DAG flights_by_day is scheduled on
)
capped = checkpoint_dag(
    overlap_capped,
    schedule="@daily",
    start_date=datetime(2013, 1, 1),
    end_date=datetime(2013, 1, 12),
    catchup=True,
)

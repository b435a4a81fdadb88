"""The same flights day by day: each run covers its data interval, so days can be backfilled in any order."""

from datetime import datetime

from onceonly import DeltaSink, KafkaSource, Pipeline
from onceonly.airflow import checkpoint_dag

flights_daily = Pipeline(
    name="flights_daily",
    mode="interval",
    source=KafkaSource(topic="flights", format="avro", schema="schemas/flight.v1.avsc"),
    transform="jobs.flights:clean",
    sinks=[DeltaSink("flights_daily", path="lake/flights_daily")],
)
dag = checkpoint_dag(
    flights_daily,
    schedule="@daily",
    start_date=datetime(2013, 1, 1),
    end_date=datetime(2014, 1, 1),  # New Year's Eve in New York ends at 05:00 UTC
    catchup=False,  # to try out: unpaused, it does not begin with 365 runs; days are asked for by `airflow backfill`
)

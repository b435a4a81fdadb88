"""Every flight of the topic, cleaned, in a Delta table by day; each checkpoint goes on where the last one ended."""

from datetime import datetime

from onceonly.airflow import checkpoint_dag
from onceonly.pipeline import DeltaSink, KafkaSource, Pipeline

flights = Pipeline(
    name="flights",
    mode="chained",
    source=KafkaSource(topic="flights", format="avro", schema="schemas/flight.v1.avsc", max_records=6_000),
    transform="jobs.flights:clean",
    sinks=[DeltaSink("flights", path="lake/flights", partition_by=["day"])],
)
dag = checkpoint_dag(flights, schedule=None, start_date=datetime(2013, 1, 1))

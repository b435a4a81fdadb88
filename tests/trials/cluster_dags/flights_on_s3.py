"""The pipeline of dags/flights.py, into a table on S3; and the recovery."""

from datetime import datetime

from onceonly import DeltaSink, KafkaSink, KafkaSource, Pipeline
from onceonly.airflow import checkpoint_dag, recovery_dag

flights = Pipeline(
    name="flights",
    mode="chained",
    source=KafkaSource(topic="flights", format="avro", schema="schemas/flight.v1.avsc", max_records=12_000),
    transform="jobs.flights:clean_and_late",
    sinks=[
        DeltaSink("flights", path="s3://lake/flights", partition_by=["day"]),
        KafkaSink(name="late", topic="late-flights", format="avro", schema="schemas/late-flight.v1.avsc"),
    ],
)
dag = checkpoint_dag(flights, schedule=None, start_date=datetime(2013, 1, 1))
recovery = recovery_dag()

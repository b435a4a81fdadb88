"""Every flight of the topic, cleaned, in a Delta table by day, and an event in Kafka for each that left late.

Each checkpoint goes on where the last one ended; both outputs are published by one decision.
"""

from datetime import datetime

from onceonly import DeltaSink, KafkaSink, KafkaSource, Pipeline
from onceonly.airflow import checkpoint_dag

flights = Pipeline(
    name="flights",
    mode="chained",
    source=KafkaSource(topic="flights", format="avro", schema="schemas/flight.v1.avsc", max_records=6_000),
    transform="jobs.flights:clean_and_late",
    sinks=[
        DeltaSink("flights", path="lake/flights", partition_by=["day"]),
        KafkaSink(name="late", topic="late-flights", format="avro", schema="schemas/late-flight.v1.avsc"),
    ],
)
dag = checkpoint_dag(flights, schedule=None, start_date=datetime(2013, 1, 1))

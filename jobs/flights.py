"""Flights as they are decoded from the topic, made into a table that people can query."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def clean(batch: DataFrame) -> DataFrame:
    """One row per flight.

    `day` is the UTC day of the scheduled departure, so that an Airflow daily interval is exactly one partition.
    Delays are in minutes (below 0: early) and null for flights that never left, or never arrived where they should.
    """
    flight = batch.select("value.*")
    scheduled = F.col("time_hour") + F.make_dt_interval(mins=F.col("minute"))
    return flight.select(
        F.to_date("time_hour").alias("day"),
        scheduled.alias("scheduled"),
        "carrier",
        "flight",
        F.col("tailnum").alias("tail_number"),
        "origin",
        F.col("dest").alias("destination"),
        F.col("dep_delay").alias("departure_delay"),
        F.col("arr_delay").alias("arrival_delay"),
        F.col("dep_time").isNull().alias("cancelled"),
        F.col("air_time").alias("air_minutes"),
        F.col("distance").alias("miles"),
    )


def clean_and_late(batch: DataFrame) -> dict[str, DataFrame]:
    """The table of all flights, and an event for each that left more than an hour late."""
    flights = clean(batch)
    return {"flights": flights, "late": late(flights)}


def late(flights: DataFrame) -> DataFrame:
    """Records for Kafka; `value` as schemas/late-flight.v1.avsc has it."""
    event = F.struct("scheduled", "carrier", "flight", "origin", "destination", "departure_delay")
    return flights.where("departure_delay > 60").select(
        F.col("carrier").alias("key"), event.alias("value"), F.col("scheduled").alias("timestamp")
    )

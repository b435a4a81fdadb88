"""How late each carrier left, hour by hour, once nothing more of the hour is to come."""

from datetime import timedelta

from jobs.flights import clean
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onceonly.windows import Tumbling, Windows, count, most, sum_of

hours = Windows(
    time="scheduled",
    key=["carrier"],
    by=Tumbling(timedelta(hours=1)),
    values={
        "flights": count(),
        "departed": count("departure_delay"),
        "minutes": sum_of("departure_delay"),
        "worst": most("departure_delay"),
    },
    lateness=timedelta(days=2),  # a checkpoint takes more days of one partition than of another
)


def by_hour(batch: DataFrame, state: DataFrame) -> tuple[dict[str, DataFrame], DataFrame]:
    """Hours that are over, flights that came after theirs was, and what to remember."""
    seen = hours.add(clean(batch).select("carrier", "flight", "scheduled", "departure_delay"), state)
    return {"delays": tidy(seen.closed), "too_late": seen.late}, seen.changes


def tidy(hours: DataFrame) -> DataFrame:
    """`hour` and `day` are UTC; delays are in minutes."""
    return hours.select(
        "carrier",
        F.to_date("window_start").alias("day"),
        F.col("window_start").alias("hour"),
        "flights",
        "departed",
        "minutes",
        "worst",
    )

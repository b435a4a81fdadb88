"""A shop's orders and customers as they are decoded from their topics, made into tables."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def tables(batches: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """Orders, the changes of customers, and orders that no shop can have had, as dead letters."""
    orders = batches["orders"].where("value IS NOT NULL")
    refused = F.col("value.cents") < 0
    return {
        "orders": placed(orders.where(~refused)),
        "customers": changes(batches["customers"]),
        "dead_letters": orders.where(refused).select(
            "topic", "partition", "offset", F.lit("cents is negative").alias("error")
        ),
    }


def placed(orders: DataFrame) -> DataFrame:
    """One row per order; `day` is the UTC day on which it was placed."""
    return orders.select(F.to_date("value.placed").alias("day"), "value.*")


def changes(batch: DataFrame) -> DataFrame:
    """One row per change of a customer: the whole customer, as of that version."""
    return batch.where("value IS NOT NULL").select("value.*")


def revenue(orders: DataFrame, totals: DataFrame) -> tuple[dict[str, DataFrame], DataFrame]:
    """What each day of these orders amounts to with all orders before: for the table, and to remember."""
    new = orders.groupBy("day").agg(F.count("*").alias("more"), F.sum("cents").alias("money"))
    sums = (F.col("more") + F.coalesce("orders", F.lit(0)), F.col("money") + F.coalesce("cents", F.lit(0)))
    days = new.join(totals, "day", "left").select("day", sums[0].alias("orders"), sums[1].alias("cents"))
    return {"revenue": days}, days

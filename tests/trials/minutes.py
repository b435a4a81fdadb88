"""What the pipelines of the outage make of their records."""

from pyspark.sql import DataFrame


def numbers(batch: DataFrame) -> DataFrame:
    return batch.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n")

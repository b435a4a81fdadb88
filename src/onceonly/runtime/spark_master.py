"""Whether the standalone master of a connection answers: Spark itself waits a minute, and then does not name it."""

from __future__ import annotations

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.runtime.spark_connection import SparkConnection
from onceonly.spark import check


def require_master(spark: SparkConnection) -> None:
    """Refuse a standalone master at whose address nothing accepts connections; of other masters, nothing is known.

    Raises:
        NotCommitted: with the address and the connection that names it.
    """
    if spark.remote or not spark.master.startswith("spark://"):
        return
    try:
        check.check_server(spark.master, _name_connection(spark))
    except InvalidPipeline as error:
        raise no_master_error(spark, error.why) from error


def no_master_error(spark: SparkConnection, why: str) -> NotCommitted:
    """Return the error of a connection whose master does not answer. `why`: which may name the connection."""
    name = _name_connection(spark)
    return NotCommitted(
        f"no Spark master answers at {check.hide_login(spark.master)}.",
        why if name in why else f"{name} names it. {why}",
        "Start it, or correct the host and port of that connection. Nothing was written. This is safe to retry.",
        code="spark-unreachable",
    )


def _name_connection(spark: SparkConnection) -> str:
    return f"the Airflow connection '{spark.connection}'" if spark.connection else "spark-submit's --master"

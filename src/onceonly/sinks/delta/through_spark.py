"""Publishing through Spark, for tables that delta-rs cannot write and for tables altered since the rows were staged.

Spark appends the staged rows with `txnAppId`/`txnVersion`, Delta's own idempotent write: it passes over a version that
is not above the one it finds, and does not say so. What became of it is looked up afterwards. On a local disk Delta's
log store is safe only within one JVM: there a publisher through Spark has the table for itself (`deltalock`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deltalake import DeltaTable

from onceonly.checkpoint.model import Handle, Outcome
from onceonly.errors import CannotPublish, InvalidPipeline, OutcomeUnknown
from onceonly.sinks.delta import lock, schema
from onceonly.sinks.delta.stage import spark_uri

Session = Callable[[], Any]
LOG_STORES = ("spark.delta.logStore.s3a.impl", "spark.delta.logStore.class")
REFUSALS = ("SCHEMA", "CONSTRAINT", "MISMATCH", "NOT_NULL", "MERGE_FIELDS")  # in the names of Delta's errors
UNSAFE = "S3SingleDriverLogStore"  # Delta's default on S3


def refuse_unsafe(sink: str, uri: str, spark: Session) -> None:
    """Raises InvalidPipeline where Spark's log store would let the last of two writers win. Asks Spark on S3 only."""
    if why := _against(uri, spark):
        raise InvalidPipeline(
            f"sink '{sink}': {uri} cannot be published to.",
            f"The table has to be written through Spark. {why}",
            f"Set {LOG_STORES[0]} to one that arbitrates between writers (S3DynamoDBLogStore). Nothing was written.",
        )


def publish(
    spark: Session, sink: str, uri: str, handle: Handle, version: int, shown: Callable[[], Outcome | None]
) -> Outcome:
    """Append the staged rows by Spark, once.

    Args:
        shown: looks at the target again; raises if the rows must not be published.
    Raises:
        CannotPublish: the table as it is now refuses the rows (schema, constraint), or Spark is not safe there.
        OutcomeUnknown: Spark failed otherwise; safe to call again.
    """
    if why := _against(uri, spark):
        raise _refused(sink, uri, handle, f"The rows have to be written through Spark. {why}")
    with lock.alone(uri):
        if done := shown():
            return done
        try:
            rows = spark().read.format("delta").load(spark_uri(f"{uri.rstrip('/')}/{handle['folder']}"))
            _append(rows.drop(*handle.get("left_out", ())), uri, handle["app_id"], version, "widened" in handle)
        except Exception as error:
            raise _explained(error, sink, uri, handle) from error
        if shown() is None:
            raise _unknown(sink, uri, "Spark reported no failure, and the table does not show the commit.")
    return Outcome(detail={"rows": handle["rows"], "through": "spark"})


def mark(spark: Session, sink: str, uri: str, target: DeltaTable, app_id: str, version: int) -> None:
    """A commit without rows that sets the version. What became of it is to be looked up.

    Raises:
        OutcomeUnknown: Spark did not do it, or may have.
    """
    if why := _against(uri, spark):
        raise _unknown(sink, uri, why)
    with lock.alone(uri):
        try:
            rows = spark().read.format("delta").load(spark_uri(uri)).drop(*schema.computed(target)).limit(0)
            _append(rows, uri, app_id, version)
        except Exception as error:
            raise _unknown(sink, uri, str(error)) from error


def _append(rows: Any, uri: str, app_id: str, version: int, merge: bool = False) -> None:
    write = rows.write.format("delta").mode("append").option("mergeSchema", merge)
    write.option("txnAppId", app_id).option("txnVersion", version).save(spark_uri(uri))


def _against(uri: str, spark: Session) -> str | None:
    """What stands against any publishing through Spark there."""
    if not spark_uri(uri).startswith("s3a://"):
        return None
    conf = spark().conf
    store = next((found for key in LOG_STORES if (found := conf.get(key, None))), UNSAFE)
    return f"On S3 its log store {UNSAFE} lets the last of two writers win." if store.endswith(UNSAFE) else None


def _explained(error: Exception, sink: str, uri: str, handle: Handle) -> OutcomeUnknown:
    """AnalysisException and constraint violations are refusals; anything else leaves the outcome open."""
    text = str(error)
    if "DELTA_" in text and any(word in text for word in REFUSALS):
        return _refused(sink, uri, handle, text.splitlines()[0][:500])
    return _unknown(sink, uri, text)


def _refused(sink: str, uri: str, handle: Handle, why: str) -> CannotPublish:
    return CannotPublish(
        f"sink '{sink}': {uri} refuses the staged rows as it is now.",
        why,
        f"Fix the table and recover, or: onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …. "
        f"The staged rows are kept in {handle['folder']}.",
    )


def _unknown(sink: str, uri: str, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"sink '{sink}': whether Spark published to {uri} is not known.",
        (why.splitlines() or [""])[0][:500],
        "Nothing was deleted; publishing again is safe: onceonly recover",
    )

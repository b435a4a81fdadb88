"""Publishing through Spark, for tables that delta-rs cannot write and for tables altered since the rows were staged.

Spark appends the staged rows with `txnAppId`/`txnVersion`, Delta's own idempotent write: the same number again is
skipped. On a local disk Delta's log store is safe only within one JVM, so our publishers take turns by a file lock.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onceonly.checkpoint import Handle, Outcome
from onceonly.errors import CannotPublish, OutcomeUnknown
from onceonly.sinks import deltalog
from onceonly.sinks.deltastage import spark_uri
from onceonly.statestore import local_path


def publish(spark: Any, sink: str, uri: str, handle: Handle, decision: int) -> Outcome:
    """Append the staged rows by Spark, once.

    Raises:
        CannotPublish: the table as it is now refuses the rows (schema, constraint).
        OutcomeUnknown: Spark failed otherwise; safe to call again.
    """
    with _turn(uri):
        target = deltalog.open_table(uri)
        version = target.transaction_version(handle["app_id"]) if target else None
        if version is not None and version >= decision:
            return Outcome(already=True, detail={"rows": handle["rows"]})
        rows = spark.read.format("delta").load(spark_uri(f"{uri.rstrip('/')}/{handle['folder']}"))
        write = rows.write.format("delta").mode("append").option("mergeSchema", "widened" in handle)
        try:
            write.option("txnAppId", handle["app_id"]).option("txnVersion", decision).save(spark_uri(uri))
        except Exception as error:
            raise _explained(error, sink, uri, handle) from error
    return Outcome(detail={"rows": handle["rows"], "through": "spark"})


@contextmanager
def _turn(uri: str) -> Iterator[None]:
    path = local_path(uri)
    if path is None:  # object stores arbitrate by themselves
        yield
        return
    with open(path / "_delta_log" / ".onceonly.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _explained(error: Exception, sink: str, uri: str, handle: Handle) -> OutcomeUnknown:
    """AnalysisException and constraint violations are refusals; anything else leaves the outcome open."""
    text = str(error)
    refused = "DELTA_" in text and any(word in text for word in ("SCHEMA", "CONSTRAINT", "MISMATCH", "NOT_NULL"))
    if refused:
        return CannotPublish(
            f"sink '{sink}': {uri} refuses the staged rows as it is now.",
            text.splitlines()[0][:500],
            f"Mend the table and recover, or: onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …. "
            f"The staged rows are kept in {handle['folder']}.",
        )
    return OutcomeUnknown(
        f"sink '{sink}': whether Spark published to {uri} is not known.",
        text.splitlines()[0][:500],
        "Nothing was deleted; publishing again is safe: onceonly recover",
    )

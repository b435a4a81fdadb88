"""Publishes through Spark, to tables that delta-rs cannot write or that were altered since staging.

Spark appends the staged rows with `txnAppId`/`txnVersion`, Delta's idempotent write. It skips a version that is not
above the one in the table, without a message. So the outcome is read from the table afterwards. On a local disk, the
log store of Delta is safe only within one JVM, so publishing through Spark takes an exclusive lock (`lock.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from deltalake import DeltaTable

from onceonly.checkpoint.model import Handle, Outcome
from onceonly.errors import CannotPublish, InvalidPipeline, NotCommitted, OutcomeUnknown, first_sentence
from onceonly.sinks.delta import lock, log, schema
from onceonly.spark.conf import PARQUET_TIMES, temporary_conf
from onceonly.spark.strict_reading import require_rows, strict_reader
from onceonly.storage.paths import AZURE_LONG_SCHEMES, spark_uri

Session = Callable[[], Any]
LOG_STORE, ANY_STORE = "spark.delta.logStore.{}.impl", "spark.delta.logStore.class"
REFUSALS = ("SCHEMA", "CONSTRAINT", "MISMATCH", "NOT_NULL", "MERGE_FIELDS")  # in the names of Delta's errors
# Features of tables that Delta 4.4 on Spark writes. An older one may not: a rehearsal finds that before the decision.
WRITABLE = {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping"}
WRITABLE |= {"identityColumns", "timestampNtz", "deletionVectors", "domainMetadata", "v2Checkpoint", "rowTracking"}
WRITABLE |= {"icebergCompatV1", "icebergCompatV2", "icebergCompatV3", "clustering", "inCommitTimestamp"}
WRITABLE |= {"inCommitTimestamp-preview", "typeWidening", "typeWidening-preview", "variantType", "variantType-preview"}
WRITABLE |= {"variantShredding", "variantShredding-preview", "vacuumProtocolCheck", "allowColumnDefaults"}
WRITABLE |= {"checkpointProtection", "materializePartitionColumns", "geospatial"}
LAST_VERSION = 7  # of the writer
UNSAFE = "S3SingleDriverLogStore"  # Delta's default on S3
AZURE_RENAMES = (
    "Its log store on Azure renames a file. In an account without hierarchical namespaces that is a check and a "
    "copy, so the last of two writers can win."
)


def refuse_unwritable(sink: str, table: log.Table) -> None:
    """Raise InvalidPipeline if the table has a feature that Spark cannot write either."""
    protocol = table.protocol()
    unknown = sorted(set(protocol.writer_features or ()) - WRITABLE)
    if protocol.min_writer_version > LAST_VERSION:
        unknown.append(f"writer version {protocol.min_writer_version}")
    if unknown:
        raise InvalidPipeline(
            f"sink '{sink}': {table.table_uri} cannot be written to.",
            f"Its protocol demands {', '.join(unknown)} of writers, and neither delta-rs nor Spark has that.",
            "Use another table, or remove that with the system that has added it. Nothing was written.",
            code="table-not-writable",
        )


def refuse_unsafe(sink: str, uri: str, spark: Session) -> None:
    """Raise InvalidPipeline if, with Spark's log store, the last of two writers could win: on S3 and on Azure."""
    if why := _why_unsafe(uri, spark):
        raise InvalidPipeline(
            f"sink '{sink}': publishing to {uri} is not safe.",
            f"The table has to be written through Spark. {why}",
            f"{_todo(uri)} Nothing was written.",
        )


def publish(
    spark: Session, sink: str, uri: str, handle: Handle, version: int, read_outcome: Callable[[], Outcome | None]
) -> Outcome:
    """Append the staged rows through Spark, once.

    Args:
        version: the evidence.
        read_outcome: reads the outcome from the target; raises if the rows must not be published.
    Raises:
        CannotPublish: the table now refuses the rows (schema, constraint), or writing through Spark is not safe.
        OutcomeUnknown: Spark failed for another reason. It is safe to call again.
    """
    if why := _why_unsafe(uri, spark):
        raise _refusal(sink, uri, handle, f"The rows have to be written through Spark. {why}")
    with lock.hold_exclusive(uri):
        outcome = read_outcome()
        if outcome:
            return outcome
        try:
            rows = _staged_rows(spark, uri, handle)
            require_rows(rows.count(), handle["rows"], f"sink '{sink}': the staged rows in {handle['folder']}")
            _append(rows.drop(*handle.get("left_out", ())), uri, handle["app_id"], version, "widened" in handle)
        except NotCommitted as error:
            raise CannotPublish(error.what, error.why, error.todo, error.code) from error
        except Exception as error:
            raise _explain(error, sink, uri, handle) from error
        if read_outcome() is None:  # Spark skips a version that is not above the table's, without a message
            raise _outcome_unknown(sink, uri, "Spark reported no failure, but the table does not show the commit.")
    return Outcome(detail={"rows": handle["rows"], "through": "spark"})


def try_append(spark: Session, sink: str, uri: str, handle: Handle, target: DeltaTable, with_rows: bool) -> None:
    """Append through Spark to an empty table with the target's columns, constraints, features and settings.

    It is made inside the staged folder, so it is removed with it.

    Args:
        with_rows: the staged rows; else none.
    Raises:
        CannotPublish: Spark cannot write such a table, or it refuses the rows, or writing through Spark is not safe.
    """
    if why := _why_unsafe(uri, spark):
        raise _refusal(sink, uri, handle, f"The rows have to be written through Spark. {why}")
    folder = f"{handle['folder']}/{log.COPIES}{uuid.uuid4().hex[:12]}"
    scratch = log.create_staged(target, folder, True, [], {})
    rows = _staged_rows(spark, uri, handle)
    rows = rows.drop(*handle.get("left_out", ()))
    try:
        _append(rows if with_rows else rows.limit(0), scratch, handle["app_id"], 1, "widened" in handle)
    except Exception as error:
        explanation = _explain(error, sink, uri, handle)
        if not isinstance(explanation, CannotPublish) and "DELTA_" not in str(error):
            raise  # no answer: Spark itself may have failed
        raise _refusal(sink, uri, handle, explanation.why) from error


def mark(spark: Session, sink: str, uri: str, target: DeltaTable, app_id: str, version: int) -> None:
    """Set the version with a commit without rows. The caller has to read the outcome from the table.

    Raises:
        OutcomeUnknown: Spark failed; the commit may exist.
    """
    if why := _why_unsafe(uri, spark):
        raise _outcome_unknown(sink, uri, why)
    with lock.hold_exclusive(uri):
        try:
            rows = strict_reader(spark()).format("delta").load(spark_uri(uri))
            _append(rows.drop(*schema.computed_columns(target)).limit(0), uri, app_id, version)
        except Exception as error:
            raise _outcome_unknown(sink, uri, first_sentence(error)) from error


def _staged_rows(spark: Session, uri: str, handle: Handle) -> Any:
    return strict_reader(spark()).format("delta").load(spark_uri(f"{uri.rstrip('/')}/{log.rows_folder(handle)}"))


def _append(rows: Any, uri: str, app_id: str, version: int, merge: bool = False) -> None:
    write = rows.write.format("delta").mode("append").option("mergeSchema", merge)
    with temporary_conf(rows.sparkSession, PARQUET_TIMES):
        write.option("txnAppId", app_id).option("txnVersion", version).save(spark_uri(uri))


def _why_unsafe(uri: str, spark: Session) -> str | None:
    """Say why publishing through Spark is not safe there; None if it is."""
    scheme = _scheme(uri)
    if scheme != "s3a" and scheme not in AZURE_LONG_SCHEMES:
        return None
    conf = spark().conf
    log_store = conf.get(LOG_STORE.format(scheme), None) or conf.get(ANY_STORE, None)
    if scheme == "s3a":
        if (log_store or UNSAFE).endswith(UNSAFE):
            return f"On S3, with its log store {UNSAFE}, the last of two writers wins."
        return None
    return None if log_store else AZURE_RENAMES


def _todo(uri: str) -> str:
    key = LOG_STORE.format(_scheme(uri))
    if _scheme(uri) == "s3a":
        return f"Set {key} to a log store for several writers (S3DynamoDBLogStore)."
    return f"If the account has hierarchical namespaces, set {key}=io.delta.storage.AzureLogStore."


def _scheme(uri: str) -> str:
    return urlsplit(spark_uri(uri)).scheme.lower()


def _explain(error: Exception, sink: str, uri: str, handle: Handle) -> OutcomeUnknown:
    """Return a refusal for schema and constraint errors. After any other error, the outcome is unknown."""
    text = str(error)
    if "DELTA_" in text and any(word in text for word in REFUSALS):
        return _refusal(sink, uri, handle, first_sentence(error)[:500])
    return _outcome_unknown(sink, uri, first_sentence(error))


def _refusal(sink: str, uri: str, handle: Handle, why: str) -> CannotPublish:
    return CannotPublish(
        f"sink '{sink}': {uri} now refuses the staged rows.",
        why,
        f"Fix the table and recover, or: onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …. "
        f"The staged rows are kept in {handle['folder']}.",
    )


def _outcome_unknown(sink: str, uri: str, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"sink '{sink}': it is not known whether Spark published to {uri}.",
        why[:500],
        "Nothing was deleted. Publishing again is safe: onceonly recover",
    )

"""Publishes through Spark, to tables that delta-rs cannot write or that were altered since staging.

Spark appends the staged rows with `txnAppId`/`txnVersion`, Delta's idempotent write. It skips a version that is not
above the one in the table, without a message. So the outcome is read from the table afterwards. On a local disk, the
log store of Delta is safe only within one JVM, so publishing through Spark takes an exclusive lock (`commits`).

What Spark appends are new files. Everything else that a commit adds was staged before, and is counted and synced then.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable

from onceonly.checkpoint.model import Outcome
from onceonly.counts import count
from onceonly.delta import commits, log_files, table_features, table_files, table_snapshot
from onceonly.errors import CannotPublish, InvalidPipeline, NotCommitted, OutcomeUnknown, first_sentence
from onceonly.sinks.delta import schema, staged_table
from onceonly.sinks.delta.handle import DeltaHandle
from onceonly.spark.conf import PARQUET_TIMES, temporary_conf
from onceonly.spark.row_files import require_rows, strict_reader
from onceonly.storage import durability
from onceonly.storage.paths import AZURE_LONG_SCHEMES, local_path, spark_uri

Session = Callable[[], Any]
LOG_STORE, ANY_STORE = "spark.delta.logStore.{}.impl", "spark.delta.logStore.class"
REFUSAL_WORDS = ("SCHEMA", "CONSTRAINT", "MISMATCH", "NOT_NULL", "MERGE_FIELDS")  # in the names of Delta's errors
UNSAFE = "S3SingleDriverLogStore"  # Delta's default on S3
AZURE_RENAMES = (
    "Its log store on Azure renames a file. In an account without hierarchical namespaces that is a check and a "
    "copy, so the last of two writers can win."
)
MAX_FOLLOWING_COMMITS = 4  # commits after ours in which the table's own compaction is looked for


def refuse_unwritable(sink: str, table: table_snapshot.Table) -> None:
    """Raise InvalidPipeline if the table has a feature that Spark cannot write either."""
    protocol = table.protocol()
    unknown = sorted(set(protocol.writer_features or ()) - table_features.SPARK_WRITABLE)
    if protocol.min_writer_version > table_features.LAST_WRITER_VERSION:
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
            code="log-store-unsafe",
        )


def publish(
    spark: Session, sink: str, uri: str, handle: DeltaHandle, version: int, read_outcome: Callable[[], Outcome | None]
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
    with commits.hold_exclusive(uri):
        outcome = read_outcome()
        if outcome:
            return outcome
        try:
            rows = _staged_rows(spark, uri, handle)
            require_rows(rows.count(), handle.rows, f"sink '{sink}': the staged rows in {handle.folder}")
            _append(rows.drop(*handle.left_out), uri, handle.app_id, version, handle.widens)
        except NotCommitted as error:
            raise CannotPublish(error.what, error.why, error.todo, error.code) from error
        except Exception as error:
            raise _explain(error, sink, uri, handle) from error
        if read_outcome() is None:  # Spark skips a version that is not above the table's, without a message
            raise _outcome_unknown(sink, uri, "Spark reported no failure, but the table does not show the commit.")
    return Outcome(detail={"rows": handle.rows, "through": "spark"})


def try_append(spark: Session, sink: str, uri: str, handle: DeltaHandle, target: DeltaTable, with_rows: bool) -> None:
    """Append through Spark to an empty table with the target's columns, constraints, features and settings.

    It is made inside the staged folder, so it is removed with it.

    Args:
        with_rows: the staged rows; else none.
    Raises:
        CannotPublish: Spark cannot write such a table, or it refuses the rows, or writing through Spark is not safe.
    """
    if why := _why_unsafe(uri, spark):
        raise _refusal(sink, uri, handle, f"The rows have to be written through Spark. {why}")
    folder = f"{handle.folder}/{staged_table.COPY_PREFIX}{uuid.uuid4().hex[:12]}"
    scratch = staged_table.create(target, folder, True, [], {})
    rows = _staged_rows(spark, uri, handle)
    rows = rows.drop(*handle.left_out)
    try:
        _append(rows if with_rows else rows.limit(0), scratch, handle.app_id, 1, handle.widens)
    except Exception as error:
        explanation = _explain(error, sink, uri, handle)
        if not isinstance(explanation, CannotPublish) and "DELTA_" not in str(error):
            raise  # no answer: Spark itself may have failed
        raise _refusal(sink, uri, handle, explanation.why) from error


def commit_version(spark: Session, sink: str, uri: str, target: DeltaTable, app_id: str, version: int) -> None:
    """Set the version with a commit without rows. The caller has to read the outcome from the table.

    Raises:
        OutcomeUnknown: Spark failed; the commit may exist.
    """
    if why := _why_unsafe(uri, spark):
        raise _outcome_unknown(sink, uri, why)
    with commits.hold_exclusive(uri):
        try:
            rows = strict_reader(spark()).format("delta").load(spark_uri(uri))
            _append(rows.drop(*schema.computed_columns(target)).limit(0), uri, app_id, version)
        except Exception as error:
            raise _outcome_unknown(sink, uri, first_sentence(error)) from error


def _staged_rows(spark: Session, uri: str, handle: DeltaHandle) -> Any:
    return strict_reader(spark()).format("delta").load(spark_uri(f"{uri.rstrip('/')}/{handle.rows_folder}"))


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


def _explain(error: Exception, sink: str, uri: str, handle: DeltaHandle) -> OutcomeUnknown:
    """Return a refusal for schema and constraint errors. After any other error, the outcome is unknown."""
    text = str(error)
    if "DELTA_" in text and any(word in text for word in REFUSAL_WORDS):
        return _refusal(sink, uri, handle, first_sentence(error)[:500])
    return _outcome_unknown(sink, uri, first_sentence(error))


def _refusal(sink: str, uri: str, handle: DeltaHandle, why: str) -> CannotPublish:
    return CannotPublish(
        f"sink '{sink}': {uri} now refuses the staged rows.",
        why,
        f"Fix the table, then: onceonly recover PIPELINE. Or: onceonly resolve PIPELINE EPOCH --give-up {sink} "
        "--reason …. "
        f"The staged rows are kept in {handle.folder}.",
        code="staged-rows-refused",
    )


def _outcome_unknown(sink: str, uri: str, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"sink '{sink}': it is not known whether Spark published to {uri}.",
        why[:500],
        "Nothing was deleted. Publishing again is safe: onceonly recover",
        code="commit-unconfirmed",
    )


# ---- the files that Spark wrote


def check_and_sync(sink: str, uri: str, handle: DeltaHandle, version: int) -> None:
    """Check and sync what that version of the target added beside the staged files.

    A table that compacts itself (`delta.autoOptimize.autoCompact`) does so in a commit that follows at once, by the
    same call of Spark. Its files have replaced ours, so they are synced, too.

    Raises:
        OutcomeUnknown: rows are missing in it.
        OSError: a file may be lost in a power failure. Nothing may follow from it.
    """
    adds = _read_adds(uri, version)
    written = []
    for add in adds:
        if not unquote(add["path"]).startswith(f"{handle.folder}/"):
            written.append(add)
    if len(written) == len(adds) and handle.merge is None:  # a merge may change nothing
        _require_all_rows(sink, uri, handle, version, written)
    for following_version in range(version + 1, version + 1 + MAX_FOLLOWING_COMMITS):
        written += _read_adds(uri, following_version)
    _sync(uri, written)


def _read_adds(uri: str, version: int) -> list[dict[str, Any]]:
    """Read the add actions of a log entry; none if there is no such entry. Entries are cleaned up days later."""
    adds = []
    try:
        for line in table_files.read_lines(table_files.open_folder(uri), log_files.entry_path(version)):
            if b'"add"' not in line:
                continue
            action = json.loads(line)
            if "add" in action:
                adds.append(action["add"])
    except FileNotFoundError:
        return []
    return adds


def _require_all_rows(sink: str, uri: str, handle: DeltaHandle, version: int, adds: list[dict[str, Any]]) -> None:
    rows = table_files.count_rows_and_bytes(adds, uri)[0]
    if rows == handle.rows:
        return
    raise OutcomeUnknown(
        f"sink '{sink}': version {version} of {uri} does not have all rows.",
        f"{count(handle.rows, 'row')} of {handle.folder} had to be published, and Spark wrote {rows:,}.",
        f"Nothing was deleted. The staged rows are in {uri}/{handle.folder}. Compare them with that version, and "
        "keep them until it is known what is missing.",
        code="rows-differ",
    )


def _sync(uri: str, adds: list[dict[str, Any]]) -> None:
    root = local_path(uri)
    if root is None:
        return
    paths = []
    for add in adds:
        if not urlsplit(add["path"]).scheme:
            paths.append(root / unquote(add["path"]))
    durability.sync_files(paths)

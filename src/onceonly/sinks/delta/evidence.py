"""The evidence in a table: of the outcome of one transaction, and that it still has what was published to it.

The transaction number alone tells that a table went back, because it never decreases and outlives log entries. The
digest of the log entry also tells another history with the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from onceonly.checkpoint.model import Outcome
from onceonly.checkpoint.sink import Answer, History, Publication
from onceonly.delta import log_summary, txn_identifiers
from onceonly.documentation import name_page
from onceonly.errors import Fenced, StateBehind, TargetWentBack
from onceonly.sinks.delta import errors
from onceonly.sinks.delta.handle import DeltaHandle
from onceonly.sinks.staging import history as histories
from onceonly.storage.paths import local_path, spark_uri

MAX_ENTRIES_REMARKED = 500  # log entries since the publication that are searched for what others did
# Operations after which published rows may be gone, as commits name them; others only add rows or move them.
REMOVING_OPERATIONS = (
    "DELETE",
    "UPDATE",
    "MERGE",
    "RESTORE",
    "TRUNCATE",
    "REPLACE",
    "CREATE OR REPLACE",
    "DROP COLUMNS",
)


def find_outcome(sink: str, handle: DeltaHandle, version: int | None, wanted: int) -> Outcome | None:
    """Return the outcome of a transaction whose table has `version`; None if it may be published.

    Raises:
        Fenced: it was given up.
        StateBehind: the table has a decision that the state table does not have.
    """
    match txn_identifiers.interpret(version, wanted):
        case txn_identifiers.TxnMeaning.EARLIER:
            return None
        case txn_identifiers.TxnMeaning.OURS:
            return Outcome(already=True, detail={"rows": handle.rows})
        case txn_identifiers.TxnMeaning.GIVEN_UP:
            raise Fenced(
                f"sink '{sink}': decision {wanted >> txn_identifiers.NAME_BITS} was given up.",
                f"{handle.uri} is closed to it (transaction {handle.app_id}).",
                f"The staged rows are kept in {handle.folder}.",
                code="sink-given-up",
            )
        case evidence_of_newer_state:
            raise _old_state_error(sink, handle, evidence_of_newer_state, version or 0, wanted)


def _old_state_error(
    sink: str, handle: DeltaHandle, what: txn_identifiers.TxnMeaning, version: int, wanted: int
) -> StateBehind:
    decision = txn_identifiers.decision_of(wanted)
    return StateBehind(
        f"sink '{sink}': the state table is behind {handle.uri}.",
        f"The next decision is {decision} ({wanted:x}), and the table shows {what.value} ({version:x}). The "
        "state table was restored from an older copy, or two copies of it are in use.",
        "Restore a newer copy, or continue after what is published: onceonly state forward FILE.py:NAME --decision "
        f"{max(txn_identifiers.decision_of(version), 1)} --reason … ({name_page('operations', 'backup-and-restore')}). "
        "Nothing was changed.",
        code="state-behind",
    )


def read_proof(uri: str, handle: DeltaHandle, decision: int) -> dict[str, Any]:
    """Return the proof of a publication that the table's log shows.

    Raises:
        OutcomeUnknown: the log cannot be read.
    """
    number = handle.txn_version(decision)
    version = find_published_version(uri, handle.app_id, number)
    digest = None
    if version is not None:
        digest = log_summary.read_digest(uri, version)
    return make_proof(uri, handle.table_id, version, digest, handle.app_id, number)


def make_proof(
    uri: str, table_id: str | None, version: int | None, digest: str | None, app_id: str, number: int
) -> dict[str, Any]:
    """Return the proof of a publication, as it is recorded.

    Args:
        version: the table's version that published it; None: its log entry has expired.
        digest: of that log entry (SHA-256).
        number: of the transaction; 0: the table shows none.
    """
    return {
        "target": normalize_place(uri),
        "table_id": table_id,
        "version": version,
        "entry": digest,
        "app_id": app_id,
        "txn": number,
    }


def find_published_version(uri: str, app_id: str, txn_version: int) -> int | None:
    """Find the version of the table that published a transaction; None: the log no longer has it.

    Args:
        txn_version: of the transaction, see `txn_identifiers.txn_version`.
    """
    for version, number in log_summary.read_txn_versions(uri, app_id):
        match txn_identifiers.interpret(number, txn_version):
            case txn_identifiers.TxnMeaning.OURS:
                return version
            case txn_identifiers.TxnMeaning.EARLIER:  # an application's numbers grow
                return None
    return None


def normalize_place(uri: str) -> str:
    """Return the location of a table: one text for all spellings of its URI."""
    return str(local_path(uri) or spark_uri(uri)).rstrip("/")


def is_elsewhere(uri: str, last: Publication | None) -> bool:
    """Return whether nothing is recorded as published to the table at `uri`."""
    return last is None or not last.proof or last.proof["target"] != normalize_place(uri)


def require_last_publication(
    sink: str, uri: str, last: Publication | None, table_id: str, number_of: Callable[[str], int | None]
) -> None:
    """Raise TargetWentBack unless the snapshot of a table shows the sink's last recorded publication, and nothing lost.

    Args:
        number_of: the snapshot's transaction number of an app id.
    """
    if last is None or is_elsewhere(uri, last):
        return
    if table_id != last.proof["table_id"]:
        raise target_went_back_error(sink, uri, last, f"It is another table (id {table_id}).")
    number = number_of(last.proof["app_id"]) or 0
    if number < last.proof["txn"]:
        newest = f"decision {txn_identifiers.decision_of(number)}" if number else "no decision of this sink"
        raise target_went_back_error(sink, uri, last, f"It shows {newest}.")
    for publication in last.lost:
        if number == publication.proof["txn"]:  # what it shows last; a copy of it has earlier ones as well
            raise histories.is_back(sink, publication)


def target_went_back_error(sink: str, uri: str, last: Publication, why: str) -> TargetWentBack:
    return TargetWentBack(
        f"sink '{sink}': {uri} lacks what was published to it.",
        f"Decision {last.decision} (epoch {last.epoch}) is recorded as published there, to the table with the id "
        f"{last.proof['table_id']}. {why} Was it restored from an older copy, or is its volume not mounted?",
        "Bring that table back, then: onceonly recover. Nothing was published.",
        code="target-went-back",
    )


def compare(uri: str, last: Publication) -> History:
    """Compare the table with a recorded publication. Cost: the head of its log, and single log entries.

    Raises:
        OutcomeUnknown: the log cannot be read.
    """
    if is_elsewhere(uri, last):
        return History(Answer.ELSEWHERE, f"it was published to {last.proof.get('target', 'an unknown place')}")
    table_log = log_summary.open_log(uri)
    summary = table_log.read_summary()
    if summary is None:
        return History(Answer.WENT_BACK, f"there is no table at {uri}")
    if summary.table_id != last.proof["table_id"]:
        return History(
            Answer.WENT_BACK, f"{uri} is another table: its id is {summary.table_id}, not {last.proof['table_id']}"
        )
    difference = _find_difference(table_log, summary, last)
    if difference:
        decision = txn_identifiers.decision_of(summary.txns.get(last.proof["app_id"], 0))
        return History(Answer.WENT_BACK, difference, min(decision, last.decision - 1))
    if difference is None:
        why = f"log entry {last.proof['version']} of {uri} and its transaction identifiers have expired"
        return History(Answer.UNKNOWN, why, remarks=_list_remarks(table_log, summary, last))
    return History(Answer.SAME, remarks=_list_remarks(table_log, summary, last))


def read_current_proof(uri: str, last: Publication) -> Publication | None:
    """Return the last publication that the table shows, with a proof of the table as it is; None: there is no table.

    Raises:
        OutcomeUnknown: the log cannot be read.
    """
    table_log = log_summary.open_log(uri)
    summary = table_log.read_summary()
    if summary is None:
        return None
    app_id = last.proof["app_id"]
    number = summary.txns.get(app_id, 0)
    decision = txn_identifiers.decision_of(number)
    digest = table_log.read_digest(summary.version)
    proof_of_head = make_proof(uri, summary.table_id, summary.version, digest, app_id, number)
    return Publication(last.epoch if decision == last.decision else 0, decision, proof_of_head)


def _find_difference(table_log: log_summary.TableLog, summary: log_summary.LogSummary, last: Publication) -> str | None:
    """Say why the table is not the one that was published to; empty: it is; None: it can no longer be known."""
    version, digest, published_number = last.proof["version"], last.proof["entry"], last.proof["txn"]
    number = summary.txns.get(last.proof["app_id"])
    if version is not None and summary.version < version:
        return f"its log ends at version {summary.version}, and version {version} published epoch {last.epoch}"
    if number is not None and number < published_number:
        return (
            f"it shows decision {txn_identifiers.decision_of(number)}, and decision {last.decision} was published to it"
        )
    digest_now = None
    if version is not None and digest:
        digest_now = table_log.read_digest(version)
    if digest_now is not None:
        return "" if digest_now == digest else f"its version {version} is another commit than the one that published"
    # The log entry has expired: only the transaction number is left, which outlives it unless the table expires it.
    if number is not None or not published_number:
        return ""
    if errors.TRANSACTION_RETENTION in (summary.actions["metaData"].get("configuration") or {}):
        return None
    return f"it shows no decision of this sink, and decision {last.decision} was published to it"


def _list_remarks(
    table_log: log_summary.TableLog, summary: log_summary.LogSummary, last: Publication
) -> tuple[str, ...]:
    """List what others did since then that may have removed published rows."""
    if last.proof["version"] is None:
        return ()
    first = max(last.proof["version"], summary.version - MAX_ENTRIES_REMARKED) + 1
    versions = range(first, summary.version + 1)
    with ThreadPoolExecutor(log_summary.MAX_PARALLEL_READS) as pool:
        infos = list(pool.map(table_log.read_commit_info, versions))
    newest: dict[str, int] = {}
    times = Counter[str]()
    for version, info in zip(versions, infos, strict=True):
        operation = _removing_operation(info)
        if operation:
            newest[operation] = version
            times[operation] += 1
    remarks = []
    for operation, version in sorted(newest.items()):
        remark = f"{operation} by another writer since then, last in version {version} of {times[operation]:,}"
        remarks.append(remark)
    return tuple(remarks)


def _removing_operation(info: Mapping[str, Any]) -> str | None:
    """Name the operation of a commit if it may have removed published rows."""
    operation = str(info.get("operation", "")).upper()
    parameters = info.get("operationParameters")
    mode = parameters.get("mode", "") if isinstance(parameters, Mapping) else ""
    if operation == "WRITE" and str(mode).strip('"').upper() == "OVERWRITE":
        return "WRITE (overwrite)"
    return operation if operation.startswith(REMOVING_OPERATIONS) else None

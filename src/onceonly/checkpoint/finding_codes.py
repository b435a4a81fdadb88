"""The codes of a verification's findings: a fixed list, for programs. docs/guarantee.md has them as a table."""

from __future__ import annotations

from enum import StrEnum


class FindingCode(StrEnum):
    """What was found. `meaning` is for people."""

    meaning: str

    def __new__(cls, code: str, meaning: str) -> FindingCode:
        member = str.__new__(cls, code)
        member._value_, member.meaning = code, meaning
        return member

    # ---- right
    RIGHT = "right", "the target has what was published, as it was published, or where a rewrite has moved it"
    TAKEN_OUT = "taken-out", "a later checkpoint of this sink has replaced or retracted it, and it is gone"
    OVERWRITTEN = "overwritten", "a later checkpoint of this sink has replaced the partitions that it was in"
    LOSS_ACCEPTED = "loss-accepted", "the target has lost it, and a person has accepted that"

    # ---- can no longer be known
    HISTORY_GONE = "history-gone", "what could tell was removed: log entries, records, markers or runs"
    ELSEWHERE = "elsewhere", "it was published to another place than the one the definition names now"
    ROWS_IN_DOUBT = "rows-in-doubt", "others changed rows in a file that holds rows of several owners"
    NOT_RECORDED_YET = "not-recorded-yet", "the target shows a later decision than the state table records"
    NO_EVIDENCE = "no-evidence", "the sink gives no guarantee, or leaves no evidence, by which it could be compared"

    # ---- wrong: the state table and the target disagree
    RECORD_DAMAGED = "record-damaged", "the handle in the state table is not one that the sink writes"
    RECORD_DIFFERS = "record-differs", "the state table records other files, numbers or names than the target shows"
    TARGET_MISSING = "target-missing", "there is no such table, topic or folder"
    TARGET_REPLACED = "target-replaced", "another table or topic has taken its place"
    TARGET_WENT_BACK = "target-went-back", "the target ends before what was published: an older copy was restored"
    TARGET_UNREADABLE = "target-unreadable", "the target's own log is not whole"
    COMMIT_MISSING = "commit-missing", "the target does not show that it was ever published"
    COMMIT_CHANGED = "commit-changed", "its log entry, or manifest, is not the one that was written"
    COMMIT_UNRECORDED = "commit-unrecorded", "the target shows a publication of this sink that is not recorded"
    EVIDENCE_BEHIND = "evidence-behind", "the last decision that the target shows is an earlier one"

    # ---- wrong: files
    FILE_MISSING = "file-missing", "a published file is not there"
    FILE_SIZE = "file-size", "a published file has another size"
    FILE_CHANGED = "file-changed", "a published file has another content"
    FILE_UNREADABLE = "file-unreadable", "a published file cannot be read"
    FILE_UNPUBLISHED = "file-unpublished", "a file of this sink is in the target, and nobody has published it"

    # ---- wrong: rows
    ROW_COUNT = "row-count", "there are more or fewer rows than were published"
    ROWS_TWICE = "rows-twice", "rows are in the target a second time"
    ROWS_DELETED = "rows-deleted", "somebody has deleted rows"
    ROWS_CHANGED = "rows-changed", "somebody has changed rows"
    ROWS_OVERWRITTEN = "rows-overwritten", "somebody has overwritten rows"
    ROWS_REMOVED = "rows-removed", "a commit that does not say why has taken rows out"
    ROWS_LOST_IN_REWRITE = "rows-lost-in-rewrite", "a rewrite that has to keep all rows has fewer or more of them"
    TABLE_RESTORED = "table-restored", "somebody has restored an earlier version of the table"
    NOT_TAKEN_OUT = "not-taken-out", "a later checkpoint has replaced or retracted it, and it is there"
    LOSS_IS_BACK = "loss-is-back", "it is recorded as lost, and it is there"

    # ---- wrong: records of topics
    TRANSACTION_ABORTED = "transaction-aborted", "the log shows that its transaction was aborted"
    TRANSACTION_OPEN = "transaction-open", "the log shows that its transaction has not ended"
    RECORDS_DIFFER = "records-differ", "the records are others than were published"

    # ---- of sources, and of the state table: right
    OFFSETS_ONCE = "offsets-once", "no other checkpoint has these offsets, and none before them is left out"
    OFFSETS_SKIPPED = "offsets-skipped", "a person has left these offsets out"
    OFFSETS_TAKEN_BACK = (
        "offsets-taken-back",
        "a rewind has taken them back, or they were processed again",
    )
    OFFSETS_REPEATED = "offsets-repeated", "a repair has read the offsets of the checkpoint that it repairs"
    SOURCE_SAME = "source-same", "the source is the one that was read"
    SOURCE_STILL_THERE = "source-still-there", "all files that were read are in the source"
    RECORDS_COUNTED = "records-counted", "the log has as many records as were read, or their number was not recorded"
    GIVEN_UP = "given-up", "a person has given up this sink, and nothing is claimed to be there"
    RIGHT_BEFORE = "right-when-checked", "it can no longer be known, and was right when it was last checked"

    # ---- can no longer be known
    SOURCE_EXPIRED = "source-expired", "what was read is not in the source any more"
    SOURCE_SILENT = "source-silent", "the source could not be asked"
    SOURCE_NOT_COUNTED = "source-not-counted", "the source does not count its records"
    RECORDS_EXPIRED = "records-expired", "retention, or a person, has removed records that were read"
    RECORDS_COMPACTED = "records-compacted", "compaction has removed records that were read"
    TRANSACTIONS_UNENDED = "transactions-unended", "the log does not show how the transactions of its records ended"
    LOG_CUT_OFF = "log-cut-off", "the log ends before the records that were read"
    TARGET_SILENT = "target-silent", "the target could not be asked"
    NOT_VERIFIABLE = "not-verifiable", "sinks of this kind cannot compare their target with what was published"
    TARGET_SAYS_NOTHING = "target-says-nothing", "the sink has found nothing about it"
    PIPELINE_RUNNING = (
        "pipeline-running",
        "the pipeline has gone on at each look: it may be its own",
    )

    # ---- wrong
    STATE_ROWS_DAMAGED = "state-rows-damaged", "rows of the state table contradict each other"
    NOT_RECORDED = "publication-not-recorded", "it is committed, and of a sink no publication is recorded"
    OFFSETS_TWICE = "offsets-twice", "another checkpoint has some of these offsets as well"
    OFFSETS_PASSED_OVER = (
        "offsets-passed-over",
        "offsets before these are in none, and nobody has left them out",
    )
    SOURCE_DIFFERS = "source-differs", "the checkpoint before it has read another topic, table or folder of this name"
    REPAIR_DIFFERS = "repair-differs", "a repair has not read the offsets of the checkpoint that it repairs"
    SOURCE_REPLACED = "source-replaced", "the source is not the one that was read"
    SOURCE_LOG_REPLACED = "source-log-replaced", "a broker has lost the end of the log, and others took its place"

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

"""The shapes of the sinks' handles, checked when one is read from the state table.

Without the check, anyone who can write to that table could make a sink read, move or delete other files, and a damaged
row would cause an obscure error. Unknown keys are allowed: a newer version may have added them.
(No `from __future__ import annotations` here: `TypedDict` has to see `NotRequired`.)
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from onceonly.documentation import name_page
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.pipeline.shapes import Below, Count, Like, problem
from onceonly.storage.own_paths import has_transaction_name, is_plain

PART = "[0-9A-Za-z_]+"
TXN = Annotated[str, Like(f"{PART}(-{PART}){{2}}-[0-9]+-[0-9]+-{PART}")]
STAGED = Annotated[str, Like(f"staged-{PART}(-{PART}){{2}}-[0-9]+-[0-9]+-{PART}")]


class DeltaField(TypedDict):
    name: str
    type: Any


class DeltaOld(TypedDict):
    folder: STAGED
    files: Count
    table_id: str


class DeltaReplaced(DeltaOld):
    rows: NotRequired[Count]
    checkpoint_column: NotRequired[str]


class DeltaMerge(TypedDict):
    keys: list[str]
    order_by: list[str]


class Delta(DeltaOld):
    kind: Literal["delta"]
    uri: str
    fingerprint: str
    added: list[DeltaField]
    app_id: Annotated[str, Like(f"onceonly/{PART}/{PART}/{PART}")]
    publish: Literal["delta-rs", "spark"]
    rows: Count
    bytes: Count
    widened: NotRequired[Mapping[str, str]]
    left_out: NotRequired[list[str]]
    where: NotRequired[Literal["partitions"] | list[tuple[str, str, Any]]]
    merge: NotRequired[DeltaMerge]
    copied: NotRequired[Annotated[str, Like("merge-[0-9a-f]{12}")]]
    checkpoint_column: NotRequired[str]
    replaces: NotRequired[DeltaReplaced]
    retracts: NotRequired[list[DeltaReplaced]]


class FileUpload(TypedDict):
    id: str
    source: str
    parts: list[str]


class File(TypedDict):
    staged: Below
    final: Below
    bytes: Count
    upload: NotRequired[FileUpload]


class FilesOld(TypedDict):
    manifest: Below
    files: list[File]


class Files(FilesOld):
    kind: Literal["files"]
    target: str
    format: Literal["parquet", "json", "csv", "avro"]
    txn: TXN
    folder: str
    rows: Count
    bytes: Count
    schema: NotRequired[Mapping[str, Any]]
    replaces: NotRequired[FilesOld]
    retracts: NotRequired[list[FilesOld]]


class KafkaResolution(TypedDict):
    outcome: Literal["committed", "aborted"]
    by: Literal["log", "person"]


class KafkaTx(TypedDict):
    id: str
    producer_id: Count
    epoch: Count
    partitions: list[tuple[str, Count, Count | None, Count]]
    resolution: NotRequired[KafkaResolution]


class KafkaPart(TypedDict):
    spool: Annotated[str, Like("[^/]*")]  # the name of a file; empty if no rows are kept
    rows: Count
    tx: KafkaTx | None


class Kafka(TypedDict):
    kind: Literal["kafka"]
    guarantee: Literal["exactly-once", "at-least-once", "none"]
    mode: Literal["staged", "late"]
    cluster: str
    topics: Mapping[str, str]
    txn: TXN
    slot: Count | None
    folder: str
    rows: Count
    bytes: Count
    parts: list[KafkaPart]
    log_ends: NotRequired[list[tuple[str, Count, Count, int, Count, Count]]]
    opened_at: NotRequired[str]
    timeout: NotRequired[float]
    writer: NotRequired[Literal["jvm", "python"]]
    digest: NotRequired[Annotated[str, Like("[0-9a-f]{16}")]]


class Run(TypedDict):
    folder: str
    rows: Count
    files: Count
    bytes: Count
    listing: str


class Retired(Run):
    since: Count


class State(TypedDict):
    kind: Literal["state"]
    txn: TXN | None
    schema: str
    key: list[str]
    metadata: NotRequired[Mapping[str, Mapping[str, Any]]]
    runs: list[Run]
    retired: list[Retired]
    forget: list[str]
    rows: Count
    unit: NotRequired[str]
    target: NotRequired[str]
    note: NotRequired[str]


def check_handle(sink: str, kind: str, shape: Any, handle: Mapping[str, Any]) -> None:
    """Refuse a handle that a sink of that kind cannot have created.

    Raises:
        CannotPublish: says what is wrong with it; the state table has to be repaired.
    """
    damage = problem(handle, shape)
    if damage:
        raise CannotPublish(
            f"sink '{sink}': the handle in the state table is damaged.",
            f"Its kind is '{kind}', and {damage}.",
            "Was the table edited by hand, or written by another version? Restore it to the version before that, then: "
            "onceonly recover. Nothing was changed.",
            code="handle-damaged",
        )


def check_new_handle(sink: str, shape: Any, handle: Any) -> None:
    """Refuse a handle that could not be read again after it was stored.

    Raises:
        InvalidPipeline: it is not plain JSON, or does not have the shape that the sink declares.
    """
    try:
        why = problem(json.loads(json.dumps(handle)), shape)
    except (TypeError, ValueError) as error:
        why = str(error)
    if why:
        raise InvalidPipeline(
            f"sink '{sink}': what it staged cannot be recorded.",
            f"In the handle that it returned, {why}.",
            f"Return plain JSON that matches the sink's handle_shape ({name_page('add-a-sink')}). Nothing was "
            "published.",
            code="handle-unsuitable",
        )


def check_folder(sink: str, folder: object, prefix: str = "") -> None:
    """Refuse a handle whose folder is not that of a transaction, after this prefix of the name."""
    if (
        not isinstance(folder, str)
        or not folder.startswith(prefix)
        or not has_transaction_name(folder.removeprefix(prefix))
    ):
        raise damaged_handle(sink, f"Its folder is {folder!r}.")


def check_file(sink: str, name: object) -> None:
    """Refuse a handle that names a file outside of its own folder."""
    if not is_plain(name) or "/" in str(name):
        raise damaged_handle(sink, f"It names the file {name!r}.")


def damaged_handle(sink: str, why: str) -> CannotPublish:
    """Return the error that a handle holds a value that this sink does not write."""
    return CannotPublish(
        f"sink '{sink}': the handle in the state table is damaged or forged.",
        f"{why} This sink does not write such a value.",
        "Nothing was touched. Find out who can write to the state table, restore an earlier copy of it "
        f"({name_page('operations')}), then: onceonly recover",
        code="handle-damaged",
    )


@contextmanager
def refuse_before_decision() -> Iterator[None]:
    """Raise InvalidPipeline for CannotPublish: before the decision, what would stop a commit is an invalid input."""
    try:
        yield
    except CannotPublish as error:
        raise InvalidPipeline(error.what, error.why, error.todo, error.code) from error

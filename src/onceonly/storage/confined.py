"""Names and paths from the state table, confined to what Onceonly itself has written.

A handle may be damaged, or forged to reach another file. So a path in it is used only if it is derived from a
transaction's name, below a folder that the configuration names. Only an `OwnPath` can be deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onceonly.checkpoint.model import Transaction
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.pipeline.names import NAME

MARKS = ("", "staged-", ".")  # prefixes of a transaction's name: its folder, a nested Delta table, a probe file
PART = re.compile(r"[A-Za-z0-9_]+")  # a part of a transaction's name other than pipeline and sink
STEM = re.compile(rf"({NAME.pattern})-({NAME.pattern})-(\d{{6,}})-([A-Za-z0-9_]{{1,8}})")
FILE = re.compile(rf"{STEM.pattern}-\d{{5,}}\.[a-z]+")
MANIFESTS = "_onceonly"  # the folder of a FileSink's manifests
HIDDEN = ("_", ".")  # what Spark, Hive and pyarrow do not read


@dataclass(frozen=True)
class OwnPath:
    """A path that Onceonly itself has written, below a root. Only such a path can be deleted or moved.

    Args:
        root: path or URI of a folder that the configuration names; never one from a handle.
        name: a transaction's name (after one of MARKS) or a path below it; or a file or manifest that a FileSink has
            published; or a probe file of a transaction, in any folder.
    Raises:
        InvalidPipeline: the name is anything else. Nothing was touched.
    """

    root: str
    name: str

    def __post_init__(self) -> None:
        if not self.root.strip("/") or not is_own(self.name):
            raise InvalidPipeline(
                f"'{self.name}' below '{self.root}' is not deleted.",
                "It does not have the name of an Onceonly transaction, or is outside of the folder.",
                "Check whether a handle in the state table was damaged or forged. Nothing was deleted.",
            )

    @property
    def path(self) -> str:
        return f"{self.root.rstrip('/')}/{self.name}"

    def below(self, path: str) -> OwnPath:
        """Return a path below this one. Raises InvalidPipeline: it leaves this one."""
        return OwnPath(self.root, f"{self.name}/{path}")


def is_own(name: str) -> bool:
    """Whether Onceonly itself gives such a name, relative to a root: see `OwnPath`."""
    if not is_plain(name):
        return False
    first_part, last_part = name.split("/")[0], name.rpartition("/")[2]
    if any(is_transaction(first_part.removeprefix(mark)) for mark in MARKS) or is_published(name):
        return True
    return last_part.startswith(".") and is_transaction(last_part[1:])  # a probe file in a folder of the target


def is_plain(path: object) -> bool:
    """Whether the path is relative, normalised, and does not leave its folder."""
    return isinstance(path, str) and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def is_transaction(name: object) -> bool:
    return parsed(name) is not None


def parsed(name: object) -> Transaction | None:
    """Return the transaction of that name; None unless Onceonly could have given every part of the name."""
    txn = Transaction.parse(name) if isinstance(name, str) else None
    if txn is None or not all(map(PART.fullmatch, (txn.state_id, txn.nonce))):
        return None
    return txn if NAME.fullmatch(txn.pipeline) and NAME.fullmatch(txn.sink) and txn.name == name else None


def is_published(path: object) -> bool:
    """Whether a FileSink gives such a name to a file (in partition folders) or to a manifest."""
    if not isinstance(path, str) or not is_plain(path):
        return False
    *folders, name = path.split("/")
    if folders == [MANIFESTS]:
        return name.endswith(".manifest") and STEM.fullmatch(name.removesuffix(".manifest")) is not None
    return FILE.fullmatch(name) is not None and not any(folder.startswith(HIDDEN) for folder in folders)


def stem(txn: Transaction) -> str:
    """Return the first part of every name that a FileSink gives: state table, pipeline, sink and epoch."""
    return f"{txn.pipeline}-{txn.sink}-{txn.epoch:06d}-{txn.state_id[:8]}"


def stream(txn: Transaction) -> str:
    """Return a name for the files of one sink of one pipeline of one state table: their decisions order them."""
    return f"{txn.state_id}-{txn.pipeline}-{txn.sink}"


def manifest_of(txn: Transaction) -> str:
    return f"{MANIFESTS}/{stem(txn)}.manifest"


def check_folder(sink: str, folder: object, mark: str = "") -> None:
    """Refuse a handle whose folder is not that of a transaction. `mark`: the prefix of the name."""
    if not isinstance(folder, str) or not folder.startswith(mark) or not is_transaction(folder.removeprefix(mark)):
        raise damaged(sink, f"Its folder is {folder!r}.")


def check_file(sink: str, name: object) -> None:
    """Refuse a handle that names a file outside of its own folder."""
    if not is_plain(name) or "/" in str(name):
        raise damaged(sink, f"It names the file {name!r}.")


@contextmanager
def refused_early() -> Iterator[None]:
    """Raise InvalidPipeline for CannotPublish: before the decision, what would stop a commit is an invalid input."""
    try:
        yield
    except CannotPublish as error:
        raise InvalidPipeline(error.what, error.why, error.todo) from error


def damaged(sink: str, why: str) -> CannotPublish:
    """Return the error that a handle holds a value that this sink does not write."""
    return CannotPublish(
        f"sink '{sink}': the handle in the state table is damaged or forged.",
        f"{why} This sink does not write such a value.",
        "Nothing was touched. Find out who can write to the state table, restore an earlier copy of it "
        "(docs/operations.md), then: onceonly recover",
    )

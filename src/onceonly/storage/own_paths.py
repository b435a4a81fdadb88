"""Paths that Onceonly itself has written, by their names: only such a path can be deleted or moved.

A handle may be damaged, or forged to reach another file. So a path in it is used only if it is derived from a
transaction's name, below a folder that the configuration names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from onceonly.errors import InvalidPipeline
from onceonly.names import NAME, TRANSACTION

PREFIXES = ("", "staged-", ".")  # of a transaction's name: its folder, a nested Delta table, a probe file
STEM = re.compile(rf"{NAME.pattern}-{NAME.pattern}-\d{{6,}}-[A-Za-z0-9_]{{1,8}}")
FILE = re.compile(rf"{STEM.pattern}-\d{{5,}}\.[a-z]+")
MANIFESTS = "_onceonly"  # the folder of a FileSink's manifests
HIDDEN = ("_", ".")  # what Spark, Hive and pyarrow do not read


@dataclass(frozen=True)
class OwnPath:
    """A path that Onceonly itself has written, below a root.

    Args:
        root: path or URI of a folder that the configuration names; never one from a handle.
        name: a transaction's name (after one of PREFIXES) or a path below it; or a file or manifest that a FileSink has
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
                code="handle-damaged",
            )

    @property
    def path(self) -> str:
        return f"{self.root.rstrip('/')}/{self.name}"

    def join(self, path: str) -> OwnPath:
        """Return a path below this one. Raises InvalidPipeline: it leaves this one."""
        return OwnPath(self.root, f"{self.name}/{path}")


def is_own(name: str) -> bool:
    """Whether Onceonly itself gives such a name, relative to a root: see `OwnPath`."""
    if not is_plain(name):
        return False
    first_part, last_part = name.split("/")[0], name.rpartition("/")[2]
    if any(has_transaction_name(first_part.removeprefix(prefix)) for prefix in PREFIXES) or has_published_name(name):
        return True
    return last_part.startswith(".") and has_transaction_name(last_part[1:])  # a probe file in a folder of the target


def is_plain(path: object) -> bool:
    """Whether the path is relative, normalised, and does not leave its folder."""
    return isinstance(path, str) and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def has_transaction_name(name: object) -> bool:
    """Whether Onceonly could have given every part of the name to a transaction."""
    return isinstance(name, str) and TRANSACTION.fullmatch(name) is not None


def has_published_name(path: object) -> bool:
    """Whether a FileSink gives such a name to a file (in partition folders) or to a manifest."""
    if not isinstance(path, str) or not is_plain(path):
        return False
    *folders, name = path.split("/")
    if folders == [MANIFESTS]:
        return name.endswith(".manifest") and STEM.fullmatch(name.removesuffix(".manifest")) is not None
    return FILE.fullmatch(name) is not None and not any(folder.startswith(HIDDEN) for folder in folders)

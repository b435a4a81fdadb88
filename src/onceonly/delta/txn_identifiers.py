"""The transaction identifiers of Onceonly in a Delta log: a number for the decision and the transaction.

The `txn` version is decision << 32 | name, in which the name is the first 8 hexadecimal digits of the transaction's
nonce. So it never decreases. The nonce ends the name of the folder in which the rows were staged.
Source: Delta protocol, "Transaction Identifiers".
"""

from __future__ import annotations

import re
from enum import Enum

from onceonly.errors import CannotPublish

# Not a hidden name: VACUUM of the target must see, and in time delete, what was never published.
STAGED_PREFIX = "staged-"
NAME_BITS = 32
# In place of a name. The highest number, because Spark skips a version that is not above the one in the table.
GIVEN_UP_NUMBER = (1 << NAME_BITS) - 1
STAGED_FOLDER = re.compile(r"staged-[\w-]+-([0-9a-f]{8})[0-9a-f]*")
KEPT_PREFIX = "kept-"  # folders in a staged one: copies of files without the rows that are replaced
KEPT_COPY = re.compile(rf"{STAGED_FOLDER.pattern}/{KEPT_PREFIX}[0-9a-f]{{12}}/")
OWN_FILE = re.compile(rf"{STAGED_FOLDER.pattern}/(?!(merge|{KEPT_PREFIX[:-1]})-[0-9a-f]{{12}}/)")


class TxnMeaning(Enum):
    """What a version means for a transaction."""

    EARLIER = "an earlier decision, or none"  # it may be published
    OURS = "this transaction"
    GIVEN_UP = "that this decision was given up"
    ANOTHER = "another transaction at this decision"
    LATER = "a later decision"


def txn_version(decision: int, folder: str) -> int:
    """Return the version of a transaction's commit.

    Args:
        folder: its staged folder.
    Raises:
        CannotPublish: that is not the name of one.
    """
    match = STAGED_FOLDER.fullmatch(folder)
    if match is None:
        raise CannotPublish(
            f"the folder '{folder[:200]}' is not that of a transaction.",
            "The folder in a handle is staged-<state table>-<pipeline>-<sink>-<epoch>-<attempt>-<nonce>. This one was "
            "altered.",
            "Restore the state table. Nothing was published.",
            code="handle-damaged",
        )
    return decision << NAME_BITS | _name_part(match[1])


def is_version_of(version: int, folder: str) -> bool:
    """Return whether the version is that of the transaction with this staged folder, at any decision."""
    match = STAGED_FOLDER.fullmatch(folder)
    return match is not None and version & GIVEN_UP_NUMBER == _name_part(match[1])


def _name_part(digits: str) -> int:
    """Return the part of a version that names a transaction. GIVEN_UP_NUMBER itself would close the decision."""
    return min(int(digits, 16), GIVEN_UP_NUMBER - 1)


def closing_version(decision: int) -> int:
    """Return the version that closes a decision."""
    return decision << NAME_BITS | GIVEN_UP_NUMBER


def decision_of(version: int) -> int:
    """Return the number of the decision in a version."""
    return version >> NAME_BITS


def interpret(version: int | None, wanted: int) -> TxnMeaning:
    """Say what the table's version means for the transaction with the version `wanted`."""
    decision = wanted >> NAME_BITS
    if version is None or decision_of(version) < decision:
        return TxnMeaning.EARLIER
    if decision_of(version) > decision:
        return TxnMeaning.LATER
    if version == wanted:
        return TxnMeaning.OURS
    return TxnMeaning.GIVEN_UP if version == closing_version(decision) else TxnMeaning.ANOTHER


def is_kept_copy(path: str) -> bool:
    """Return whether a file (its decoded path in the table) holds rows that a replacement has left in the table.

    It is in the staged folder of the rows that came in the place of others, and holds none of them.
    """
    return KEPT_COPY.match(path) is not None


def is_in_staged_folder(path: str, folder: str) -> bool:
    """Return whether a file holds rows that were staged in that folder, as they were published."""
    return path.startswith(f"{folder}/") and not is_kept_copy(path)


def is_of_one_transaction(path: str) -> bool:
    """Return whether a file holds the rows of one transaction, and lies where they were staged."""
    return OWN_FILE.match(path) is not None

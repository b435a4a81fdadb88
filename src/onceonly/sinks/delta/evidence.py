"""The evidence in a Delta log: a number that identifies the decision and the transaction.

The `txn` version is decision << 32 | name, in which the name is the first 8 hexadecimal digits of the transaction's
nonce. So it never decreases.
"""

from __future__ import annotations

import re
from enum import Enum

from onceonly.checkpoint.model import Handle, Outcome
from onceonly.errors import CannotPublish, Fenced, StateBehind

BITS = 32
# In place of a name. The highest number, because Spark skips a version that is not above the one in the table.
GIVEN_UP = (1 << BITS) - 1
FOLDER = re.compile(r"staged-[\w-]+-([0-9a-f]{8})[0-9a-f]*")


class Shown(Enum):
    """What a version means for a transaction."""

    EARLIER = "an earlier decision, or none"  # it may be published
    OURS = "this transaction"
    GIVEN_UP = "that this decision was given up"
    ANOTHER = "another transaction at this decision"
    LATER = "a later decision"


def version(decision: int, folder: str) -> int:
    """Return the version of a transaction's commit. `folder` is its staged folder, whose name ends with the nonce."""
    match = FOLDER.fullmatch(folder)
    if match is None:
        raise CannotPublish(
            f"the folder '{folder[:200]}' is not that of a transaction.",
            "The folder in a handle is staged-<state table>-<pipeline>-<sink>-<epoch>-<attempt>-<nonce>. This one was "
            "altered.",
            "Restore the state table. Nothing was published.",
        )
    return decision << BITS | min(int(match[1], 16), GIVEN_UP - 1)  # GIVEN_UP itself would close the decision


def given_up(decision: int) -> int:
    """Return the version that closes a decision."""
    return decision << BITS | GIVEN_UP


def decision_of(version: int) -> int:
    return version >> BITS


def interpret(version: int | None, wanted: int) -> Shown:
    """Say what the table's version means for the transaction with the version `wanted`."""
    decision = wanted >> BITS
    if version is None or decision_of(version) < decision:
        return Shown.EARLIER
    if decision_of(version) > decision:
        return Shown.LATER
    if version == wanted:
        return Shown.OURS
    return Shown.GIVEN_UP if version == given_up(decision) else Shown.ANOTHER


def outcome(sink: str, handle: Handle, version: int | None, wanted: int) -> Outcome | None:
    """Return the outcome of a transaction whose table has `version`; None if it may be published.

    Raises:
        Fenced: it was given up.
        StateBehind: the table has a decision that the state table does not have.
    """
    match interpret(version, wanted):
        case Shown.EARLIER:
            return None
        case Shown.OURS:
            return Outcome(already=True, detail={"rows": handle["rows"]})
        case Shown.GIVEN_UP:
            raise Fenced(
                f"sink '{sink}': decision {wanted >> BITS} was given up.",
                f"{handle['uri']} is closed to it (transaction {handle['app_id']}).",
                f"The staged rows are kept in {handle['folder']}.",
            )
        case evidence_of_newer_state:
            raise _state_behind(sink, handle, evidence_of_newer_state, version or 0, wanted)


def _state_behind(sink: str, handle: Handle, what: Shown, version: int, wanted: int) -> StateBehind:
    pipeline = handle["app_id"].split("/")[2]
    return StateBehind(
        f"sink '{sink}': the state table is behind {handle['uri']}.",
        f"The next decision is {wanted >> BITS} ({wanted:x}), and the table shows {what.value} ({version:x}). The "
        "state table was restored from an older copy, or two copies of it are in use.",
        f"Restore a newer copy, or continue after what is published: onceonly state forward {pipeline} … "
        "(docs/operations.md, Backup and restore). Nothing was changed.",
    )

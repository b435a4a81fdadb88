"""The errors for a pipeline's table that cannot be read, or is not as Onceonly left it."""

from __future__ import annotations

from onceonly.errors import OutcomeUnknown


def damage_error(pipeline: str, uri: str, why: str) -> OutcomeUnknown:
    """Return the error for a table whose rows are not those that Onceonly wrote."""
    return OutcomeUnknown(
        f"{pipeline}: the state table at {uri} is damaged.",
        why,
        "Nothing was changed. Restore that folder from a backup before running this pipeline.",
        code="state-table-damaged",
    )


def read_error(pipeline: str, uri: str, error: Exception) -> OutcomeUnknown:
    """Return the error for a table whose storage fails with `error`."""
    why = str(error).partition("\n")[0]  # what follows is delta-rs's call stack
    return OutcomeUnknown(
        f"{pipeline}: the state table at {uri} cannot be read.",
        f"{type(error).__name__}: {why}",
        "Nothing was written. Check its storage. If files are missing, restore them, then: onceonly recover",
        code="state-table-unreadable",
    )

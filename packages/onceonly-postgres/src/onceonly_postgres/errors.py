"""The errors of this sink. postgres.toml explains their codes."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from onceonly.errors import CannotPublish, InvalidPipeline, NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly_postgres.server import Server

RESOLVE = "onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …"


def row_error(sink: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{sink}': the table does not take a row.",
        why,
        "Fix the transform, or the table's types and constraints. Nothing was staged.",
        code="postgres-row-refused",
    )


def misfits_error(sink: str, table: str, misfits: Sequence[str]) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{sink}': the rows do not fit the table {table}.",
        f"Columns: {'; '.join(misfits)}.",
        "Cast or select columns in the transform, or alter the table. A type is accepted if it holds every value "
        "exactly. Nothing was staged.",
        code="postgres-columns-unfit",
    )


def missing_table_error(sink: str, table: str, error: type[OnceonlyError]) -> OnceonlyError:
    return error(
        f"sink '{sink}': there is no table {table}.",
        "It was dropped or renamed, or this role may not look into its schema. A view is no table.",
        "Create it, or restore it. Nothing was written.",
        code="postgres-table-missing",
    )


def unsuitable_error(sink: str, table: str, problems: Sequence[str]) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{sink}': the table {table} cannot be written to as it is.",
        f"{'; '.join(problems)}.",
        "Alter the table, grant what is missing, or change the sink. Nothing was written.",
        code="postgres-table-unsuitable",
    )


def changed_table_error(sink: str, table: str, why: str, error: type[OnceonlyError]) -> OnceonlyError:
    return error(
        f"sink '{sink}': the table {table} was altered since the rows were staged.",
        f"{why}.",
        f"Alter it back, then: onceonly recover. Or give it up: {RESOLVE.format(sink=sink)}",
        code="postgres-table-changed",
    )


def missing_rows_error(sink: str, why: str, error: type[OnceonlyError]) -> OnceonlyError:
    return error(
        f"sink '{sink}': staged rows are missing.",
        why,
        RESOLVE.format(sink=sink),
        code="postgres-staged-rows-missing",
    )


def refused_error(server: Server, error: psycopg.Error, kind: type[OnceonlyError]) -> OnceonlyError:
    """Return the error of rows that the table refused: by a constraint, a trigger, a right that is missing."""
    return kind(
        f"sink '{server.sink}': the table refuses the staged rows.",
        server.describe(error),
        f"Fix the table, its constraints or the rights of the role, then: onceonly recover. If the rows are wrong: "
        f"{RESOLVE.format(sink=server.sink)}",
        code="postgres-publication-refused",
    )


def stage_error(server: Server, error: psycopg.Error) -> NotCommitted:
    return NotCommitted(
        f"sink '{server.sink}': the rows could not be staged.",
        server.describe(error),
        "Check the rights of the role on the schema of the staging tables. Nothing was published.",
        code="postgres-stage-refused",
    )


def locked_error(server: Server, error: psycopg.Error) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"sink '{server.sink}': somebody else holds a lock that publishing needs.",
        server.describe(error),
        "Nothing is published. End that transaction (pg_locks and pg_stat_activity show it), then: onceonly recover",
        code="postgres-locked",
    )


def foreign_handle_error(sink: str, why: str) -> CannotPublish:
    return CannotPublish(
        f"sink '{sink}': the recorded handle is not of this table.",
        why,
        "Was the state table edited by hand, or the sink's table changed? Change it back, or restore a copy.",
        code="postgres-handle-foreign",
    )


def unmarked_rows_error(sink: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{sink}': published rows cannot be taken back.",
        why,
        "Set PostgresSink(checkpoint_column=…): rows that are published from then on can be taken back. Nothing was "
        "written.",
        code="postgres-rows-not-marked",
    )

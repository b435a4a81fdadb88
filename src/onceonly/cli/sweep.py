"""onceonly sweep: end and remove what nobody will ever record."""

from __future__ import annotations

from typing import Any

import click
from rich.text import Text

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import PooledTransaction
from onceonly.cli import changing
from onceonly.cli import console as show
from onceonly.cli.app import explain, json_option, print_error, print_json
from onceonly.errors import exit_code
from onceonly.settings import Settings
from onceonly.views import queries


@click.command(short_help="Remove leftovers that no running attempt owns.")
@click.argument("pipeline", required=False)
@json_option
@click.pass_context
def sweep(ctx: click.Context, pipeline: str | None, as_json: bool) -> None:
    """Remove leftovers of ended attempts: open Kafka transactions, spooled rows, staged folders, old job reports.

    For one PIPELINE or for all. Only items with this state table's id are removed, and each one is listed. An open
    transaction keeps every read_committed reader of its topic waiting. `onceonly recover` cleans up as well.

    \b
    --json prints {"swept": [{"pipeline", "sink", "epoch", "attempt", "nonce"}, or {"pipeline", "sink", "slot", "id"}],
    "errors": [{"pipeline", "error", "what", "why", "todo"}]}.
    """
    from onceonly.runtime import job_report

    settings = Settings.from_env()
    state = queries.require_state_table(settings)
    if pipeline:
        queries.check_pipeline_exists(state, pipeline)
    coordinator = changing.coordinator(settings)
    swept: list[Transaction | PooledTransaction] = []
    errors: list[tuple[str, Exception]] = []
    for name in [pipeline] if pipeline else state.pipelines():
        try:
            swept += coordinator.sweep(name)
        except Exception as error:
            errors.append((name, error))
    job_report.sweep(coordinator.state)
    if as_json:
        errors_json = [{"pipeline": name, **explain(error)} for name, error in errors]
        print_json({"swept": [_transaction_json(txn) for txn in swept], "errors": errors_json})
    else:
        _print(swept, errors)
    if errors:
        ctx.exit(exit_code(errors[0][1]))


def _transaction_json(txn: Transaction | PooledTransaction) -> dict[str, Any]:
    identity = ("slot", "id") if isinstance(txn, PooledTransaction) else ("epoch", "attempt", "nonce")
    return {name: getattr(txn, name) for name in ("pipeline", "sink", *identity)}


def _describe(txn: Transaction | PooledTransaction) -> str:
    if isinstance(txn, PooledTransaction):
        return f"{txn.pipeline}, sink '{txn.sink}': ended {txn.id}"
    return f"{txn.pipeline} epoch {txn.epoch} attempt {txn.attempt}, sink '{txn.sink}': removed {txn.name}"


def _print(swept: list[Transaction | PooledTransaction], errors: list[tuple[str, Exception]]) -> None:
    for txn in swept:
        show.console().print(Text.assemble(("✓ ", "green"), _describe(txn)))
    for _, error in errors:
        print_error(explain(error))
    if not swept and not errors:
        show.console().print("Nothing to sweep: every pending transaction belongs to a live attempt.")

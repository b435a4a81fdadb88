"""onceonly recover, sweep, forget: settle what ended owners left behind, and remove what nobody needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from onceonly.checkpoint.model import State, Transaction
from onceonly.checkpoint.sink import PooledTransaction
from onceonly.cli import console, environment
from onceonly.cli.app import error_json, json_option, print_error, print_json
from onceonly.errors import exit_code
from onceonly.settings import Settings
from onceonly.views import changes, queries

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Coordinator

STYLES = {changes.PLAIN: "", changes.WAITS: "yellow", changes.ASIDE: "dim"}


@click.command(short_help="Settle what ended owners left behind.")
@click.argument("pipeline", required=False)
@click.option("--force", is_flag=True, help="Treat every owner as ended. Make sure first that none is running.")
@json_option
@click.pass_context
def recover(ctx: click.Context, pipeline: str | None, force: bool, as_json: bool) -> None:
    """Settle what ended owners left behind, of one PIPELINE or of all.

    Decided checkpoints are published. Staged ones are decided, by their gate if they have one, and published. The
    rest are aborted. Checkpoints whose owner is running stay unchanged (an owner on another machine counts as running
    for an hour after its last step), and so do held ones: their gate failed them, and `onceonly approve` or
    `onceonly abort` decides.

    \b
    --json prints {"recovered": [{"was", …}], "errors": [{"pipeline", "error",
    "code", "what", "why", "todo"}]}, each checkpoint with the keys of
    `onceonly status PIPELINE --json`. The exit code is that of the first error.
    """
    settings = Settings.from_env()
    names = _select_pipelines(settings, pipeline)
    coordinator = environment.open_coordinator(settings)
    recovered: list[dict[str, Any]] = []
    errors: list[tuple[str, Exception]] = []
    for name in names:
        settled, error = _recover(coordinator, name, force)
        recovered += settled
        if error:
            errors.append((name, error))
    if as_json:
        print_json({"recovered": recovered, "errors": _errors_json(errors)})
    else:
        _print_recovered(recovered, errors)
    if errors:
        ctx.exit(exit_code(errors[0][1]))


def _select_pipelines(settings: Settings, pipeline: str | None) -> list[str]:
    """Return that pipeline, which must exist, or all."""
    state = queries.require_state_table(settings)
    if pipeline is None:
        return state.pipelines()
    queries.check_pipeline_exists(state, pipeline)
    return [pipeline]


def _recover(coordinator: Coordinator, name: str, force: bool) -> tuple[list[dict[str, Any]], Exception | None]:
    """Recover a pipeline, and return what was unsettled, as it is now.

    The error is the first one, raised after everything else was tried.
    """
    error: Exception | None = None
    try:
        unsettled = coordinator.state_table.view(name).open
        error = _settle(coordinator, name, force)
        view = coordinator.state_table.view(name)
    except Exception as unreadable:  # its rows: those of other pipelines may be sound
        return [], error or unreadable
    settled = []
    for checkpoint in unsettled:
        current = view.checkpoint(checkpoint.epoch) or checkpoint
        settled.append({"was": checkpoint.state.value, **queries.to_json(current)})
    return settled, error


def _settle(coordinator: Coordinator, name: str, force: bool) -> Exception | None:
    from onceonly.runtime.owners import is_alive, is_never_alive

    try:
        coordinator.recover(name, is_never_alive if force else is_alive)
    except Exception as error:
        return error
    return None


def _errors_json(errors: list[tuple[str, Exception]]) -> list[dict[str, str]]:
    return [{"pipeline": name, **error_json(error)} for name, error in errors]


def _print_recovered(recovered: list[dict[str, Any]], errors: list[tuple[str, Exception]]) -> None:
    out = console.open_console()
    for change in recovered:
        out.print(change_text(change))
    for _, error in errors:
        print_error(error_json(error))
    if not recovered and not errors:
        out.print(changes.NOTHING_TO_SETTLE)


def change_text(change: dict[str, Any]) -> Text:
    """Return '✓ flights epoch 7: staged → committed, 6,000 rows'.

    Args:
        change: the JSON of a checkpoint as it is now, and in "was" the state before.
    """
    mark, colour = "✓ ", "green"
    if not State(change["state"]).is_settled:
        mark, colour = "• ", "yellow"
    text = Text.assemble((mark, colour))
    for part, kind in changes.list_parts(change):
        if kind == changes.STATE:
            text.append(console.state_label(part))
        else:
            text.append(part, STYLES[kind])
    return text


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
    "errors": [{"pipeline", "error", "code", "what", "why", "todo"}]}.
    """
    from onceonly.runtime import job_report

    settings = Settings.from_env()
    names = _select_pipelines(settings, pipeline)
    coordinator = environment.open_coordinator(settings)
    swept: list[Transaction | PooledTransaction] = []
    errors: list[tuple[str, Exception]] = []
    for name in names:
        try:
            swept += coordinator.sweep(name)
        except Exception as error:
            errors.append((name, error))
    job_report.sweep_reports(coordinator.state_table)
    if as_json:
        print_json({"swept": [_transaction_json(txn) for txn in swept], "errors": _errors_json(errors)})
    else:
        _print_swept(swept, errors)
    if errors:
        ctx.exit(exit_code(errors[0][1]))


def _transaction_json(txn: Transaction | PooledTransaction) -> dict[str, Any]:
    name = {"pipeline": txn.pipeline, "sink": txn.sink}
    if isinstance(txn, PooledTransaction):
        return {**name, "slot": txn.slot, "id": txn.id}
    return {**name, "epoch": txn.epoch, "attempt": txn.attempt, "nonce": txn.nonce}


def _describe_swept(txn: Transaction | PooledTransaction) -> str:
    if isinstance(txn, PooledTransaction):
        return f"{txn.pipeline}, sink '{txn.sink}': ended {txn.id}"
    return f"{txn.pipeline} epoch {txn.epoch} attempt {txn.attempt}, sink '{txn.sink}': removed {txn.name}"


def _print_swept(swept: list[Transaction | PooledTransaction], errors: list[tuple[str, Exception]]) -> None:
    for txn in swept:
        console.print_done(_describe_swept(txn))
    for _, error in errors:
        print_error(error_json(error))
    if not swept and not errors:
        console.open_console().print("Nothing to sweep: every pending transaction belongs to a live attempt.")


@click.command(short_help="Let the next checkpoint remove what its state was.")
@click.argument("pipeline")
@json_option
def forget(pipeline: str, as_json: bool) -> None:
    """Let the next checkpoint of PIPELINE keep its state as it is then, and nothing that it was before.

    A key that the transform has deleted, or deletes in that checkpoint, is in no file of the state any more once it is
    published. There is no way back behind it: `onceonly rewind` and repairs that need an earlier state are refused.

    \b
    --json prints {"pipeline", "sink", "epoch": the last checkpoint of the state that is there}.
    """
    settings = Settings.from_env()
    queries.check_pipeline_exists(queries.require_state_table(settings), pipeline)
    last = environment.open_coordinator(settings).forget(pipeline)
    state = last.definition.pipeline.state
    assert state is not None
    if as_json:
        return print_json({"pipeline": pipeline, "sink": state.name, "epoch": last.epoch})
    what = f"what its state '{state.name}' has been, up to epoch {last.epoch}"
    console.print_done(f"{pipeline}: the next checkpoint removes {what}")

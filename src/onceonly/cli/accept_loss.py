"""onceonly accept-loss: record that a target lacks what was published to it, and continue from the target as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from onceonly import redaction
from onceonly.checkpoint.commands import PIPELINE_FILE
from onceonly.checkpoint.model import Checkpoint
from onceonly.cli import console, environment, manual
from onceonly.cli.app import json_option, print_json
from onceonly.cli.manual import person, reason_option, seen_option
from onceonly.errors import InvalidPipeline
from onceonly.runtime import pipeline_file
from onceonly.settings import Settings
from onceonly.views import descriptions, formatting, queries

if TYPE_CHECKING:
    from onceonly.coordinator.accept_loss import Loss
    from onceonly.coordinator.coordinator import Coordinator


@click.command("accept-loss", short_help="Accept that a target lacks checkpoints.")
@click.argument("pipeline")
@click.argument("sink")
@click.option(
    "--removed", is_flag=True, help="Rows that a rewind had taken out, and that are there again, were removed by hand."
)
@reason_option
@seen_option
@json_option
def accept_loss(pipeline: str, sink: str, removed: bool, reason: str, seen: int | None, as_json: bool) -> None:
    """Record that the target of SINK lacks checkpoints of PIPELINE that were published to it.

    Use it if a target was restored from an older copy or no longer exists, nothing newer can be restored, and the rows
    are to stay lost: `onceonly repair` writes them again. What is missing is shown first. The next run continues with
    the target as it is, or creates it if it no longer exists. It is refused if the target has everything. If a decided
    checkpoint waits for that sink, what is missing is recorded, and the error says how to settle that checkpoint; then
    repeat the command.

    A target that is there again after that is noticed as well: this command then records what it shows.

    \b
    --json prints {"pipeline", "sink", "target", "why",
    "missing", "found": [{"epoch", "interval", "rows"}]}: what is missing now,
    and what was recorded as missing and is there again.
    """
    from onceonly.coordinator.accept_loss import Acceptance

    settings = Settings.from_env()
    queries.check_pipeline_exists(queries.require_state_table(settings), pipeline)
    coordinator = environment.open_coordinator(settings)
    number = coordinator.state_table.view(
        pipeline
    ).head.changed  # before the loss is read: what changes after is noticed
    loss = _find_loss(coordinator, pipeline, sink, seen)
    if loss and not as_json:
        _print(loss)
    question, look = "Continue without these rows?", f"onceonly status {pipeline}"
    confirmed = manual.confirm(seen, number, question, pipeline, look, as_json)
    coordinator.accept_loss(pipeline, sink, Acceptance(person(), reason, removed, confirmed))
    if as_json:
        answer = {"pipeline": pipeline, "sink": sink}
        if loss:
            answer = _loss_json(loss)
        return print_json(redaction.hide_credentials(answer))
    words = f"{pipeline}: sink '{sink}' continues from its target as it is, recorded by {person()}: {reason}"
    console.print_done(words)


def _find_loss(coordinator: Coordinator, pipeline: str, sink: str, seen: int | None) -> Loss | None:
    """Return what is lost; None, where this very acceptance is recorded already."""
    try:
        return coordinator.loss(pipeline, sink)
    except InvalidPipeline:
        if seen is None:
            raise
        return None  # the acceptance itself distinguishes a repetition from what it refuses


def _print(loss: Loss) -> None:
    out, sink = console.open_console(), loss.comparison.sink
    why = loss.comparison.history.why or "it has its last publication"
    out.print(f"{loss.comparison.last.target}: {why}", markup=False, highlight=False)
    table = console.make_table("epoch", "committed", "covers", "rows", "", right=("epoch", "rows"))
    for checkpoint in loss.missing:
        table.add_row(*_columns(checkpoint, sink), Text("missing", "red"))
    for checkpoint in loss.found_again:
        table.add_row(*_columns(checkpoint, sink), Text("there again", "green"))
    if loss.missing or loss.found_again:
        out.print(table)
    else:
        out.print("No checkpoint is missing there.")
    if loss.missing:
        command = f"onceonly repair {PIPELINE_FILE} {sink} --reason …"
        command = pipeline_file.name_pipeline(command, Settings.from_env().project, loss.comparison.view.pipeline)
        out.print(f"To write them again instead: {command}", style="dim", markup=False)


def _columns(checkpoint: Checkpoint, sink: str) -> tuple[str, str, str, str]:
    rows = formatting.number(checkpoint.handles[sink].get("rows"))
    coverage = descriptions.describe_coverage(checkpoint)
    if checkpoint.interval:
        coverage = str(checkpoint.interval)
    return str(checkpoint.epoch), formatting.clock(checkpoint.updated_at), coverage, rows


def _loss_json(loss: Loss) -> dict[str, Any]:
    comparison = loss.comparison
    return {
        "pipeline": comparison.view.pipeline,
        "sink": comparison.sink,
        "target": comparison.last.target,
        "why": comparison.history.why,
        "missing": [_checkpoint_json(checkpoint, comparison.sink) for checkpoint in loss.missing],
        "found": [_checkpoint_json(checkpoint, comparison.sink) for checkpoint in loss.found_again],
    }


def _checkpoint_json(checkpoint: Checkpoint, sink: str) -> dict[str, Any]:
    interval, rows = queries.interval_json(checkpoint.interval), checkpoint.handles[sink].get("rows")
    return {"epoch": checkpoint.epoch, "interval": interval, "rows": rows}

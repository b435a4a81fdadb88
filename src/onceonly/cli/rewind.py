"""onceonly rewind: take back what later checkpoints published, and continue from an earlier one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.text import Text

from onceonly.checkpoint.model import Checkpoint
from onceonly.cli import console, environment, manual
from onceonly.cli.app import json_option, print_json
from onceonly.cli.manual import person, seen_option
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings
from onceonly.views import descriptions, formatting, queries

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Coordinator


@click.command(short_help="Take back later checkpoints; continue from an earlier one.")
@click.argument("pipeline")
@click.argument("epoch", type=int)
@click.option("--reason", required=True, help="Recorded with your name, and shown by `onceonly describe`.")
@seen_option
@json_option
def rewind(pipeline: str, epoch: int, reason: str, seen: int | None, as_json: bool) -> None:
    """Bring PIPELINE back to where it was after EPOCH: offsets, state, and what is published.

    What later checkpoints published is shown, then taken out of every sink; the next run reads their records again.
    It is refused, before it asks, while anything is unsettled, and if a sink cannot take back its rows (Kafka).
    Only for chained pipelines: an interval is replaced by `onceonly run … --interval … --reprocess`.

    \b
    --json prints the checkpoint as `onceonly status PIPELINE
    --json` does, and "undone": the epochs that were taken back.
    """
    settings = Settings.from_env()
    queries.require_checkpoint(queries.require_state_table(settings), pipeline, epoch)
    coordinator = environment.open_coordinator(settings)
    number = coordinator.state.view(pipeline).head.changed  # read first: what changes after is noticed
    undone = _list_undone(coordinator, pipeline, epoch, seen)
    if undone and not as_json:
        _print(undone)
    question, look = "Take all of this back, and read its records again?", f"onceonly status {pipeline}"
    confirmed = manual.confirm(seen, number, question, pipeline, look, as_json)
    rewind_checkpoint = coordinator.rewind(pipeline, epoch, person(), reason, confirmed)
    if as_json:
        undone_epochs = [checkpoint.epoch for checkpoint in undone]
        return print_json({**queries.to_json(rewind_checkpoint), "undone": undone_epochs})
    words = (
        f"epoch {rewind_checkpoint.epoch}: {pipeline} is where it was after epoch {epoch}; "
        "the next run continues from there"
    )
    console.open_console().print(Text.assemble(("✓ ", "green"), words))


def _list_undone(coordinator: Coordinator, pipeline: str, epoch: int, seen: int | None) -> list[Checkpoint]:
    """Return what is going to be taken back; nothing, where this very rewind is recorded already."""
    try:
        return coordinator.undone(pipeline, epoch)
    except InvalidPipeline:
        if seen is None:
            raise
        return []  # the rewind itself distinguishes a repetition from what it refuses


def _print(undone: list[Checkpoint]) -> None:
    table = console.make_table("epoch", "committed", "covers", "published", right=("epoch",))
    for checkpoint in undone:
        rows_by_sink = []
        for sink, handle in checkpoint.handles.items():
            if sink in checkpoint.published:
                rows_by_sink.append(f"{sink}: {formatting.count_rows({sink: handle.get('rows')})}")
        table.add_row(
            str(checkpoint.epoch),
            formatting.clock(checkpoint.updated_at),
            descriptions.describe_coverage(checkpoint),
            "\n".join(rows_by_sink),
        )
    console.open_console().print(table)

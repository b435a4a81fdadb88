"""onceonly rewind: take back what later checkpoints published, and continue from an earlier one."""

from __future__ import annotations

import click
from rich.text import Text

from onceonly.checkpoint.model import Checkpoint
from onceonly.cli import changing
from onceonly.cli import console as show
from onceonly.cli.app import json_option, person, print_json
from onceonly.settings import Settings
from onceonly.views import formatting, queries


@click.command(short_help="Take back later checkpoints; continue from an earlier one.")
@click.argument("pipeline")
@click.argument("epoch", type=int)
@click.option("--reason", required=True, help="Recorded with your name, and shown by `onceonly describe`.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def rewind(pipeline: str, epoch: int, reason: str, yes: bool, as_json: bool) -> None:
    """Bring PIPELINE back to where it was after EPOCH: offsets, state, and what is published.

    What later checkpoints published is shown, then taken out of every sink; the next run reads their records again.
    It is refused, before it asks, while anything is unsettled, and if a sink cannot take back its rows (Kafka).
    Only for chained pipelines: an interval is replaced by `onceonly run … --interval … --reprocess`.

    \b
    --json does not ask, and prints the checkpoint as `onceonly status PIPELINE
    --json` does, and "undone": the epochs that were taken back.
    """
    settings = Settings.from_env()
    queries.checkpoint(queries.required(settings), pipeline, epoch)
    through = changing.coordinator(settings)
    later = through.undone(pipeline, epoch)
    if not as_json:
        _print(later)
        if not yes:
            click.confirm("Take all of this back, and read its records again?", abort=True)
    done = through.rewind(pipeline, epoch, person(), reason)
    if as_json:
        return print_json({**queries.to_json(done), "undone": [cp.epoch for cp in later]})
    words = f"epoch {done.epoch}: {pipeline} is where it was after epoch {epoch}; the next run continues from there"
    show.console().print(Text.assemble(("✓ ", "green"), words))


def _print(later: list[Checkpoint]) -> None:
    table = show.table("epoch", "committed", "covers", "published", right=("epoch",))
    for checkpoint in later:
        published = "\n".join(
            f"{sink}: {formatting.counted({sink: handle.get('rows')})}"
            for sink, handle in checkpoint.handles.items()
            if sink in checkpoint.published
        )
        table.add_row(
            str(checkpoint.epoch), formatting.clock(checkpoint.updated_at), formatting.covers(checkpoint), published
        )
    show.console().print(table)

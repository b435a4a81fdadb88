"""onceonly rewind, skip: a person changes where a pipeline continues: earlier, or after what is left out on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onceonly.checkpoint.interval_text import parse_interval
from onceonly.checkpoint.model import Checkpoint
from onceonly.cli import console, environment, manual
from onceonly.cli.app import json_option, print_json
from onceonly.cli.manual import person, reason_option, seen_option
from onceonly.cli.status import checkpoints_table
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings
from onceonly.views import descriptions, formatting, queries

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.coordinator.manual import Seen
    from onceonly.statetable.table import StateTable

CHECKPOINTS_SHOWN = 5  # before a person is asked
Offsets = tuple[str | None, int | None, int | None]


@click.command(short_help="Take back later checkpoints; continue from an earlier one.")
@click.argument("pipeline")
@click.argument("epoch", type=int)
@reason_option
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
    number = coordinator.state_table.view(pipeline).head.changed  # read first: what changes after is noticed
    undone = _list_undone(coordinator, pipeline, epoch, seen)
    if undone and not as_json:
        _print_undone(undone)
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
    console.print_done(words)


def _list_undone(coordinator: Coordinator, pipeline: str, epoch: int, seen: int | None) -> list[Checkpoint]:
    """Return what is going to be taken back; nothing, where this very rewind is recorded already."""
    try:
        return coordinator.list_undone(pipeline, epoch)
    except InvalidPipeline:
        if seen is None:
            raise
        return []  # the rewind itself distinguishes a repetition from what it refuses


def _print_undone(undone: list[Checkpoint]) -> None:
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


@click.command(short_help="Leave out an interval, or offsets, on purpose.")
@click.argument("pipeline")
@click.option("--interval", nargs=2, metavar="START END", help="The whole gap, as `status` shows it.")
@click.option("--topic", help="For a chained pipeline: the topic or table whose offsets or versions are left out.")
@click.option("--partition", type=click.IntRange(0), help="The partition of the topic; 0 for a table.")
@click.option("--to", type=click.IntRange(1), help="The offset or version at which the pipeline continues.")
@click.option("--reason", required=True, help="Recorded with your name, and shown by `onceonly status PIPELINE`.")
@seen_option
@json_option
def skip(
    pipeline: str,
    interval: tuple[str, str] | None,
    topic: str | None,
    partition: int | None,
    to: int | None,
    reason: str,
    seen: int | None,
    as_json: bool,
) -> None:
    """Record that a gap between two intervals of PIPELINE is left out on purpose: it is no longer shown as missing.

    Nothing is read and nothing is published for it. To run it later anyway: `onceonly run … --interval START END
    --reprocess`, or a run of that interval whose conf is {"reprocess": true}.

    For a chained pipeline, pass --topic, --partition and --to. All records before that offset that the pipeline has
    not read yet are left out, including good ones. Nothing may be unsettled.

    It is refused if the pipeline has changed since you looked at it (of intervals: if another one has begun).

    --json prints the checkpoint as `onceonly status PIPELINE --json` does.
    """
    if not reason.strip():
        raise click.BadParameter("it is empty.", param_hint="--reason")
    settings = Settings.from_env()
    _check_options(interval, (topic, partition, to))
    what = f"all that is unread of {topic}:{partition} before {to}"
    if interval:
        what = f"the interval {parse_interval(*interval)}"
    confirmed = _look_at_pipeline(queries.require_state_table(settings), pipeline, seen, f"Leave out {what}?", as_json)
    coordinator = environment.open_coordinator(settings)
    if interval:
        checkpoint = coordinator.skip(pipeline, parse_interval(*interval), person(), reason, confirmed)
        words = f"epoch {checkpoint.epoch}: {checkpoint.interval} is left out"
    else:
        checkpoint = _skip_offsets(coordinator, pipeline, (topic, partition, to), reason, confirmed)
        words = f"epoch {checkpoint.epoch} {descriptions.describe_coverage(checkpoint)}"
    if as_json:
        return print_json(queries.to_json(checkpoint))
    console.print_done(words)


def _check_options(interval: tuple[str, str] | None, offsets: Offsets) -> None:
    """Refuse options that name both an interval and offsets, or offsets in part."""
    are_passed = [part is not None for part in offsets]
    is_wrong = any(are_passed) if interval else not all(are_passed)
    if is_wrong:
        raise click.UsageError("Give --interval, or all of --topic, --partition and --to.")


def _look_at_pipeline(state_table: StateTable, pipeline: str, seen: int | None, question: str, as_json: bool) -> Seen:
    """Return what the person has looked at; where the person is asked, the last checkpoints are printed first."""
    queries.check_pipeline_exists(state_table, pipeline)
    number = state_table.view(pipeline).head.changed
    if manual.must_show(seen, as_json):
        console.open_console().print(
            checkpoints_table(queries.list_recent(state_table, pipeline, CHECKPOINTS_SHOWN), {})
        )
    return manual.confirm(seen, number, question, pipeline, f"onceonly status {pipeline}", as_json)


def _skip_offsets(coordinator: Coordinator, pipeline: str, offsets: Offsets, reason: str, seen: Seen) -> Checkpoint:
    from onceonly.coordinator.skip import Skip

    topic, partition, to = offsets
    return coordinator.skip_offsets(pipeline, Skip(topic or "", partition or 0, to or 0, person(), reason, seen))

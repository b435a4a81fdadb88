"""onceonly status: what every pipeline, or one pipeline, has done recently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import Interval
from onceonly.cli import console as show
from onceonly.cli import target
from onceonly.cli.app import explain, json_option, print_json, tell
from onceonly.errors import OutcomeUnknown, exit_code
from onceonly.settings import Settings
from onceonly.views import formatting, queries, superseded, timeouts
from onceonly.views.superseded import Superseded

if TYPE_CHECKING:
    from onceonly.statetable.table import StateTable

RECENT = 20
HELP = f"""What every pipeline has done last; of one PIPELINE, its recent checkpoints.

\b
--json prints {{"state_table", "pipelines": [{{"pipeline", "epoch", "state",
"committed_at", "rows", "rows_by_sink", "unsettled", "held", "refused",
"stage_again", "missing", "gaps"}}]}}, with "errors" where the rows of others are damaged, and for one
pipeline {{"state_table", "pipeline", "seen", "missing", "gaps",
"checkpoints": […]}}; "seen" is the number for --seen of skip, rewind, state
forward and accept-loss; "unsettled", "held", "refused" (a person has to act) and
"stage_again" (nobody has begun) are epochs, "missing" says by sink
how many checkpoints its target has lost, "gaps" are [{{"start", "end"}}] that no interval covers, and
checkpoints have "replaced_by" and "rewound_by" (epochs), and
{queries.KEYS}.
"""


@click.command(help=HELP, short_help="What the pipelines have done recently.")
@click.argument("pipeline", required=False)
@click.option("--last", default=RECENT, show_default=True, type=click.IntRange(1), help="How many checkpoints.")
@json_option
@click.pass_context
def status(ctx: click.Context, pipeline: str | None, last: int, as_json: bool) -> None:
    settings = Settings.from_env()
    state = queries.existing(settings)
    if pipeline:
        state = state or queries.required(settings)
        queries.check_known(state, pipeline)
        _one(state, pipeline, queries.recent(state, pipeline, last), as_json)
    else:
        damaged = _all(settings, state, as_json)
        if damaged:
            ctx.exit(exit_code(damaged[0]))


@dataclass(frozen=True)
class _Summary:
    """A pipeline in one line; of its recent checkpoints, and every one that waits, the newest first."""

    checkpoints: list[Checkpoint]
    gaps: list[Interval]
    missing: Mapping[str, int]  # by sink: how many checkpoints its target lacks

    @property
    def latest(self) -> Checkpoint:
        return self.checkpoints[0]

    @property
    def committed_at(self) -> datetime | None:
        return next((cp.updated_at for cp in self.checkpoints if cp.state is State.COMMITTED), None)

    @property
    def unsettled(self) -> list[Checkpoint]:
        """The oldest first."""
        return [cp for cp in reversed(self.checkpoints) if not cp.state.settled]

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.latest.pipeline,
            "epoch": self.latest.epoch,
            "state": self.latest.state.value,
            "committed_at": queries.iso(self.committed_at) if self.committed_at else None,
            "rows": queries.rows(self.latest),
            "rows_by_sink": queries.rows_by_sink(self.latest),
            "unsettled": [cp.epoch for cp in self.unsettled],
            "held": [cp.epoch for cp in self.unsettled if cp.held],
            "refused": [cp.epoch for cp in self.unsettled if cp.refused],
            "stage_again": [cp.epoch for cp in reversed(self.checkpoints) if cp.has_to_be_staged_again],
            "missing": dict(self.missing),
            **_spans(self.gaps),
        }


def _summaries(state: StateTable) -> tuple[list[_Summary], list[OutcomeUnknown]]:
    """And why other pipelines cannot be read."""
    found, damaged = queries.overview(state, state.pipelines(), RECENT)
    gaps = queries.gaps(state, [checkpoints[0] for checkpoints in found.values()])
    listed = [_Summary(found[name], gaps.get(name, []), queries.missing(state, name)) for name in found]
    return listed, list(damaged.values())


def _all(settings: Settings, state: StateTable | None, as_json: bool) -> list[OutcomeUnknown]:
    """Print what can be read; returns why the rest cannot."""
    found, damaged = _summaries(state) if state else ([], [])
    if as_json:
        errors = {"errors": [explain(error) for error in damaged]} if damaged else {}
        print_json({"state_table": settings.state, "pipelines": [each.to_json() for each in found], **errors})
    else:
        if found or not damaged:
            _print_all(settings, found)
        for error in damaged:
            tell(explain(error))
    return damaged


def _print_all(settings: Settings, found: list[_Summary]) -> None:
    out = show.console()
    if not found:
        out.print(f"Nothing has run yet: there is no checkpoint in {formatting.place(settings.state)}.", markup=False)
        return out.print(f"Start with: onceonly run {target.example(settings.project)}", style="dim", markup=False)
    table = show.table("pipeline", "epoch", "state", "last commit", "rows", "unsettled", right=("epoch",))
    for each in found:
        table.add_row(
            each.latest.pipeline,
            str(each.latest.epoch),
            show.state_text(each.latest),
            f"{formatting.age(each.committed_at)} ago" if each.committed_at else "never",
            formatting.rows(each.latest),
            Text(formatting.unsettled(each.unsettled), "yellow"),
        )
    out.print(table)
    _print_advice(out, [cp for each in found for cp in reversed(each.checkpoints)])
    for each in found:
        _print_missing(out, each.latest.pipeline, each.missing)
    _print_gaps(out, {each.latest.pipeline: each.gaps for each in found})


def _print_advice(out: Console, checkpoints: list[Checkpoint]) -> None:
    """Recovery settles what an ended owner left; the others wait for a person."""
    for cp in checkpoints:
        if waits := formatting.waits(cp):
            out.print(Text(waits, "yellow"))
    if any(not cp.state.settled and not formatting.waits(cp) for cp in checkpoints):
        out.print("Unsettled checkpoints of ended owners are settled by: onceonly recover", style="dim")


def _one(state: StateTable, pipeline: str, checkpoints: list[Checkpoint], as_json: bool) -> None:
    seen = state.view(pipeline).head.changed
    gaps, later = queries.gaps(state, checkpoints[:1]), superseded.superseded(state, checkpoints)
    if as_json:
        listed = [queries.to_json(cp) | superseded.to_json(later, cp.epoch) for cp in checkpoints]
        more = {"seen": seen, "missing": dict(queries.missing(state, pipeline))}
        of = {"state_table": state.uri, "pipeline": pipeline, **more, **_spans(gaps.get(pipeline, []))}
        return print_json({**of, "checkpoints": listed})
    out = show.console()
    out.print(checkpoints_table(checkpoints, later))
    for waits in filter(None, map(formatting.waits, checkpoints)):
        out.print(Text(waits, "yellow"))
    for warning in [line for cp in checkpoints for line in timeouts.warnings(cp, datetime.now(UTC))]:
        out.print(Text(warning, "yellow"))
    _print_missing(out, pipeline, queries.missing(state, pipeline))
    _print_gaps(out, gaps)
    out.print(f"As of row {seen}: skip, rewind, state forward and accept-loss take --seen {seen}.", style="dim")


def checkpoints_table(checkpoints: list[Checkpoint], later: Mapping[int, Superseded]) -> Table:
    table = show.table(
        "epoch", "state", "covers", "attempt", "rows", "decision", "age", "owner", right=("epoch", "attempt")
    )
    for cp in checkpoints:
        table.add_row(
            str(cp.epoch),
            show.state_text(cp)
            .append(f", {later[cp.epoch]}" if cp.epoch in later else "", "dim")
            .append(formatting.missing(cp), "red"),
            _covers(cp),
            str(cp.attempt or "-"),
            formatting.rows(cp),
            formatting.number(cp.decision),
            formatting.age(cp.updated_at),
            formatting.owner(cp.owner),
        )
    return table


def _covers(checkpoint: Checkpoint) -> str:
    if checkpoint.interval is None:
        return formatting.covers(checkpoint)
    return f"{checkpoint.interval}{f': {formatting.covers(checkpoint)}' if checkpoint.skipped is not None else ''}"


def _print_missing(out: Console, pipeline: str, missing: Mapping[str, int]) -> None:
    for line in formatting.missing_by_sink(pipeline, missing):
        out.print(Text(line, "red"))


def _print_gaps(out: Console, gaps: Mapping[str, list[Interval]]) -> None:
    for line in [line for pipeline, found in gaps.items() for line in formatting.gaps(pipeline, found)]:
        out.print(Text(line, "yellow"))


def _spans(gaps: list[Interval]) -> dict[str, Any]:
    return {"gaps": [queries.span(each) for each in gaps]}

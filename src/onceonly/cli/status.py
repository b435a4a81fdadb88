"""onceonly status: what every pipeline, or one pipeline, has done lately."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import Interval
from onceonly.cli import console as show
from onceonly.cli.app import json_option, print_json
from onceonly.settings import Settings
from onceonly.views import formatting, queries, timeouts

if TYPE_CHECKING:
    from onceonly.statetable.table import StateTable

RECENT = 20
HELP = f"""What every pipeline has done last; of one PIPELINE, its recent checkpoints.

\b
--json prints {{"state_table", "pipelines": [{{"pipeline", "epoch", "state",
"committed_at", "rows", "unsettled", "gaps"}}]}}, and for one pipeline
{{"state_table", "pipeline", "gaps", "checkpoints": […]}}; "gaps" are
[{{"start", "end"}}] that no interval covers, and checkpoints have
{queries.KEYS}.
"""


@click.command(help=HELP, short_help="What the pipelines have done lately.")
@click.argument("pipeline", required=False)
@click.option("--last", default=RECENT, show_default=True, type=click.IntRange(1), help="How many checkpoints.")
@json_option
def status(pipeline: str | None, last: int, as_json: bool) -> None:
    settings = Settings.from_env()
    state = queries.existing(settings)
    if pipeline:
        state = state or queries.required(settings)
        queries.check_known(state, pipeline)
        _one(state, pipeline, queries.recent(state, pipeline, last), as_json)
    else:
        _all(settings.state, settings.project, _summaries(state) if state else [], as_json)


def _summaries(state: StateTable) -> list[dict[str, Any]]:
    found = queries.recent_of(state, state.pipelines(), RECENT)
    gaps = queries.gaps(state, [checkpoints[0] for checkpoints in found.values()])
    return [_summary(checkpoints, gaps.get(name, [])) for name, checkpoints in found.items()]


def _summary(checkpoints: list[Checkpoint], gaps: list[Interval]) -> dict[str, Any]:
    latest = checkpoints[0]
    committed = next((cp for cp in checkpoints if cp.state is State.COMMITTED), None)
    unsettled = sorted(cp.epoch for cp in checkpoints if not cp.state.settled)
    return {
        "pipeline": latest.pipeline,
        "epoch": latest.epoch,
        "state": latest.state.value,
        "committed_at": committed.updated_at if committed else None,
        "rows": queries.rows(latest),
        "unsettled": unsettled,
        "gaps": gaps,
    }


def _all(uri: str, project: Path, found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        stamped = [{**each, "committed_at": _iso(each["committed_at"]), **_spans(each["gaps"])} for each in found]
        return print_json({"state_table": uri, "pipelines": stamped})
    out = show.console()
    if not found:
        out.print(f"Nothing has run yet: there is no checkpoint in {formatting.place(uri)}.", markup=False)
        from onceonly.cli import target

        return out.print(f"Start with: onceonly run {target.example(project)}", style="dim", markup=False)
    table = show.table("pipeline", "epoch", "state", "last commit", "rows", "unsettled", right=("epoch", "rows"))
    for each in found:
        committed = f"{formatting.age(each['committed_at'])} ago" if each["committed_at"] else "never"
        open_ = ", ".join(map(str, each["unsettled"]))
        state = show.state_text(State(each["state"]))
        table.add_row(
            each["pipeline"],
            str(each["epoch"]),
            state,
            committed,
            formatting.number(each["rows"]),
            Text(open_, "yellow"),
        )
    out.print(table)
    if any(each["unsettled"] for each in found):
        out.print("Unsettled checkpoints of ended owners are settled by: onceonly recover", style="dim")
    _print_gaps(out, {each["pipeline"]: each["gaps"] for each in found})


def _one(state: StateTable, pipeline: str, checkpoints: list[Checkpoint], as_json: bool) -> None:
    gaps = queries.gaps(state, checkpoints[:1])
    if as_json:
        listed = [queries.to_json(checkpoint) for checkpoint in checkpoints]
        of = {"state_table": state.uri, "pipeline": pipeline, **_spans(gaps.get(pipeline, []))}
        return print_json({**of, "checkpoints": listed})
    table = show.table(
        "epoch", "state", "covers", "attempt", "rows", "decision", "age", "owner", right=("epoch", "attempt", "rows")
    )
    for cp in checkpoints:
        table.add_row(
            str(cp.epoch),
            show.state_text(cp.state),
            _covers(cp),
            str(cp.attempt or "-"),
            formatting.number(queries.rows(cp)),
            formatting.number(cp.decision),
            formatting.age(cp.updated_at),
            formatting.owner(cp.owner),
        )
    out = show.console()
    out.print(table)
    for warning in [line for cp in checkpoints for line in timeouts.warnings(cp, datetime.now(UTC))]:
        out.print(Text(warning, "yellow"))
    _print_gaps(out, gaps)


def _covers(checkpoint: Checkpoint) -> str:
    if checkpoint.interval is None:
        return formatting.covers(checkpoint)
    return f"{checkpoint.interval}{f': {formatting.covers(checkpoint)}' if checkpoint.skipped is not None else ''}"


def _print_gaps(out: Console, gaps: Mapping[str, list[Interval]]) -> None:
    for line in [line for pipeline, found in gaps.items() for line in formatting.gaps(pipeline, found)]:
        out.print(Text(line, "yellow"))


def _spans(gaps: list[Interval]) -> dict[str, Any]:
    return {"gaps": [queries.span(each) for each in gaps]}


def _iso(time: Any) -> str | None:
    return queries.iso(time) if time else None

"""onceonly status, metrics: where every pipeline is, for people and for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import Interval
from onceonly.checkpoint.owner_keys import parse_airflow_run
from onceonly.cli import console
from onceonly.cli.app import error_json, json_option, print_error, print_json
from onceonly.errors import OutcomeUnknown, exit_code
from onceonly.runtime import owners, pipeline_file
from onceonly.settings import Settings
from onceonly.views import descriptions, formatting, gap_advice, provenance, queries, verified
from onceonly.views.provenance import Superseded
from onceonly.views.summary import Summary, list_timeout_warnings, read_summaries

if TYPE_CHECKING:
    from onceonly.statetable.table import StateTable

MAX_CHECKPOINTS_SHOWN = 20  # by default
STATUS_HELP = f"""What every pipeline has done last; of one PIPELINE, its recent checkpoints.

\b
--json prints {{"state_table", "state_table_from", "pipelines": [{{"pipeline", "epoch", "state",
"committed_at", "committed_epoch", "rows", "rows_by_sink", "bad",
"complete_until", "unsettled", "held", "refused", "stage_again", "missing",
"gaps"}}]}}, with "errors" where the rows of others are damaged, and for one
pipeline {{"state_table", "state_table_from", "pipeline", "seen", "missing",
"gaps", "verified", "checkpoints": […]}}; "verified" is the last verification
{{"at", "judgement", "right_until"}}, or null; "state_table_from" is the variable that says where
the state table is, or null; "epoch" and "state" are of the last checkpoint,
"committed_at" to "bad" of the last one that is committed, repairs included, the rows
of its records as they are in force now; "complete_until": up to when the published rows are
complete; "seen" is the number for --seen of skip, rewind, state forward and
accept-loss; "unsettled", "held", "refused" (a person has to act) and
"stage_again" (nobody has begun) are epochs, "missing" says by sink how many
checkpoints its target has lost, "gaps" are the missing intervals
[{{"start", "end"}}], and checkpoints have "replaced_by" and "rewound_by" (epochs), and
{queries.KEYS}.
"""


@click.command(help=STATUS_HELP, short_help="What the pipelines have done recently.")
@click.argument("pipeline", required=False)
@click.option(
    "--last", default=MAX_CHECKPOINTS_SHOWN, show_default=True, type=click.IntRange(1), help="How many checkpoints."
)
@json_option
@click.pass_context
def status(ctx: click.Context, pipeline: str | None, last: int, as_json: bool) -> None:
    settings = Settings.from_env()
    state = queries.find_state_table(settings)
    if pipeline:
        state = state or queries.require_state_table(settings)
        queries.check_pipeline_exists(state, pipeline)
        _show_one(settings, state, pipeline, queries.list_recent(state, pipeline, last), as_json)
    else:
        damaged = _show_all(settings, state, as_json)
        if damaged:
            ctx.exit(exit_code(damaged[0]))


def _summary_json(summary: Summary) -> dict[str, Any]:
    latest, last_commit = summary.latest, summary.last_commit
    return {
        "pipeline": summary.name,
        "epoch": latest.epoch,
        "state": latest.state.value,
        "committed_at": queries.iso(last_commit.updated_at) if last_commit else None,
        "committed_epoch": last_commit.epoch if last_commit else None,
        "rows": summary.rows,
        "rows_by_sink": dict(summary.rows_by_sink),
        "bad": summary.bad_records,
        "complete_until": queries.iso(summary.complete_until) if summary.complete_until else None,
        "unsettled": [cp.epoch for cp in summary.open],
        "held": [cp.epoch for cp in summary.open if cp.is_held],
        "refused": [cp.epoch for cp in summary.open if cp.refused],
        "stage_again": [cp.epoch for cp in summary.open_or_unfit if cp.has_to_be_staged_again],
        "missing": dict(summary.missing),
        **queries.gaps_json(summary.gaps),
    }


def _show_all(settings: Settings, state_table: StateTable | None, as_json: bool) -> list[OutcomeUnknown]:
    """Print what can be read; returns why the rest cannot."""
    summaries: list[Summary] = []
    damaged: list[OutcomeUnknown] = []
    if state_table:
        by_name, errors_by_name = read_summaries(state_table, state_table.pipelines())
        summaries, damaged = list(by_name.values()), list(errors_by_name.values())
    if as_json:
        answer = {**queries.state_table_json(settings), "pipelines": [_summary_json(summary) for summary in summaries]}
        if damaged:
            answer["errors"] = [error_json(error) for error in damaged]
        print_json(answer)
    else:
        if summaries or not damaged:
            _print_all(settings, state_table, summaries)
        for error in damaged:
            print_error(error_json(error))
    return damaged


def _print_all(settings: Settings, state_table: StateTable | None, summaries: list[Summary]) -> None:
    out = console.open_console()
    if not summaries:
        out.print(f"Nothing has run yet: there is no checkpoint in {formatting.place(settings.state)}.", markup=False)
        out.print(queries.describe_state_table(settings), style="dim", markup=False)
        return out.print(
            f"Start with: onceonly run {pipeline_file.find_example(settings.project)}", style="dim", markup=False
        )
    table = console.make_table("pipeline", "epoch", "state", "last commit", "its rows", "unsettled", right=("epoch",))
    for summary in summaries:
        table.add_row(
            summary.name,
            str(summary.latest.epoch),
            console.state_text(summary.latest),
            f"{formatting.age(summary.last_commit.updated_at)} ago" if summary.last_commit else "never",
            summary.rows_text,
            Text(descriptions.describe_unsettled(summary.open), "yellow"),
        )
    out.print(table)
    checkpoints: list[Checkpoint] = []
    for summary in summaries:
        checkpoints += summary.open_or_unfit
    _print_advice(out, checkpoints)
    for summary in summaries:
        _print_missing(out, summary.name, summary.missing)
    for summary in summaries:
        if state_table:
            _print_gaps(out, settings, state_table, summary.latest, summary.gaps)
    out.print(queries.describe_state_table(settings), style="dim", markup=False)


def _print_advice(out: Console, checkpoints: list[Checkpoint]) -> None:
    """Print what checkpoints wait for a person, and what settles the rest: recovery settles what an owner left."""
    recovery_settles = False
    for checkpoint in checkpoints:
        advice = descriptions.describe_needed_action(checkpoint)
        if advice:
            out.print(Text(advice, "yellow"))
        elif not checkpoint.state.is_settled and not _print_left_behind(out, checkpoint):
            recovery_settles = True
    if recovery_settles:
        out.print("Unsettled checkpoints of ended owners are settled by: onceonly recover", style="dim")


def _print_left_behind(out: Console, checkpoint: Checkpoint) -> bool:
    """Say that nobody works on an unsettled checkpoint; False where its owner is running, or may be.

    A process of this machine is looked for. Whether a run of Airflow has ended, Airflow knows, and its page says.
    """
    step = descriptions.describe_recovery_step(checkpoint)
    if not step or owners.is_alive(checkpoint):
        return False
    name = f"{checkpoint.pipeline} epoch {checkpoint.epoch}"
    silence = descriptions.describe_silence(checkpoint)
    settle = f"Settle it: onceonly recover {checkpoint.pipeline}"
    out.print(Text(f"Nobody works on {name}, which is {checkpoint.state.value}: {silence}. {step} {settle}", "yellow"))
    return True


def _show_one(
    settings: Settings, state_table: StateTable, pipeline: str, checkpoints: list[Checkpoint], as_json: bool
) -> None:
    number = state_table.view(pipeline).head.changed
    gaps = queries.list_gaps(state_table, checkpoints[:1]).get(pipeline, [])
    later = provenance.find_superseded(state_table, checkpoints)
    last_result = verified.read_last_results(state_table.uri).get(pipeline)
    if as_json:
        return print_json(
            {
                **queries.state_table_json(settings),
                "pipeline": pipeline,
                "seen": number,
                "missing": dict(queries.missing_by_sink(state_table, pipeline)),
                **queries.gaps_json(gaps),
                "verified": verified.to_json(last_result),
                "checkpoints": [
                    queries.to_json(cp) | provenance.superseded_json(later, cp.epoch) for cp in checkpoints
                ],
            }
        )
    out = console.open_console()
    out.print(checkpoints_table(checkpoints, later))
    for checkpoint in checkpoints:
        advice = descriptions.describe_needed_action(checkpoint)
        if advice:
            out.print(Text(advice, "yellow"))
        else:
            _print_left_behind(out, checkpoint)
    for checkpoint in checkpoints:
        for warning in list_timeout_warnings(checkpoint, datetime.now(UTC)):
            out.print(Text(warning, "yellow"))
    _print_missing(out, pipeline, queries.missing_by_sink(state_table, pipeline))
    _print_gaps(out, settings, state_table, checkpoints[0], gaps)
    if last_result:
        text = verified.describe(last_result)
        out.print(Text(f"{pipeline}: {text}", "red" if last_result.judgement == "wrong" else ""))
    out.print(queries.describe_state_table(settings), style="dim", markup=False)
    out.print(f"As of row {number}: skip, rewind, state forward and accept-loss take --seen {number}.", style="dim")


def checkpoints_table(checkpoints: list[Checkpoint], later: Mapping[int, Superseded]) -> Table:
    """Return a row for each checkpoint. `later`: by epoch, what later checkpoints have made of its rows."""
    names = ("epoch", "covers", "state", "attempt", "rows", "decision", "age", "owner")
    rows: list[list[str | Text]] = []
    for checkpoint in checkpoints:
        state = console.state_text(checkpoint)
        if checkpoint.epoch in later:
            state.append(f", {later[checkpoint.epoch]}", "dim")
        state.append(descriptions.describe_missing(checkpoint), "red")
        rows.append(
            [
                str(checkpoint.epoch),
                _covers(checkpoint),
                state,
                str(checkpoint.attempt or "-"),
                formatting.rows(checkpoint),
                formatting.number(checkpoint.decision),
                formatting.age(checkpoint.updated_at),
                formatting.owner(checkpoint.owner),
            ]
        )
    return console.make_table_of_lines(names, rows, right=("epoch", "attempt"))


def _covers(checkpoint: Checkpoint) -> str:
    if checkpoint.interval is None:
        return descriptions.describe_coverage(checkpoint)
    if checkpoint.skipped is None:
        return str(checkpoint.interval)
    return f"{checkpoint.interval}: {descriptions.describe_coverage(checkpoint)}"


def _print_missing(out: Console, pipeline: str, missing: Mapping[str, int]) -> None:
    for line in descriptions.describe_losses(pipeline, missing):
        out.print(Text(line, "red"))


def _print_gaps(
    out: Console, settings: Settings, state_table: StateTable, latest: Checkpoint, gaps: Sequence[Interval]
) -> None:
    """Print the gaps of the pipeline of that checkpoint, whose owner tells its DAG."""
    if not gaps:
        return
    name, run = latest.pipeline, parse_airflow_run(latest.owner)
    width = queries.read_usual_width(state_table, name)
    for line in gap_advice.describe_gaps(name, gaps, dag_id=run[0] if run else None, width=width):
        out.print(Text(pipeline_file.name_pipeline(line, settings.project, name), "yellow"))


@click.command(short_help="Where every pipeline is, for Prometheus.")
@click.option("--lag", is_flag=True, help="Also query the sources for the lag of each pipeline.")
def metrics(lag: bool) -> None:
    """Where every pipeline is, in Prometheus' text format.

    \b
    For example for node_exporter's textfile collector. The first line, a comment,
    names the state table. In Airflow, the page serves the same metrics below
    /onceonly/metrics.
    """
    from onceonly.views.metrics import format_for_prometheus, list_samples

    settings = Settings.from_env()
    state = queries.find_state_table(settings)
    click.echo(f"# {queries.describe_state_table(settings)}")  # Prometheus passes over it
    if state is None:
        return
    summaries, damaged = read_summaries(state, state.pipelines())
    lags = {}
    if lag:
        from onceonly.cli import connections
        from onceonly.runtime import live_services

        services = live_services.LiveServices(settings, connections.read_extra)
        lags = live_services.measure_lags(services, summaries.values())
    results = verified.read_last_results(settings.state)
    samples = list_samples(summaries.values(), damaged, datetime.now(UTC), lags, results)
    click.echo(format_for_prometheus(samples), nl=False)

"""onceonly repair: show what a sink lacks, and write it again, one checkpoint after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from onceonly import redaction
from onceonly.checkpoint.model import Checkpoint
from onceonly.cli import console, environment, manual
from onceonly.cli import run as runs
from onceonly.cli.app import HINT, json_option, print_json
from onceonly.cli.manual import person, seen_option
from onceonly.counts import count
from onceonly.errors import InvalidPipeline, first_sentence
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime import pipeline_file
from onceonly.settings import Settings
from onceonly.views import descriptions, formatting, queries

if TYPE_CHECKING:
    from onceonly.coordinator.repair import Lack, Lost
    from onceonly.coordinator.reprocess import Reprocess
    from onceonly.runtime.live_services import LiveServices

HOW = {
    "missing": ("missing", "red"),
    "recorded": ("recorded as missing", "red"),
    "given_up": ("given up", "red"),
    "open": ("decided, not published", "yellow"),
}


@click.command(short_help="Write again what a sink has lost.")
@click.argument("file", metavar="FILE.py:NAME")
@click.argument("sink")
@click.option("--again", is_flag=True, help="It cannot take rows back, and gets what it has lost once more.")
@click.option("--partly", is_flag=True, help="Leave what cannot be repaired, and repair the rest.")
@click.option(
    "--removed", is_flag=True, help="Rows that a rewind had taken out, and that are there again, were removed by hand."
)
@click.option("--dry-run", is_flag=True, help="Show what the sink lacks, and change nothing.")
@click.option("--reason", help="Recorded with your name; the same reason again is the same request.")
@seen_option
@json_option
@click.pass_context
def repair(
    ctx: click.Context,
    /,
    file: str,
    sink: str,
    again: bool,
    partly: bool,
    removed: bool,
    dry_run: bool,
    reason: str | None,
    seen: int | None,
    as_json: bool,
) -> None:
    """Show what SINK of the pipeline NAME in FILE.py lacks, and write it again.

    Use it if a target went back (it was restored from an older copy, or no longer exists), or if the sink was given up.
    It records what is missing, gives up in that sink what is decided and cannot be published there, and makes one
    repair for each lost checkpoint, oldest first. Other sinks keep their rows. What was replaced or rewound since is
    left out.

    It may be interrupted at any step, and repeated: the same reason continues it. A target that is there again
    meanwhile is refused, not doubled. If records are no longer in the source, it names them before anything is written.

    \b
    --json prints {"pipeline", "sink", "target", "why", "seen", "lacks": [{"epoch",
    "interval", "rows", "how", "refusal"}], "found": [{"epoch", …}], "repaired":
    [{"in_place_of", …}], "seconds"}: what it lacked, what was recorded as missing
    and is there again, and the keys of `onceonly run --json` for each repair.
    """
    from onceonly.coordinator.repair import Wish

    start, settings = time.monotonic(), Settings.from_env()
    if reason is None and not dry_run:
        raise _missing_reason_error()
    steps = console.Steps(quiet=as_json)
    pipeline, services = _load(file, settings, dry_run)
    first_run = runs.start_run(pipeline, services, steps, file)
    coordinator = first_run.coordinator
    number = coordinator.state_table.view(pipeline.name).head.changed  # before it is looked for: a change is noticed
    lack = coordinator.lack(pipeline, sink, again)
    if not as_json:
        _print(lack)
        if dry_run and not lack.is_complete:
            steps.say(f"To write it again: onceonly repair {file} {sink} --reason … --seen {number}")
    repaired: list[dict[str, Any]] = []
    if not dry_run and not lack.is_complete:
        question = "Continue from the target as it is?"
        if lack.lost:
            question = f"Write {count(len(lack.lost), 'checkpoint')} again?"
        look = f"onceonly repair {file} {sink} --dry-run"
        wish = Wish(person(), reason or "", None, again, removed, partly)
        wish = replace(wish, seen=manual.confirm(seen, number, question, pipeline.name, look, as_json))
        requests = coordinator.begin_repair(pipeline, sink, wish)
        ctx.meta[HINT] = first_run.hint
        repaired = _carry_out(requests, pipeline, services, steps, file)
        steps.say(f"{pipeline.name}: sink '{sink}' has {count(len(repaired), 'checkpoint')} again.")
    if as_json:
        answer = {**_to_json(lack), "seen": number, "repaired": repaired}
        print_json(redaction.hide_credentials({**answer, "seconds": round(time.monotonic() - start, 3)}))


def _load(file: str, settings: Settings, dry_run: bool) -> tuple[Pipeline, LiveServices]:
    """Return the pipeline with its tables' paths, and the services that it runs on; what can be checked is checked."""
    from onceonly.runtime import live_services

    services = environment.open_services(settings)
    pipeline = pipeline_file.load_without_dags(file, settings.project)
    pipeline = live_services.locate_tables(pipeline, services)
    if not dry_run:
        live_services.check_pipeline(pipeline, services)
    return pipeline, services


def _carry_out(
    requests: Sequence[Reprocess], pipeline: Pipeline, services: LiveServices, steps: console.Steps, file: str
) -> list[dict[str, Any]]:
    """Carry out the requests in their order; what one of them raises leaves the rest to the next call."""
    repaired = []
    for number, request in enumerate(requests, start=1):
        steps.say(f"{number} of {len(requests)}: in place of epoch {request.lost}", "bold")
        this_run = runs.start_run(pipeline, services, steps, file)
        this_run.reprocess = request
        result = this_run.take_steps(None, None)
        repaired.append({"in_place_of": request.lost, "result": result, **this_run.to_json()})
    return repaired


# ---- what is shown


def _print(lack: Lack) -> None:
    out = console.open_console()
    if lack.loss:
        comparison = lack.loss.comparison
        out.print(f"{comparison.last.target}: {comparison.history.why}", markup=False, highlight=False)
    found_again = lack.loss.found_again if lack.loss else ()
    if not lack.lost and not found_again:
        out.print(f"Sink '{lack.sink}' lacks no rows.", markup=False, highlight=False)
        return
    table = console.make_table("epoch", "covers", "rows", "now", "cannot be repaired", right=("epoch", "rows"))
    for lost in lack.lost:
        words, style = HOW[lost.how]
        refusal = first_sentence(lost.refusal) if lost.refusal else ""
        table.add_row(*_columns(lost.checkpoint, lack.sink), Text(words, style), Text(refusal))
    for checkpoint in found_again:
        table.add_row(*_columns(checkpoint, lack.sink), Text("there again", "green"), "")
    out.print(table)


def _columns(checkpoint: Checkpoint, sink: str) -> tuple[str, str, str]:
    coverage = str(checkpoint.interval) if checkpoint.interval else descriptions.describe_coverage(checkpoint)
    return str(checkpoint.epoch), coverage, formatting.number(checkpoint.handles[sink].get("rows"))


def _to_json(lack: Lack) -> dict[str, Any]:
    target = why = None
    found_again = []
    if lack.loss:
        comparison = lack.loss.comparison
        target, why = comparison.last.target, comparison.history.why
        for checkpoint in lack.loss.found_again:
            found_again.append(_checkpoint_json(checkpoint, lack.sink))
    lacks = []
    for lost in lack.lost:
        lacks.append(_lost_json(lost, lack.sink))
    return {
        "pipeline": lack.pipeline.name,
        "sink": lack.sink,
        "target": target,
        "why": why,
        "lacks": lacks,
        "found": found_again,
    }


def _lost_json(lost: Lost, sink: str) -> dict[str, Any]:
    refusal = None
    if lost.refusal:
        refusal = {"code": lost.refusal.code, "what": lost.refusal.what, "why": lost.refusal.why}
    return {**_checkpoint_json(lost.checkpoint, sink), "how": lost.how, "refusal": refusal}


def _checkpoint_json(checkpoint: Checkpoint, sink: str) -> dict[str, Any]:
    interval, rows = queries.interval_json(checkpoint.interval), checkpoint.handles[sink].get("rows")
    return {"epoch": checkpoint.epoch, "interval": interval, "rows": rows}


def _missing_reason_error() -> InvalidPipeline:
    return InvalidPipeline(
        "a repair needs a reason.",
        "It is recorded, and the same reason again is the same request, which is done once.",
        "Say why: --reason TEXT, or look only: --dry-run. Nothing was written.",
        code="reason-missing",
    )

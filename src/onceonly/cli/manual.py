"""Manual actions: what a person has looked at, and onceonly approve, abort and resolve.

Every manual action names what the person has looked at: shown and confirmed in a terminal, else passed as --seen.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from onceonly.checkpoint.model import Checkpoint
from onceonly.cli import console, environment
from onceonly.cli.app import json_option, print_json
from onceonly.cli.describe import print_checkpoint
from onceonly.cli.recover import change_text
from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings
from onceonly.views import descriptions, formatting, manual_actions, queries
from onceonly.views.manual_actions import ManualAction

if TYPE_CHECKING:
    from onceonly.coordinator.manual import Seen


reason_option = click.option(
    "--reason", required=True, help="Recorded with your name, and shown by `onceonly describe`."
)


def seen_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --seen NUMBER to a command; without it, the command asks in a terminal, and is refused elsewhere."""
    text = "The number that `describe` and `status PIPELINE` show; else it shows what there is, and asks."
    return click.option("--seen", type=click.IntRange(0), metavar="NUMBER", help=text)(command)


def confirm(seen: int | None, number: int, question: str, name: str, look: str, as_json: bool) -> Seen:
    """Return what the person has looked at: the number of --seen, or what is shown now and confirmed with y.

    Args:
        seen: the value of --seen, if it was passed.
        number: of what was shown; read before it, so that what changes in between is noticed.
        look: the command that shows the number.
    Raises:
        InvalidPipeline: "seen-missing": --seen was not passed, and nobody can be asked.
    """
    from onceonly.coordinator.manual import Seen, not_seen_error

    if seen is not None:
        return Seen(seen)
    if as_json or not is_interactive():
        error = not_seen_error(name, look)
        raise InvalidPipeline(error.what, error.why, f"{error.todo} It is {number} now.", code=error.code)
    click.confirm(f"{question} (as of row {number})", abort=True)
    return Seen(number)


def must_show(seen: int | None, as_json: bool) -> bool:
    """Return whether `confirm` is going to ask: then the person has to see the subject first."""
    return seen is None and not as_json and is_interactive()


def is_interactive() -> bool:
    """Return whether somebody reads what is printed, and can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def person() -> str:
    """Return who is at the keyboard; a user id that has no name is a name as well."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


@click.command(short_help="Publish what a gate holds.")
@click.argument("pipeline")
@click.argument("epoch", type=int)
@reason_option
@seen_option
@json_option
def approve(pipeline: str, epoch: int, reason: str, seen: int | None, as_json: bool) -> None:
    """Publish checkpoint EPOCH of PIPELINE although its gate failed it (on_fail='hold').

    It is refused if the checkpoint has changed since you looked at it, such as by another attempt. The approval is
    recorded first: if publishing fails, `onceonly recover` continues it. --json prints the checkpoint as
    `onceonly status PIPELINE --json` does.
    """
    settings = Settings.from_env()
    checkpoint = queries.require_checkpoint(queries.require_state_table(settings), pipeline, epoch)
    confirmed = _confirm_checkpoint(checkpoint, seen, manual_actions.APPROVE, as_json)
    coordinator = environment.open_coordinator(settings)
    coordinator.require_sinks(pipeline, epoch)
    approved = coordinator.approve(pipeline, epoch, person(), reason, confirmed)
    published = coordinator.publish_approved(pipeline, epoch, approved.attempt)
    _print_result(formatting.state(checkpoint), published, as_json)


@click.command(short_help="Discard an undecided checkpoint.")
@click.argument("pipeline")
@click.argument("epoch", type=int)
@click.option("--reason", required=True, help="Recorded, and shown by `onceonly describe`.")
@click.option("--gone", metavar="SINK", multiple=True, help="A sink that does not answer and never will again.")
@seen_option
@json_option
def abort(pipeline: str, epoch: int, reason: str, gone: tuple[str, ...], seen: int | None, as_json: bool) -> None:
    """Discard what checkpoint EPOCH of PIPELINE has staged; only before its decision.

    Its offsets stay pinned: the next run uses the same ones. It is refused if the checkpoint has changed since you
    looked at it. --json prints the checkpoint as `onceonly status PIPELINE --json` does.
    """
    settings = Settings.from_env()
    checkpoint = queries.require_checkpoint(queries.require_state_table(settings), pipeline, epoch)
    confirmed = _confirm_checkpoint(checkpoint, seen, manual_actions.ABORT, as_json)
    coordinator = environment.open_coordinator(settings)
    coordinator.require_sinks(pipeline, epoch, gone)
    aborted = coordinator.abort(pipeline, epoch, reason, who=person(), gone=gone, seen=confirmed)
    _print_result(formatting.state(checkpoint), aborted, as_json)


@click.command(short_help="Settle a sink that cannot show its outcome, or give it up.")
@click.argument("pipeline")
@click.argument("epoch", type=int)
@click.option("--committed", metavar="SINK", help="A sink in doubt, and you know that the rows are there.")
@click.option(
    "--aborted", metavar="SINK", help="A sink in doubt, and you know that they are not: they are published again."
)
@click.option("--give-up", metavar="SINK", help="A sink that will never get these rows.")
@click.option("--gone", is_flag=True, help="With --give-up: it does not answer and never will again.")
@click.option("--removed", is_flag=True, help="With --give-up, of a rewind: you have removed the rows from it by hand.")
@reason_option
@seen_option
@json_option
def resolve(
    pipeline: str,
    epoch: int,
    committed: str | None,
    aborted: str | None,
    give_up: str | None,
    gone: bool,
    removed: bool,
    reason: str,
    seen: int | None,
    as_json: bool,
) -> None:
    """Settle a decided checkpoint by hand if the sink cannot: pass exactly one of the options that name a SINK.

    The evidence is shown first. A sink is in doubt when nothing shows the outcome any more (its log was truncated,
    its topic was recreated): --committed and --aborted record what you found out. A target that was permanently
    dropped or altered is given up: its rows of this checkpoint are then missing there, and no process can publish them.
    It is refused if the checkpoint has changed since you looked at it.
    --json prints the checkpoint as `onceonly status PIPELINE --json` does, and "given_up" and "evidence".
    """
    word, sink = _one_of({"committed": committed, "aborted": aborted, "give-up": give_up})
    settings = Settings.from_env()
    checkpoint = queries.require_checkpoint(queries.require_state_table(settings), pipeline, epoch)
    coordinator, who = environment.open_coordinator(settings), person()
    evidence = coordinator.evidence(pipeline, epoch, sink)
    if not as_json:
        print_checkpoint(console.open_console(), checkpoint)
        _print_evidence(sink, evidence)
        console.open_console().print(manual_actions.RESOLUTIONS[word].effect, markup=False)
    question = f"{sink}: {manual_actions.RESOLUTIONS[word].question}"
    look = descriptions.how_to_look(checkpoint)
    confirmed = confirm(seen, checkpoint.changed_seq, question, f"{pipeline} epoch {epoch}", look, as_json)
    if word == "give-up":
        resolved = coordinator.give_up(pipeline, epoch, sink, who, reason, gone, removed, confirmed)
    else:
        resolved = coordinator.resolve_doubt(pipeline, epoch, sink, word == "committed", who, reason, confirmed)
    if as_json:
        return print_json({**queries.to_json(resolved), "given_up": dict(resolved.given_up), "evidence": evidence})
    resolution = manual_actions.describe_resolution(word, sink, who, reason, sink not in resolved.given_up)
    _print_resolution(resolved, sink, resolution, checkpoint.state.value)


def _confirm_checkpoint(checkpoint: Checkpoint, seen: int | None, action: ManualAction, as_json: bool) -> Seen:
    """Return what the person has looked at; where the person is asked, the checkpoint is printed first."""
    if must_show(seen, as_json):
        print_checkpoint(console.open_console(), checkpoint)
        console.open_console().print(f"\n{action.effect}", markup=False)
    name, look = f"{checkpoint.pipeline} epoch {checkpoint.epoch}", descriptions.how_to_look(checkpoint)
    return confirm(seen, checkpoint.changed_seq, action.question, name, look, as_json)


def _one_of(sinks: dict[str, str | None]) -> tuple[str, str]:
    """Return the only (word, sink) of which a sink was passed.

    Raises:
        InvalidPipeline: none was passed, or several.
    """
    passed = [(word, sink) for word, sink in sinks.items() if sink]
    if len(passed) != 1:
        raise InvalidPipeline(
            "pass exactly one of --committed, --aborted and --give-up.",
            f"{len(passed)} of them are given; each names its sink.",
            "Such as: onceonly resolve PIPELINE EPOCH --give-up SINK --reason …. Nothing was changed.",
            code="option-invalid",
        )
    return passed[0]


def _print_evidence(sink: str, evidence: list[str]) -> None:
    out = console.open_console()
    out.print(Text(f"\nWhat sink '{sink}' shows now", "bold"))
    for line in evidence or ["nothing"]:
        out.print(f"  {line}", highlight=False, markup=False)
    out.print()


def _print_result(previous_state: str, checkpoint: Checkpoint, as_json: bool) -> None:
    """Print a checkpoint after an action, and in which state it was before."""
    if as_json:
        return print_json(queries.to_json(checkpoint))
    console.open_console().print(change_text(queries.to_json(checkpoint) | {"was": previous_state}))


def _print_resolution(resolved: Checkpoint, sink: str, resolution: str, previous_state: str) -> None:
    out = console.open_console()
    console.print_done(resolution)
    if sink in resolved.given_up and resolved.handles[sink]["rows"]:
        rows = count(resolved.handles[sink]["rows"], "row")
        out.print(f"  {sink} lacks {rows}, which are of {descriptions.describe_coverage(resolved)}")
    out.print(change_text(queries.to_json(resolved) | {"was": previous_state}))

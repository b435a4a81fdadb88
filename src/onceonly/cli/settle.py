"""onceonly recover, approve, abort, resolve: bring checkpoints to an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.cli import changing, looking
from onceonly.cli import console as show
from onceonly.cli.app import explain, json_option, person, print_error, print_json
from onceonly.cli.describe import print_checkpoint
from onceonly.cli.looking import seen_option
from onceonly.counts import count
from onceonly.errors import InvalidPipeline, exit_code
from onceonly.settings import Settings
from onceonly.views import descriptions, formatting, queries

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.coordinator.manual import Seen


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
    "what", "why", "todo"}]}, each checkpoint with the keys of
    `onceonly status PIPELINE --json`. The exit code is that of the first error.
    """
    settings = Settings.from_env()
    state = queries.require_state_table(settings)
    if pipeline:
        queries.check_pipeline_exists(state, pipeline)
    coordinator = changing.coordinator(settings)
    recovered: list[dict[str, Any]] = []
    errors: list[tuple[str, Exception]] = []
    for name in [pipeline] if pipeline else state.pipelines():
        changes, error = _recover(coordinator, name, force)
        recovered += changes
        if error:
            errors.append((name, error))
    if as_json:
        errors_json = [{"pipeline": name, **explain(error)} for name, error in errors]
        print_json({"recovered": recovered, "errors": errors_json})
    else:
        _print(recovered, errors)
    if errors:
        ctx.exit(exit_code(errors[0][1]))


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
    confirmed = _confirm(checkpoint, seen, "Discard what is staged?", as_json)
    coordinator = changing.coordinator(settings)
    aborted = coordinator.abort(pipeline, epoch, reason, who=person(), gone=gone, seen=confirmed)
    _print_result(formatting.state(checkpoint), aborted, as_json)


def _confirm(checkpoint: Checkpoint, seen: int | None, question: str, as_json: bool) -> Seen:
    """Return what the person has looked at; where the person is asked, the checkpoint is printed first."""
    if looking.must_show(seen, as_json):
        print_checkpoint(show.console(), checkpoint)
        show.console().print()
    name, look = f"{checkpoint.pipeline} epoch {checkpoint.epoch}", descriptions.how_to_look(checkpoint)
    return looking.confirm(seen, checkpoint.changed_seq, question, name, look, as_json)


@click.command(short_help="Publish what a gate holds.")
@click.argument("pipeline")
@click.argument("epoch", type=int)
@click.option("--reason", required=True, help="Recorded with your name, and shown by `onceonly describe`.")
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
    confirmed = _confirm(checkpoint, seen, "Publish these rows although the gate failed them?", as_json)
    coordinator = changing.coordinator(settings)
    coordinator.approve(pipeline, epoch, person(), reason, confirmed)
    _print_result(formatting.state(checkpoint), coordinator.commit(pipeline, epoch), as_json)


def _print_result(previous_state: str, checkpoint: Checkpoint, as_json: bool) -> None:
    """Print a checkpoint after an action, and in which state it was before."""
    if as_json:
        return print_json(queries.to_json(checkpoint))
    show.console().print(_change_text(queries.to_json(checkpoint) | {"was": previous_state}))


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
@click.option("--reason", required=True, help="Recorded with your name, and shown by `onceonly describe`.")
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
    word, sink = _one_of({"committed": committed, "aborted": aborted, "given up": give_up})
    settings = Settings.from_env()
    checkpoint = queries.require_checkpoint(queries.require_state_table(settings), pipeline, epoch)
    coordinator, who = changing.coordinator(settings), person()
    evidence = coordinator.evidence(pipeline, epoch, sink)
    if not as_json:
        print_checkpoint(show.console(), checkpoint)
        _print_evidence(sink, evidence)
    question, look = f"Record sink '{sink}' as {word}?", descriptions.how_to_look(checkpoint)
    confirmed = looking.confirm(seen, checkpoint.changed_seq, question, f"{pipeline} epoch {epoch}", look, as_json)
    if word == "given up":
        resolved = coordinator.give_up(pipeline, epoch, sink, who, reason, gone, removed, confirmed)
    else:
        resolved = coordinator.resolve_doubt(pipeline, epoch, sink, word == "committed", who, reason, confirmed)
    if as_json:
        return print_json({**queries.to_json(resolved), "given_up": dict(resolved.given_up), "evidence": evidence})
    if word == "given up" and sink not in resolved.given_up:
        word = "published after all"
    _print_resolution(resolved, sink, f"recorded as {word} by {who}: {reason}", checkpoint.state.value)


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
        )
    return passed[0]


def _print_resolution(resolved: Checkpoint, sink: str, resolution: str, previous_state: str) -> None:
    out = show.console()
    out.print(Text.assemble(("✓ ", "green"), f"sink '{sink}' is {resolution}"))
    if sink in resolved.given_up and resolved.handles[sink]["rows"]:
        rows = count(resolved.handles[sink]["rows"], "row")
        out.print(f"  {sink} lacks {rows}, which are of {descriptions.describe_coverage(resolved)}")
    out.print(_change_text(queries.to_json(resolved) | {"was": previous_state}))


def _print_evidence(sink: str, evidence: list[str]) -> None:
    out = show.console()
    out.print(Text(f"\nWhat sink '{sink}' shows now", "bold"))
    for line in evidence or ["nothing"]:
        out.print(f"  {line}", highlight=False, markup=False)
    out.print()


def _recover(coordinator: Coordinator, name: str, force: bool) -> tuple[list[dict[str, Any]], Exception | None]:
    """Recover a pipeline, and return what was unsettled, as it is now.

    The error is the first one, raised after everything else was tried.
    """
    error: Exception | None = None
    try:
        unsettled = coordinator.state.view(name).open
        error = _settle(coordinator, name, force)
        view = coordinator.state.view(name)
    except Exception as unreadable:  # its rows: those of other pipelines may be sound
        return [], error or unreadable
    changes = []
    for checkpoint in unsettled:
        current = view.checkpoint(checkpoint.epoch) or checkpoint
        changes.append({"was": checkpoint.state.value, **queries.to_json(current)})
    return changes, error


def _settle(coordinator: Coordinator, name: str, force: bool) -> Exception | None:
    from onceonly.runtime.owners import alive, nobody

    try:
        coordinator.recover(name, nobody if force else alive)
    except Exception as error:
        return error
    return None


def _print(recovered: list[dict[str, Any]], errors: list[tuple[str, Exception]]) -> None:
    out = show.console()
    for change in recovered:
        out.print(_change_text(change))
    for _, error in errors:
        print_error(explain(error))
    if not recovered and not errors:
        out.print("Nothing to settle: every checkpoint is committed or aborted.")


def _change_text(change: dict[str, Any]) -> Text:
    """Return 'flights epoch 7: staged → committed, 6,000 rows'.

    Args:
        change: the JSON of a checkpoint as it is now, and in "was" the state before.
    """
    state = State(change["state"])
    mark = ("✓ ", "green") if state.settled else ("• ", "yellow")
    text = Text.assemble(mark, f"{change['pipeline']} epoch {change['epoch']}: {_state_before(change)}")
    if change["was"] != change["state"]:
        text.append(" → ").append(show.label(change["state"]))
    elif not state.settled:
        text.append(_why_it_waits(state, change), "yellow")
    if state is State.COMMITTED:
        text.append(f", {formatting.count_rows(change['rows_by_sink'])}")
    if state is State.ABORTED and change["reason"]:
        text.append(f" ({change['reason']})", "dim")
    return text


def _state_before(change: dict[str, Any]) -> str:
    if change["held"]:
        return formatting.HELD
    if change["refused"]:
        return formatting.REFUSED
    return str(change["was"])


def _why_it_waits(state: State, change: dict[str, Any]) -> str:
    if state is State.COMMITTING:
        return f" still, waiting for {', '.join(change['waiting'])}"
    if change["held"]:
        decide = descriptions.how_to_decide(change["pipeline"], change["epoch"], change["seen"])
        return f" still: its gate failed it. Decide: {decide}"
    if change["refused"]:
        look = f"onceonly describe {change['pipeline']} {change['epoch']}"
        return f" still: sink '{change['refused']['sink']}' refuses it until a person acts. Look: {look}"
    owner = formatting.owner(change["owner"])
    return f" still: its owner ({owner}) is running, or may be; use --force if you know that it has ended"

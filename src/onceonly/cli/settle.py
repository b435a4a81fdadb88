"""onceonly recover, approve, abort, resolve: bring checkpoints to an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.cli import changing, looking
from onceonly.cli import console as show
from onceonly.cli.app import explain, json_option, person, print_json, tell
from onceonly.cli.describe import print_checkpoint
from onceonly.cli.looking import seen_option
from onceonly.counts import count
from onceonly.errors import InvalidPipeline, exit_code
from onceonly.settings import Settings
from onceonly.views import formatting, queries

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
    state = queries.required(settings)
    if pipeline:
        queries.check_known(state, pipeline)
    through = changing.coordinator(settings)
    recovered: list[dict[str, Any]] = []
    errors: list[tuple[str, Exception]] = []
    for name in [pipeline] if pipeline else state.pipelines():
        settled, error = _recover(through, name, force)
        recovered += settled
        errors += [(name, error)] if error else []
    if as_json:
        print_json({"recovered": recovered, "errors": [{"pipeline": name, **explain(e)} for name, e in errors]})
    else:
        _print(recovered, [error for _, error in errors])
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
    checkpoint = queries.checkpoint(queries.required(settings), pipeline, epoch)
    looked = _look(checkpoint, seen, "Discard what is staged?", as_json)
    through = changing.coordinator(settings)
    done = through.abort(pipeline, epoch, reason, who=person(), gone=gone, seen=looked)
    _told(formatting.state(checkpoint), done, as_json)


def _look(checkpoint: Checkpoint, given: int | None, question: str, as_json: bool) -> Seen:
    """What the person has looked at; where the person is asked, the checkpoint is printed first."""
    if looking.must_show(given, as_json):
        print_checkpoint(show.console(), checkpoint)
        show.console().print()
    name, look = f"{checkpoint.pipeline} epoch {checkpoint.epoch}", formatting.how_to_look(checkpoint)
    return looking.confirm(given, checkpoint.changed_seq, question, name, look, as_json)


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
    checkpoint = queries.checkpoint(queries.required(settings), pipeline, epoch)
    looked = _look(checkpoint, seen, "Publish these rows although the gate failed them?", as_json)
    through = changing.coordinator(settings)
    through.approve(pipeline, epoch, person(), reason, looked)
    _told(formatting.state(checkpoint), through.commit(pipeline, epoch), as_json)


def _told(was: str, now: Checkpoint, as_json: bool) -> None:
    if as_json:
        return print_json(queries.to_json(now))
    show.console().print(_change(queries.to_json(now) | {"was": was}))


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
    found = queries.checkpoint(queries.required(settings), pipeline, epoch)
    through, who = changing.coordinator(settings), person()
    evidence = through.evidence(pipeline, epoch, sink)
    out = show.console()
    if not as_json:
        print_checkpoint(out, found)
        _print_evidence(sink, evidence)
    question, look = f"Record sink '{sink}' as {word}?", formatting.how_to_look(found)
    looked = looking.confirm(seen, found.changed_seq, question, f"{pipeline} epoch {epoch}", look, as_json)
    if word == "given up":
        now = through.give_up(pipeline, epoch, sink, who, reason, gone, removed, looked)
    else:
        now = through.resolve_doubt(pipeline, epoch, sink, word == "committed", who, reason, looked)
    if as_json:
        return print_json({**queries.to_json(now), "given_up": dict(now.given_up), "evidence": evidence})
    word = "published after all" if word == "given up" and sink not in now.given_up else word
    out.print(Text.assemble(("✓ ", "green"), f"sink '{sink}' is recorded as {word} by {who}: {reason}"))
    if sink in now.given_up and now.handles[sink]["rows"]:
        out.print(f"  {sink} lacks {count(now.handles[sink]['rows'], 'row')}, which are of {formatting.covers(now)}")
    out.print(_change(queries.to_json(now) | {"was": found.state.value}))


def _one_of(words: dict[str, str | None]) -> tuple[str, str]:
    given = [(word, sink) for word, sink in words.items() if sink]
    if len(given) != 1:
        raise InvalidPipeline(
            "pass exactly one of --committed, --aborted and --give-up.",
            f"{len(given)} of them are given; each names its sink.",
            "Such as: onceonly resolve PIPELINE EPOCH --give-up SINK --reason …. Nothing was changed.",
        )
    return given[0]


def _print_evidence(sink: str, evidence: list[str]) -> None:
    out = show.console()
    out.print(Text(f"\nWhat sink '{sink}' shows now", "bold"))
    for line in evidence or ["nothing"]:
        out.print(f"  {line}", highlight=False, markup=False)
    out.print()


def _recover(through: Coordinator, name: str, force: bool) -> tuple[list[dict[str, Any]], Exception | None]:
    """What was unsettled, as it is now; the error is the first one, met after everything else was tried."""
    error: Exception | None = None
    try:
        before = through.state.view(name).open
        error = _settle(through, name, force)
        view = through.state.view(name)
    except Exception as unreadable:  # its rows: those of other pipelines may be sound
        return [], error or unreadable
    return [_became(cp, view.checkpoint(cp.epoch) or cp) for cp in before], error


def _settle(through: Coordinator, name: str, force: bool) -> Exception | None:
    from onceonly.runtime.owners import alive, nobody

    try:
        through.recover(name, nobody if force else alive)
    except Exception as error:
        return error
    return None


def _became(was: Checkpoint, now: Checkpoint) -> dict[str, Any]:
    return {"was": was.state.value, **queries.to_json(now)}


def _print(recovered: list[dict[str, Any]], errors: list[Exception]) -> None:
    out = show.console()
    for each in recovered:
        out.print(_change(each))
    for error in errors:
        tell(explain(error))
    if not recovered and not errors:
        out.print("Nothing to settle: every checkpoint is committed or aborted.")


def _change(now: dict[str, Any]) -> Text:
    """'flights epoch 7: staged → committed, 6,000 rows'."""
    state = State(now["state"])
    text = Text.assemble(("✓ " if state.settled else "• ", "green" if state.settled else "yellow"))
    shown = formatting.HELD if now["held"] else formatting.REFUSED if now["refused"] else now["was"]
    text.append(f"{now['pipeline']} epoch {now['epoch']}: {shown}")
    if now["was"] != now["state"]:
        text.append(" → ").append(show.label(now["state"]))
    elif not state.settled:
        text.append(_waits(state, now), "yellow")
    if state is State.COMMITTED:
        text.append(f", {formatting.counted(now['rows_by_sink'])}")
    if state is State.ABORTED and now["reason"]:
        text.append(f" ({now['reason']})", "dim")
    return text


def _waits(state: State, now: dict[str, Any]) -> str:
    if state is State.COMMITTING:
        return f" still, waiting for {', '.join(now['waiting'])}"
    if now["held"]:
        decide = formatting.how_to_decide(now["pipeline"], now["epoch"], now["seen"])
        return f" still: its gate failed it. Decide: {decide}"
    if refused := now["refused"]:
        look = f"onceonly describe {now['pipeline']} {now['epoch']}"
        return f" still: sink '{refused['sink']}' refuses it until a person acts. Look: {look}"
    owner = formatting.owner(now["owner"])
    return f" still: its owner ({owner}) is running, or may be; use --force if you know that it has ended"

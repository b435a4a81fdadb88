"""onceonly run: one checkpoint from plan to commit, without Airflow."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.checkpoint.offsets import Interval
from onceonly.cli import changing, target
from onceonly.cli import console as show
from onceonly.cli.app import HINT, explain, json_option, print_json
from onceonly.errors import InvalidPipeline, NotCommitted, StageAgain
from onceonly.pipeline.definition import Pipeline
from onceonly.settings import Settings
from onceonly.views import formatting, queries

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.runtime.factory import LiveParts

RECOVERY = {
    State.PLANNED: "aborts it; the next run uses the same offsets",
    State.ABORTING: "aborts it; the next run uses the same offsets",
    State.STAGED: "runs its gate, if it has one, and publishes or aborts it",
    State.COMMITTING: "finishes publishing it",
}
HELP = """Run one checkpoint of the pipeline NAME in FILE.py: plan, stage, gate, commit.

Without --interval a pipeline continues where its last checkpoint ended; run it again until it says that there is no new
data. What an earlier run left behind is settled first. A run that fails before its decision is aborted: nothing of it
stays. Staged rows that cannot be published any more are staged again, at most three times. If a person has to act
first, or a target does not answer, they stay staged.

\b
--json prints one object: "result" (committed, no_new_data, empty_interval,
already_committed, skipped, planned or staged), "seconds", "settled" (what
earlier runs had left), "gap" (what no interval covers before this one),
"staged_again" ("attempt", "code" and "why" of each attempt that could not be
published any more), and the
keys of `onceonly status PIPELINE --json` for this checkpoint (with no new data:
"pipeline" alone).
"""


@click.command(help=HELP, short_help="Run one checkpoint: plan, stage, gate, commit.")
@click.argument("file", metavar="FILE.py:NAME")
@click.option("--interval", nargs=2, metavar="START END", help="ISO-8601, UTC when no zone is given; END is excluded.")
@click.option(
    "--until", type=click.Choice(["plan", "stage"]), help="Stop after this step; `onceonly recover` continues."
)
@click.option("--reprocess", is_flag=True, help="Process a committed interval again, and replace its rows.")
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    file: str,
    interval: tuple[str, str] | None,
    until: str | None,
    reprocess: bool,
    as_json: bool,
) -> None:
    steps = show.Steps(quiet=as_json)
    settings = Settings.from_env()
    started = time.monotonic()
    asked = span(interval) if interval else None
    with steps.step("check") as words:
        pipeline = target.load_alone(file, settings.project)
        pipeline, parts = _checked(pipeline, asked, settings)
        words.append(f"pipeline '{pipeline.name}': transform, topic and {_sinks(pipeline)}")
    running = _start(pipeline, parts, steps, file)
    running.again = running.owner if reprocess else None
    ctx.meta[HINT] = running.hint
    result = {"result": running.go(asked, until), **running.json()}
    if as_json:
        print_json({**result, "seconds": round(time.monotonic() - started, 3)})


@dataclass
class _Run:
    pipeline: Pipeline
    parts: LiveParts
    owner: str
    steps: show.Steps
    file: str  # as it was given
    again: str | None = None
    settled: list[Checkpoint] = field(default_factory=list)
    staged_again: list[dict[str, Any]] = field(default_factory=list)  # by attempt: why it could not be published
    gap: Interval | None = None
    checkpoint: Checkpoint | None = None
    through: Coordinator = field(init=False)

    def notice(self, checkpoint: Checkpoint, row: Row) -> None:
        """Planning settles what earlier runs left: say so."""
        if self.checkpoint is None and row.event in (Event.COMMITTED, Event.ABORTED):
            self.settled.append(checkpoint)

    def go(self, interval: Interval | None, until: str | None) -> str:
        """Take the steps; returns the result's name."""
        nothing_to_do = self.plan(interval)
        if nothing_to_do or self.checkpoint is None:
            return nothing_to_do
        if until != "plan":
            self.stage(self.checkpoint)
        if until is None:
            self.publish(self.checkpoint)
            return "committed"
        return self.stop(self.checkpoint)

    def plan(self, interval: Interval | None) -> str:
        """Pin what the run covers; the result's name when there is nothing to do."""
        from onceonly.runtime.owners import alive

        with self.steps.step("plan") as words:
            planned = self.through.plan(self.pipeline, self.owner, alive, interval, self.again)
            self.checkpoint, self.gap = planned.checkpoint, planned.gap
            words += [f"epoch {cp.epoch}, left by an earlier run, is {cp.state.value}" for cp in self.settled]
            result, said = _nothing_to_do(planned.checkpoint, planned.fresh, planned.held)
            words.append(said)
        for note in planned.notes:
            self.steps.say(f"{self.pipeline.name}: {note}", "yellow")
        if self.gap:
            self.steps.say(formatting.gap(self.pipeline.name, self.gap, self.file), "yellow")
        return result

    def stage(self, checkpoint: Checkpoint) -> None:
        from onceonly.runtime import factory

        logging.getLogger("py4j").setLevel(logging.WARNING)  # it says goodbye at each end of a JVM
        name, epoch = checkpoint.pipeline, checkpoint.epoch
        try:
            with self.steps.step("stage") as words:
                done = self.checkpoint = factory.stage(self.parts, self.through, name, epoch, self.owner)
                words.append(f"attempt {done.attempt}")
                words += [f"{sink}: {formatting.staged(handle)}" for sink, handle in done.handles.items()]
        except NotCommitted as error:
            self._abort(checkpoint, error)
            raise

    def gate(self, checkpoint: Checkpoint) -> None:
        from onceonly.coordinator import gate

        logging.getLogger("onceonly.gate").setLevel(logging.WARNING)  # the step says where it looked
        try:
            with self.steps.step("gate") as words:
                done = self.checkpoint = self.through.gate(checkpoint.pipeline, checkpoint.epoch, self.owner)
                words += formatting.verdict(done.verdict)
                gate.require(done)
        except NotCommitted as error:
            self._abort(checkpoint, error)
            raise

    def publish(self, checkpoint: Checkpoint) -> None:
        """Gate and commit. What cannot be published any more is staged again, as often as the coordinator allows."""
        while True:
            if self.pipeline.gate:
                self.gate(checkpoint)
            try:
                return self.commit(checkpoint)
            except StageAgain as error:
                attempt = self.checkpoint.attempt if self.checkpoint else checkpoint.attempt
                self.staged_again.append({"attempt": attempt, "code": error.code, "why": error.why})
                self.steps.say(f"{checkpoint.pipeline} epoch {checkpoint.epoch} is staged again: {error.why}", "yellow")
                self.stage(checkpoint)

    def commit(self, checkpoint: Checkpoint) -> None:
        with self.steps.step("commit") as words:
            done = self.checkpoint = self.through.commit(checkpoint.pipeline, checkpoint.epoch)
            words.append(f"decision {done.decision}")
            words += [_published(done, sink) for sink in done.published]

    def stop(self, checkpoint: Checkpoint) -> str:
        recovery = RECOVERY[checkpoint.state]
        self.steps.say(f"Stopped as requested. `onceonly recover {checkpoint.pipeline}` {recovery}.", "dim")
        return checkpoint.state.value

    def json(self) -> dict[str, Any]:
        left = [{"epoch": cp.epoch, "state": cp.state.value} for cp in self.settled]
        known = queries.to_json(self.checkpoint) if self.checkpoint else {"pipeline": self.pipeline.name}
        gap = queries.span(self.gap) if self.gap else None
        return {**known, "settled": left, "gap": gap, "staged_again": self.staged_again}

    def hint(self) -> str:
        """What is open of this run, and what recovery would make of it."""
        mine = [cp for cp in self.through.state.view(self.pipeline.name).open if cp.owner == self.owner]
        if not mine:
            return "Nothing of this run is open."
        cp = mine[-1]
        if cp.held:
            return formatting.held(cp)
        return f"Epoch {cp.epoch} is {cp.state.value}: `onceonly recover {cp.pipeline}` {RECOVERY[cp.state]}."

    def _abort(self, checkpoint: Checkpoint, error: NotCommitted) -> None:
        """Leave nothing pending; should that fail as well, the first error is still the one to show.

        A checkpoint that its gate holds stays as it is: somebody has to decide, as the error says.
        """
        if self.checkpoint and self.checkpoint.held:
            return
        try:
            with self.steps.step("abort") as words:
                reason = f"{error.what} {error.why}".strip()
                self.through.abort(checkpoint.pipeline, checkpoint.epoch, reason, self.owner)
                kept = bool(self.checkpoint and self.checkpoint.attempt in self.checkpoint.failed_attempts)
                stays = "its rows can be inspected until another attempt has ended" if kept else "nothing of it stays"
                words.append(f"epoch {checkpoint.epoch}: {stays}")
        except Exception as failed:
            why = explain(failed)["what"]
            error.todo += f"\nIt could not be aborted either ({why}): onceonly recover {checkpoint.pipeline}"


def _start(pipeline: Pipeline, parts: LiveParts, steps: show.Steps, file: str) -> _Run:
    from onceonly.runtime import factory, owners

    running = _Run(pipeline, parts, owners.this_process(), steps, file)
    running.through = factory.planner(parts, running.notice)
    return running


def _checked(pipeline: Pipeline, interval: Interval | None, settings: Settings) -> tuple[Pipeline, LiveParts]:
    """Whatever can be refused is refused before the state table is touched. The pipeline has its tables' paths."""
    from onceonly.coordinator.cut import Cut
    from onceonly.runtime import factory

    parts = changing.parts(settings)
    pipeline = factory.locate_tables(pipeline, parts)
    Cut(pipeline, parts.sources(pipeline), interval)
    factory.check(pipeline, parts)
    return pipeline, parts


def span(given: tuple[str, str]) -> Interval:
    return Interval(_time(given[0]), _time(given[1]))


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidPipeline(
            f"'{text}' is not a time.", str(error), "Write 2013-01-01 or 2013-01-01T06:00+01:00. Nothing was written."
        ) from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)


def _nothing_to_do(checkpoint: Checkpoint | None, fresh: bool, held: int = 0) -> tuple[str, str]:
    """(result, words): the result is empty when there is something to stage.

    Args:
        held: with no new data: how many offsets lie behind open transactions of producers.
    """
    if checkpoint is None and held:
        return "no_new_data", f"no new data: {formatting.held_offsets(held)}, nothing to do yet"
    if checkpoint is None:
        return "no_new_data", "no new data: every record is in a committed checkpoint, nothing to do"
    if checkpoint.state is not State.COMMITTED and fresh and checkpoint.replaces:
        return "", f"epoch {checkpoint.epoch}, in place of epoch {checkpoint.replaces}, {formatting.covers(checkpoint)}"
    if checkpoint.state is not State.COMMITTED:
        again = "" if fresh else " (planned before; the same offsets again)"
        return "", f"epoch {checkpoint.epoch}{again}, {formatting.covers(checkpoint)}"
    if checkpoint.interval is None and not checkpoint.decision:
        where = ", ".join(f"{range_.topic} {range_.starts}" for range_ in checkpoint.ranges)
        return (
            "no_new_data",
            f"epoch {checkpoint.epoch} records where the pipeline begins ({where}): no records there yet",
        )
    if fresh:
        return "empty_interval", f"epoch {checkpoint.epoch}, empty interval: no records in {checkpoint.interval}"
    if checkpoint.skipped is not None:
        return (
            "skipped",
            f"{checkpoint.interval} covers {formatting.covers(checkpoint)}; --reprocess runs it anyway",
        )
    rows = formatting.counted(queries.rows_by_sink(checkpoint))
    done = f"already committed {formatting.age(checkpoint.updated_at)} ago as epoch {checkpoint.epoch} ({rows})"
    return "already_committed", f"{done}: nothing to do"


def _published(checkpoint: Checkpoint, sink: str) -> str:
    detail = checkpoint.published[sink]
    version = f" (version {detail['version']})" if "version" in detail else ""
    already = " (was published already)" if detail.get("already") else ""
    return f"{sink} → {formatting.target(checkpoint.handles[sink])}{version}{already}"


def _sinks(pipeline: Pipeline) -> str:
    return "sink" if len(pipeline.sinks) == 1 else f"{len(pipeline.sinks)} sinks"

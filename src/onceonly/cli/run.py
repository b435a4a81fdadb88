"""onceonly run: one checkpoint from plan to commit, without Airflow."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from onceonly.checkpoint.interval_text import parse_interval
from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.checkpoint.offsets import KAFKA, Interval, has_data
from onceonly.cli import console, environment
from onceonly.cli.app import HINT, error_json, json_option, print_json
from onceonly.cli.manual import is_interactive, person
from onceonly.documentation import name_page
from onceonly.error_codes import without_rows
from onceonly.errors import NotCommitted, StageAgain
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime import pipeline_file
from onceonly.settings import Settings
from onceonly.views import descriptions, formatting, gap_advice, queries
from onceonly.views.story import describe_done

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.coordinator.plan import Planned
    from onceonly.coordinator.reprocess import Reprocess
    from onceonly.runtime.live_services import LiveServices

RECOVERY = {
    State.PLANNED: "aborts it; the next run uses the same offsets",
    State.ABORTING: "aborts it; the next run uses the same offsets",
    State.STAGED: "runs its gate, if it has one, and publishes or aborts it",
    State.COMMITTING: "finishes publishing it",
}

EMPTY_INTERVAL = (
    "A record counts for its place in its partition: one behind a record of a later time belongs to a later interval "
    f"({name_page('kafka', 'intervals-of-a-topic')})."
)


@click.command(short_help="Run one checkpoint: plan, stage, gate, commit.")
@click.argument("file", metavar="FILE.py:NAME")
@click.option("--interval", nargs=2, metavar="START END", help="ISO-8601, UTC when no zone is given; END is excluded.")
@click.option(
    "--until", type=click.Choice(["plan", "stage"]), help="Stop after this step; `onceonly recover` continues."
)
@click.option("--reprocess", is_flag=True, help="Process a committed interval again, and replace its rows.")
@click.option("--keep", multiple=True, metavar="SINK", help="With --reprocess: its rows stay as they are.")
@click.option("--again", multiple=True, metavar="SINK", help="It cannot take rows back, and gets them once more.")
@click.option("--only", multiple=True, metavar="SINK", help="Complete this sink, where it has no rows of the interval.")
@click.option("--epoch", type=int, help="With --only or --again: the checkpoint, in place of --interval.")
@click.option("--reason", help="With --keep, --again or --only: why; the same reason again is the same request.")
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    file: str,
    interval: tuple[str, str] | None,
    until: str | None,
    reprocess: bool,
    as_json: bool,
    **wish: Any,
) -> None:
    """Run one checkpoint of the pipeline NAME in FILE.py: plan, stage, gate, commit.

    Without --interval a pipeline continues where its last checkpoint ended; run it again until it says that there is no
    new data. What an earlier run left behind is settled first. A run that fails before its decision is aborted: nothing
    of it stays. Staged rows that cannot be published any more are staged again, at most three times. If a person has to
    act first, or a target does not answer, they stay staged.

    \b
    --json prints one object: "result" (committed, no_new_data, empty_interval,
    already_committed, skipped, planned or staged), "seconds", "settled" (what
    earlier runs had left), "gap" (what is missing just before this interval), "gaps"
    (all that is missing before it), "staged_again" ("attempt", "code" and "why" of
    each attempt that could not be published any more), and the
    keys of `onceonly status PIPELINE --json` for this checkpoint (with no new data:
    "pipeline" alone).
    """
    steps = console.Steps(quiet=as_json)
    settings = Settings.from_env()
    start = time.monotonic()
    run_interval = parse_interval(*interval) if interval else None
    with steps.step("check") as words:
        pipeline = pipeline_file.load_without_dags(file, settings.project)
        pipeline, services = _check(pipeline, run_interval, settings, wish["epoch"])
        words.append(f"pipeline '{pipeline.name}': transform, topic and {_describe_sinks(pipeline)}")
    if run_interval:
        _warn_of_unusual_width(pipeline.name, run_interval, settings, file, as_json)
    this_run = start_run(pipeline, services, steps, file)
    this_run.reprocess = _make_request(this_run.owner, reprocess, wish)
    ctx.meta[HINT] = this_run.hint
    result = {"result": this_run.take_steps(run_interval, until), **this_run.to_json()}
    if as_json:
        print_json({**result, "seconds": round(time.monotonic() - start, 3)})


def _warn_of_unusual_width(name: str, interval: Interval, settings: Settings, file: str, as_json: bool) -> None:
    """Say, before it is pinned for good, that the interval is much wider or narrower than those so far; ask a person.

    Elsewhere it is a warning: whoever starts this has named both times.
    """
    state_table = queries.find_state_table(settings)
    if state_table is None or any(
        planned.interval == interval for planned in state_table.view(name).planned_for(interval)
    ):
        return
    warning = gap_advice.describe_unusual_width(interval, queries.read_usual_width(state_table, name), file)
    if not warning:
        return
    console.open_error_console().print(Text(f"{name}: {warning}", "yellow"))
    if is_interactive() and not as_json:
        click.confirm("Make one checkpoint of it?", abort=True)


def _make_request(owner: str, is_replacing: bool, wish: Mapping[str, Any]) -> Reprocess | None:
    from onceonly.coordinator.reprocess import make_request

    who = person()
    return make_request(owner if is_replacing else None, f"{who}: {wish['reason']}", wish, who)


@dataclass
class _Run:
    """One run of this command, and what it has done so far."""

    pipeline: Pipeline
    services: LiveServices
    owner: str
    steps: console.Steps
    file: str  # as it was given
    reprocess: Reprocess | None = None
    settled: list[Checkpoint] = field(default_factory=list)
    staged_again: list[dict[str, Any]] = field(default_factory=list)  # by attempt: why it could not be published
    gap: Interval | None = None
    gaps: tuple[Interval, ...] = ()
    checkpoint: Checkpoint | None = None
    coordinator: Coordinator = field(init=False)

    def notice(self, checkpoint: Checkpoint, row: Row) -> None:
        """Note a checkpoint of an earlier run that planning has settled, so that the run can say so."""
        if self.checkpoint is None and row.event in (Event.COMMITTED, Event.ABORTED):
            self.settled.append(checkpoint)

    def take_steps(self, interval: Interval | None, until: str | None) -> str:
        """Take the steps up to `until`; returns the result's name."""
        result = self.plan(interval)
        if result or self.checkpoint is None:  # there is nothing to do
            return result
        if until != "plan":
            self.stage(self.checkpoint)
        if until is None:
            self.publish(self.checkpoint)
            return "committed"
        return self.stop(self.checkpoint)

    def plan(self, interval: Interval | None) -> str:
        """Pin what the run covers; returns the result's name when there is nothing to do, else an empty one."""
        from onceonly.runtime.owners import is_alive

        with self.steps.step("plan") as words:
            planned = self.coordinator.plan(self.pipeline, self.owner, is_alive, interval, self.reprocess)
            self.checkpoint, self.gap, self.gaps = planned.checkpoint, planned.gap, planned.gaps
            for settled in self.settled:
                words.append(f"epoch {settled.epoch}, left by an earlier run, is {settled.state.value}")
            result, description = _nothing_to_do(planned)
            if result == "already_committed" and planned.checkpoint:
                description = self._why_done(planned.checkpoint) or description
            words.append(description)
        for note in planned.notes:
            self.steps.say(f"{self.pipeline.name}: {note}", "yellow")
        if planned.checkpoint and planned.fresh and _is_empty_interval_of_topics(planned.checkpoint):
            self.steps.say(EMPTY_INTERVAL, "dim")
        if self.gaps:
            name = self.pipeline.name
            width = queries.read_usual_width(self.coordinator.state_table, name)
            for text in gap_advice.describe_gaps(name, self.gaps, self.file, width=width):
                self.steps.say(text, "yellow")
        return result

    def _why_done(self, checkpoint: Checkpoint) -> str:
        """Say why a request for some sinks has nothing to do; empty where there is none, or that has another reason."""
        request = self.reprocess
        if request is None or not request.is_for_some_sinks:
            return ""
        why = describe_done(self.coordinator.state_table, checkpoint, request.request, request.only)
        return f"epoch {checkpoint.epoch}: {why}, nothing to do" if why else ""

    def stage(self, checkpoint: Checkpoint) -> None:
        """Stage the checkpoint; aborts it if that fails."""
        from onceonly.runtime import spark_stage

        logging.getLogger("py4j").setLevel(logging.WARNING)  # it says goodbye at each end of a JVM
        name, epoch = checkpoint.pipeline, checkpoint.epoch
        try:
            with self.steps.step("stage") as words:
                staged = self.checkpoint = spark_stage.stage(self.services, self.coordinator, name, epoch, self.owner)
                words.append(f"attempt {staged.attempt}")
                for sink, handle in staged.handles.items():
                    words.append(f"{sink}: {descriptions.describe_staged_rows(handle)}")
        except NotCommitted as error:
            self._abort(checkpoint, error)
            raise

    def gate(self, checkpoint: Checkpoint) -> None:
        """Examine the staged rows; aborts the checkpoint if its gate fails it."""
        from onceonly.coordinator import gate

        logging.getLogger("onceonly.gate").setLevel(logging.WARNING)  # the step says where it looked
        try:
            with self.steps.step("gate") as words:
                examined = self.checkpoint = self.coordinator.gate(checkpoint.pipeline, checkpoint.epoch, self.owner)
                words += descriptions.describe_judgement(examined.verdict)
                gate.require_passed(examined)
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
            committed = self.checkpoint = self.coordinator.commit(checkpoint.pipeline, checkpoint.epoch)
            words.append(f"decision {committed.decision}")
            for sink in committed.published:
                words.append(_describe_publication(committed, sink))

    def stop(self, checkpoint: Checkpoint) -> str:
        """Say that the run stops here, and return the result's name."""
        recovery = RECOVERY[checkpoint.state]
        self.steps.say(f"Stopped as requested. `onceonly recover {checkpoint.pipeline}` {recovery}.", "dim")
        return checkpoint.state.value

    def to_json(self) -> dict[str, Any]:
        """Return the checkpoint, and what else the run has settled and met."""
        settled = [{"epoch": cp.epoch, "state": cp.state.value} for cp in self.settled]
        checkpoint_json = queries.to_json(self.checkpoint) if self.checkpoint else {"pipeline": self.pipeline.name}
        gaps = {"gap": queries.interval_json(self.gap), **queries.gaps_json(self.gaps)}
        return {**checkpoint_json, "settled": settled, **gaps, "staged_again": self.staged_again}

    def hint(self) -> str:
        """Return what is open of this run, and what recovery would do with it."""
        open_checkpoints = self.coordinator.state_table.view(self.pipeline.name).open
        own_checkpoints = [checkpoint for checkpoint in open_checkpoints if checkpoint.owner == self.owner]
        if not own_checkpoints:
            return "Nothing of this run is open."
        newest = own_checkpoints[-1]
        if newest.is_held:
            return descriptions.describe_hold(newest)
        recovery = RECOVERY[newest.state]
        return f"Epoch {newest.epoch} is {newest.state.value}: `onceonly recover {newest.pipeline}` {recovery}."

    def _abort(self, checkpoint: Checkpoint, error: NotCommitted) -> None:
        """Leave nothing pending; should that fail as well, the first error is still the one to show.

        A checkpoint that its gate holds stays as it is: somebody has to decide, as the error says.
        """
        if self.checkpoint and self.checkpoint.is_held:
            return
        try:
            with self.steps.step("abort") as words:
                recorded = without_rows(error)
                reason = f"{recorded.what} {recorded.why}".strip()
                self.coordinator.abort(checkpoint.pipeline, checkpoint.epoch, reason, self.owner)
                if self.checkpoint and self.checkpoint.attempt in self.checkpoint.failed_attempts:
                    rows = "its rows can be inspected until another attempt has ended"
                else:
                    rows = "nothing of it stays"
                words.append(f"epoch {checkpoint.epoch}: {rows}")
        except Exception as abort_error:
            why = error_json(abort_error)["what"]
            error.todo += f"\nIt could not be aborted either ({why}): onceonly recover {checkpoint.pipeline}"


def _is_empty_interval_of_topics(checkpoint: Checkpoint) -> bool:
    """Whether an interval has no records, and all that was looked at are topics."""
    if checkpoint.interval is None or checkpoint.skipped is not None or has_data(checkpoint.ranges):
        return False
    return all(range_.kind == KAFKA for range_ in checkpoint.ranges)


def start_run(pipeline: Pipeline, services: LiveServices, steps: console.Steps, file: str) -> _Run:
    """Return a run of this process, with nothing done yet."""
    from onceonly.runtime import live_services, owners

    this_run = _Run(pipeline, services, owners.process_owner(), steps, file)
    this_run.coordinator = live_services.open_planner(services, this_run.notice)
    return this_run


def _check(
    pipeline: Pipeline, interval: Interval | None, settings: Settings, epoch: int | None
) -> tuple[Pipeline, LiveServices]:
    """Check everything that can be checked before the state table is touched.

    Args:
        epoch: the checkpoint that is asked for, which has an interval if the pipeline goes by intervals.

    Returns the pipeline with its tables' paths, and the services that it runs on.
    """
    from onceonly.coordinator.ranges import RangePlanner
    from onceonly.runtime import live_services

    services = environment.open_services(settings)
    pipeline = live_services.locate_tables(pipeline, services)
    if epoch is None:
        RangePlanner(pipeline, services.sources(pipeline), interval)
    live_services.check_pipeline(pipeline, services)
    return pipeline, services


def _nothing_to_do(planned: Planned) -> tuple[str, str]:
    """Return (result, words) of what was planned; the result is empty when there is something to stage."""
    checkpoint, fresh = planned.checkpoint, planned.fresh
    if checkpoint is None:
        done = "every record is in a committed checkpoint, nothing to do"
        why = descriptions.describe_no_data(planned.hidden_offsets, planned.is_at_end, done)
        return "no_new_data", f"no new data: {why}"
    if checkpoint.state is not State.COMMITTED:
        return "", _describe_plan(checkpoint, fresh)
    if checkpoint.interval is None and not checkpoint.decision:
        return "no_new_data", f"epoch {checkpoint.epoch} {descriptions.describe_position(checkpoint)}"
    if fresh:
        return "empty_interval", f"epoch {checkpoint.epoch}, empty interval: no records in {checkpoint.interval}"
    if checkpoint.skipped is not None:
        covers = descriptions.describe_coverage(checkpoint)
        return "skipped", f"{checkpoint.interval} covers {covers}; --reprocess runs it anyway"
    rows = formatting.count_rows(queries.rows_by_sink(checkpoint))
    words = f"already committed {formatting.age(checkpoint.updated_at)} ago as epoch {checkpoint.epoch} ({rows})"
    return "already_committed", f"{words}: nothing to do"


def _describe_plan(checkpoint: Checkpoint, fresh: bool) -> str:
    coverage = descriptions.describe_coverage(checkpoint)
    if fresh and checkpoint.replaces:
        return f"epoch {checkpoint.epoch}, in place of epoch {checkpoint.replaces}, {coverage}"
    if fresh:
        return f"epoch {checkpoint.epoch}, {coverage}"
    return f"epoch {checkpoint.epoch} (planned before; the same offsets again), {coverage}"


def _describe_publication(checkpoint: Checkpoint, sink: str) -> str:
    detail = checkpoint.published[sink]
    words = f"{sink} → {descriptions.describe_target(checkpoint.handles[sink])}"
    if "version" in detail:
        words += f" (version {detail['version']})"
    if detail.get("already"):
        words += " (was published already)"
    return words


def _describe_sinks(pipeline: Pipeline) -> str:
    return "sink" if len(pipeline.sinks) == 1 else f"{len(pipeline.sinks)} sinks"

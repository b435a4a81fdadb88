"""One operator per step. Each is a thin call of the coordinator; heavy imports happen in `execute` only."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import BaseOperator, BaseOperatorLink

from onceonly.airflow import installation, notices
from onceonly.airflow.links import CheckpointLink
from onceonly.airflow.notices import Notifier
from onceonly.airflow.runs import alive_in, instance_of, refuse_second_dag
from onceonly.airflow.versions import AirflowFailException, AirflowSkipException
from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.checkpoint.offsets import Interval
from onceonly.errors import Fenced, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.views import formatting

if TYPE_CHECKING:
    from onceonly.airflow.lineage import Lineage
    from onceonly.clusters.work import Submission, Work
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.runtime.factory import LiveParts

PLAN_TASK = "plan"
OWNER = "onceonly_owner"  # key of an XCom of the plan task: the run's owner key, by which all its tasks go
COMMITTED = "committed"  # key of an XCom: [pipeline, epoch] of each checkpoint that recovery has published
AGAIN = 'To process it again: a run, or a backfill, whose conf is {"reprocess": true}.'
FROM_CONF = "{{ (dag_run.conf or {}).get('reprocess', false) }}"


class OnceonlyOperator(BaseOperator):
    """Shared by all: the coordinator, the run's owner key, and how errors become task outcomes."""

    worked_on: int | None = None  # epoch, for the link
    told: Lineage | None = None  # for OpenLineage
    settled: tuple[Checkpoint, ...] = ()  # those whose verdict or abort was recorded here, whichever task it is

    def pre_execute(self, context: Any) -> None:
        """Airflow calls it before each try, and when the task comes back from the triggerer."""
        from onceonly.airflow.connections import use_stores

        with task_outcome():
            use_stores()

    def parts(self) -> LiveParts:
        from onceonly.airflow.connections import from_airflow
        from onceonly.runtime.factory import LiveParts

        return LiveParts(connections=from_airflow)

    def coordinator(self) -> Coordinator:
        from onceonly.runtime.factory import coordinator

        return coordinator(self.parts(), log=self._log_transition)

    def _log_transition(self, checkpoint: Checkpoint, row: Row) -> None:
        from onceonly.airflow import stats
        from onceonly.views.steps import lines

        for line in lines(checkpoint, row):
            self._say(line)
        stats.recorded(checkpoint, row)
        if row.event in (Event.VERDICT, Event.ABORTED):
            others = [cp for cp in self.settled if (cp.pipeline, cp.epoch) != (checkpoint.pipeline, checkpoint.epoch)]
            self.settled = (*others, checkpoint)
            self._tell(*self.settled, what="of_gate")  # at once: the task may fail with another checkpoint

    def _say(self, line: str) -> None:
        self.log.info("%s", line)

    def _tell(self, *checkpoints: Checkpoint, what: str = "of") -> None:
        """What the function of that name in `lineage` says: OpenLineage's provider asks when the task has ended."""
        from onceonly.airflow import lineage, stats

        with stats.harmless():
            self.told = getattr(lineage, what)(OnceonlyOperator.parts(self), *checkpoints) if lineage.on() else None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        from onceonly.airflow import lineage

        return lineage.facets(self.told or lineage.Lineage())


class CheckpointOperator(OnceonlyOperator):
    """A step of the checkpoint that this run planned.

    Args:
        pipeline: its name.
        epoch: which checkpoint; by default the one that the run's plan task returned.
    """

    template_fields: Sequence[str] = ("pipeline", "epoch")
    operator_extra_links: Collection[BaseOperatorLink] = (CheckpointLink(),)

    def __init__(self, *, pipeline: str, epoch: int | str | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pipeline, self.epoch = pipeline, epoch

    def find_epoch(self, context: Any) -> int:
        epoch = self.planned_epoch(context)
        if epoch is None:
            raise AirflowFailException(
                f"{self.pipeline}: no epoch to work on.\nThe task '{PLAN_TASK}' of this run returned none.\n"
                f"Clear '{PLAN_TASK}' and what follows, or pass epoch=…."
            )
        return epoch

    def planned_epoch(self, context: Any) -> int | None:
        epoch = self.epoch if self.epoch is not None else context["ti"].xcom_pull(task_ids=PLAN_TASK)
        self.worked_on = None if epoch is None else int(epoch)
        return self.worked_on


class PlanOperator(OnceonlyOperator):
    """Settles what earlier checkpoints left, pins the next one, and returns its epoch; skips when there is no data.

    Args:
        reprocess: whether a committed interval is processed again, and replaces what is published; by default what
            the run's conf says: {"reprocess": true}. A run does it once, and once more each time it is cleared.
        spark_conn_id: the connection that the stage will use; it must exist before anything is planned.
    """

    template_fields: Sequence[str] = ("reprocess", "spark_conn_id")
    operator_extra_links: Collection[BaseOperatorLink] = (CheckpointLink(),)

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        reprocess: bool | str = FROM_CONF,
        spark_conn_id: str | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.pipeline, self.reprocess, self.spark_conn_id = pipeline, reprocess, spark_conn_id

    def execute(self, context: Any) -> int:
        interval = _interval(context) if self.pipeline.mode == "interval" else None
        with task_outcome():
            through, owner, instance = self.planner(), run_here(context), instance_of(context)
            context["ti"].xcom_push(key=OWNER, value=owner)  # before anything is planned for it
            self._check(context, through)
            again = self._request(context, f"{owner}, {instance}" if instance else owner)
            planned = through.plan(self._located(), owner, alive_in(context), interval, again, instance)
        checkpoint = planned.checkpoint
        for note in planned.notes:
            self.log.warning("%s: %s", self.pipeline.name, note)
        if planned.gap:
            self.log.warning("%s", formatting.gap(self.pipeline.name, planned.gap))
        if checkpoint is None:
            why = formatting.held_offsets(planned.held) if planned.held else "nothing to do"
            raise AirflowSkipException(f"{self.pipeline.name}: no new data, {why}")
        self.worked_on = checkpoint.epoch
        if checkpoint.state is State.COMMITTED:
            raise AirflowSkipException(f"{self.pipeline.name} epoch {checkpoint.epoch}: {_settled(checkpoint)}")
        for range_ in checkpoint.ranges:
            spans = dict(range_.partitions)
            self.log.info("epoch %s pins %s of %s %s", checkpoint.epoch, spans, range_.word, range_.topic)
        if ahead := formatting.dated_ahead(checkpoint):
            self.log.warning("epoch %s: %s. They are read anyway.", checkpoint.epoch, ahead)
        return checkpoint.epoch

    def planner(self) -> Coordinator:
        from onceonly.runtime.factory import planner

        return planner(self.parts(), log=self._log_transition)

    def _check(self, context: Any, through: Coordinator) -> None:
        """What this run would trip over later is refused while nothing is planned yet."""
        from onceonly.airflow import connections

        for conn_id in self.pipeline.connections:
            connections.from_airflow(conn_id)
        if self.spark_conn_id:
            connections.spark(self.spark_conn_id)
        refuse_second_dag(context, through.state.view(self.pipeline.name).latest)

    def _located(self) -> Pipeline:
        """On the tables that its names mean now."""
        from onceonly.airflow import connections
        from onceonly.clusters import tables

        names = self.pipeline.named_tables
        if not names:
            return self.pipeline
        return self.pipeline.located(tables.find(connections.spark(self.spark_conn_id or "spark"), names))

    def _request(self, context: Any, run: str) -> str | None:
        """Names the wish to reprocess: the same for every try of this task, another once the run is cleared."""
        if str(self.reprocess).lower() not in ("true", "false"):
            raise InvalidPipeline(
                f"reprocess is {self.reprocess!r}.",
                todo="Set it to true or false in the run's conf. Nothing was written.",
            )
        asked = str(self.reprocess).lower() == "true"
        return f"{run}, {context['dag_run'].clear_number or 0}" if asked else None


class RunningWork(Protocol):
    """Something that Spark is doing."""

    def end(self) -> None:
        """Have it stopped; returns soon."""


class SparkOperator(CheckpointOperator):
    """A step that may run on Spark for a long time.

    If the connection runs drivers on the cluster, the task is deferred: a triggerer waits, and no worker is occupied.

    Args:
        spark_conn_id: connection whose host is a Spark master or an `sc://` address. Its extra: `conf` adds Spark
            settings; `deploy-mode` is client or cluster; the rest are the fields of Airflow's own Spark provider.
    """

    template_fields: Sequence[str] = (*CheckpointOperator.template_fields, "spark_conn_id")

    def __init__(self, *, spark_conn_id: str = "spark", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.spark_conn_id = spark_conn_id
        self._job: RunningWork | None = None

    def work(self, context: Any) -> Work:
        from onceonly.clusters.work import Work

        return Work(self.pipeline, self.find_epoch(context), owner_of(context))

    def run_stage(self, context: Any, work: Work, then: str = "ended") -> None:
        """Run the stage job: by spark-submit, or in this process through Spark Connect, or all of it on the cluster.

        Args:
            then: the method that continues when a driver on the cluster has ended. This one does not return then.
        """
        from onceonly.airflow import connections, lineage, stats
        from onceonly.clusters import child
        from onceonly.settings import Settings

        started, spark = time.time(), connections.spark(self.spark_conn_id)
        with stats.harmless():
            spark = replace(spark, conf=lineage.with_parent(spark.conf, context))
        if spark.cluster is None:
            job = self._job = child.job(spark, self._say, self._log_transition, connections.from_airflow)
            job.run(work.pipeline, work.epoch, work.owner)
        elif submission := work.stage(spark, Settings.from_env(), connections.from_airflow):
            self.wait_for(submission, started, then)

    def wait_for(self, submission: Submission, started: float, then: str = "ended") -> None:
        """Submit, and defer this task until the driver has ended; the method `then` continues from there."""
        from onceonly.airflow.triggers import DriverTrigger

        self._job = submission
        driver = self._job = submission.run(self._say)
        self._say(f"the cluster runs it as {driver.driver}; a triggerer now waits for it")
        self._say(f"its log: {driver.where()}")
        deadline = started + self.execution_timeout.total_seconds() if self.execution_timeout else None
        self.defer(trigger=DriverTrigger(**vars(driver), started=started, deadline=deadline), method_name=then)

    def on_kill(self) -> None:
        """The task is cleared, marked, or timed out: nothing of it keeps running on Spark."""
        if self._job:
            self._job.end()


class StageOperator(SparkOperator):
    """Runs the stage job on Spark: by spark-submit, in this process through Spark Connect, or all of it on the cluster.

    Returns {"epoch", "spark_seconds"}.
    """

    def execute(self, context: Any) -> dict[str, Any]:
        work, started = self.work(context), time.time()
        with task_outcome(context):
            self.run_stage(context, work)
        return self._done(work, started)

    def ended(self, context: Any, event: Any) -> dict[str, Any]:
        """Back from the triggerer: see in the state table whether it is staged."""
        from onceonly.airflow.triggers import driver_of
        from onceonly.settings import Settings

        work = self.work(context)
        with task_outcome(context):
            work.require_staged(driver_of(event), Settings.from_env(), event["state"])
        return self._done(work, event["started"])

    def _done(self, work: Work, started: float) -> dict[str, Any]:
        """It is staged; metrics and lineage are sent, and nothing depends on that."""
        from onceonly.airflow import lineage, stats
        from onceonly.settings import Settings

        with stats.harmless():
            if stats.on() or lineage.on():
                now = work.now(Settings.from_env())
                stats.staged(now)
                self._tell(now)
        return {"epoch": work.epoch, "spark_seconds": round(time.time() - started, 3)}


class AbortOperator(CheckpointOperator):
    """Discards what the run staged; does nothing when another process has settled or taken over the checkpoint.

    It records which earlier task failed, and its error.
    """

    def execute(self, context: Any) -> None:
        epoch = self.planned_epoch(context)
        if epoch is None:
            raise AirflowSkipException(f"{self.pipeline}: nothing was planned, so there is nothing to abort")
        why = notices.why_aborted(context, sorted(self.upstream_task_ids))
        try:
            done = self.coordinator().abort(self.pipeline, epoch, why, owner_of(context))
        except Fenced as fenced:
            raise AirflowSkipException(str(fenced)) from fenced
        self._tell(done, what="of_abort")


class RecoverOperator(OnceonlyOperator):
    """Settles all pipelines of the state table; the first error fails the task after everything was tried.

    What it publishes is in the XCom 'committed', even if it fails: see `AnnounceOperator`.

    Args:
        spark_conn_id: connection whose Spark examines large gates, and publishes what only Spark can; it is looked up
            when needed. Even with deploy mode cluster, the driver is this task's process.
        on_held: as for `GateOperator`, for a checkpoint whose gate runs here, because its run had ended; and for one
            whose approval ends here, as for `CommitOperator`.
    """

    template_fields: Sequence[str] = ("spark_conn_id",)

    def __init__(
        self,
        *,
        spark_conn_id: str = "spark",
        on_held: Notifier | Sequence[Notifier] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.spark_conn_id, self.on_held = spark_conn_id, notices.listed(on_held)
        self._noticed: list[Checkpoint] = []  # held, or their approval has ended: people are told
        self._committed: list[Checkpoint] = []
        self._parts: RunningWork | None = None

    def parts(self) -> LiveParts:
        from onceonly.airflow.gatesession import RecoveryParts

        plain = super().parts()
        made = self._parts = RecoveryParts(plain.settings, plain.connections, self.spark_conn_id)
        return made

    def on_kill(self) -> None:
        if self._parts:
            self._parts.end()

    def execute(self, context: Any) -> dict[str, Any]:
        from onceonly.airflow import stats, unawaited
        from onceonly.runtime import job_report

        through, settled = self.coordinator(), {}
        errors: list[Exception] = []
        for name in through.state.pipelines():
            try:
                done = through.recover(name, alive_in(context))
                settled[name] = {cp.epoch: cp.state.value for cp in done if cp.state.settled}
            except Exception as error:
                self._failed(error, errors)
            named = [(each.pipeline, each.epoch) for each in self._committed]
            context["ti"].xcom_push(key=COMMITTED, value=named)  # pipeline by pipeline: it may be killed
            self._notify(context)
            try:
                self._warn(through.state.view(name).open)
            except Exception as error:  # its rows cannot be read: those of other pipelines may be sound
                self._failed(error, errors)
        try:
            for line in unawaited.end(through.state, alive_in(context), _cluster_of):
                self.log.warning("%s", line)
        except Exception as error:
            self._failed(error, errors)
        job_report.sweep(through.state)
        with stats.harmless():
            stats.measure(through.state, OnceonlyOperator.parts(self))
        if errors:
            raise errors[0]
        return {name: epochs for name, epochs in settled.items() if epochs}

    def _failed(self, error: Exception, errors: list[Exception]) -> None:
        """Only the first error fails the task, so each is logged."""
        self.log.error("%s", error)
        errors.append(error)

    def _log_transition(self, checkpoint: Checkpoint, row: Row) -> None:
        super()._log_transition(checkpoint, row)
        if row.event is Event.COMMITTED:
            self._committed.append(checkpoint)
        if notices.is_due(checkpoint, row):
            self._noticed.append(checkpoint)

    def _notify(self, context: Any) -> None:
        """Of what has happened here: once, and not in every later run."""
        while self._noticed:
            for trouble in notices.notify(self.on_held, context, self._noticed.pop()):
                self.log.warning("%s", trouble)

    def _warn(self, unsettled: Sequence[Checkpoint]) -> None:
        """Of what is left as it is: held, refused, or about to time out."""
        from onceonly.views import timeouts

        for checkpoint in unsettled:
            if waits := formatting.waits(checkpoint):
                self.log.warning("%s", waits)
            for warning in timeouts.warnings(checkpoint, datetime.now(UTC)):
                self.log.warning("%s", warning)


class AnnounceOperator(OnceonlyOperator):
    """Sends the asset events of what the recovery task has published, through the alias 'onceonly_recovered'.

    A separate task, because Airflow drops the events of a task that fails, as recovery does while a sink is in doubt.
    It also tells OpenLineage of these outputs: in the event of the recovery task, the datasets that gates have examined
    are inputs, and each would seem to go into every output.

    Args:
        recovery: id of the task of the `RecoverOperator`.
    """

    def __init__(self, *, recovery: str, **arguments: Any) -> None:
        from onceonly.airflow.assets import RECOVERED

        super().__init__(**{"outlets": [RECOVERED], **arguments})
        self.recovery = recovery

    def execute(self, context: Any) -> None:
        from onceonly.airflow.assets import announce_recovered

        state = self.coordinator().state
        named = context["ti"].xcom_pull(task_ids=self.recovery, key=COMMITTED) or ()
        published = [found for name, epoch in named if (found := state.view(name).checkpoint(epoch))]
        for checkpoint in published:
            announce_recovered(context, checkpoint)
        self._tell(*published)


def owner_of(context: Any) -> str:
    """The owner key of the task's run: that of its plan task, whatever the installation's id is by now."""
    owner: str | None = context["ti"].xcom_pull(task_ids=PLAN_TASK, key=OWNER)
    return owner or run_here(context)


def run_here(context: Any) -> str:
    """The owner key of the task's run in this Airflow."""
    from onceonly.runtime.owners import airflow_run

    return airflow_run(context["ti"].dag_id, context["run_id"], installation.of_task())


@contextmanager
def task_outcome(context: Any = None, final: tuple[type[Exception], ...] = (InvalidPipeline,)) -> Iterator[None]:
    """Fail without a retry where that cannot help: nothing changes invalid input but an edit.

    Args:
        context: where the abort task finds the error.
        final: errors after which the task is not tried again.
    """
    try:
        yield
    except Exception as error:
        if context is not None:
            notices.leave_error(context, error)
        if isinstance(error, final):
            raise AirflowFailException(str(error)) from error
        raise


def _cluster_of(conn_id: str) -> str | None:
    from onceonly.airflow import connections

    return connections.spark(conn_id).cluster


def _interval(context: Any) -> Interval:
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if start is None or end is None or end <= start:
        raise AirflowFailException(
            f"this run has no data interval (start {start}, end {end}).\n"
            "A pipeline in interval mode takes its window from it; in Airflow 3 a cron string means a zero-width "
            "interval.\nUse checkpoint_dag's schedule or CronDataIntervalTimetable. Nothing was written."
        )
    return Interval(start, end)


def _settled(checkpoint: Checkpoint) -> str:
    if checkpoint.forwarded:
        return f"published before, as recorded by {checkpoint.owner} ({checkpoint.reason})"
    if checkpoint.skipped is not None:
        return f"the interval {checkpoint.interval} was skipped by {checkpoint.owner} ({checkpoint.skipped}). {AGAIN}"
    if not checkpoint.decision and checkpoint.interval is None:
        return "it records where the pipeline begins; there are no records yet"
    if not checkpoint.decision:
        return f"the interval {checkpoint.interval} holds no records"
    return f"already committed (by {checkpoint.owner}), nothing to do. {AGAIN}"

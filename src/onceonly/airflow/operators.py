"""One operator per step. Each is a thin call of the coordinator; heavy imports happen in `execute` only."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import BaseOperatorLink

from onceonly.airflow import bundles, intervals
from onceonly.airflow.base import (
    OWNER,
    CheckpointLink,
    CheckpointOperator,
    OnceonlyOperator,
    explain_abort,
    make_owner,
    owner_of,
    task_outcome,
)
from onceonly.airflow.runs import check_single_dag, find_instance, make_alive_check
from onceonly.airflow.versions import AirflowSkipException
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import Interval
from onceonly.errors import Fenced, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.requirements import list_connection_ids, list_named_tables, place_tables
from onceonly.runtime import pipeline_file
from onceonly.views import descriptions, gap_advice, queries
from onceonly.views.story import describe_done

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.coordinator.reprocess import Reprocess
    from onceonly.runtime.driver_submission import Submission, Work

HOW_TO_REPROCESS = 'To process it again: a run, or a backfill, whose conf is {"reprocess": true}.'
REPROCESS_FROM_CONF = "{{ (dag_run.conf or {}).get('reprocess', false) }}"


class PlanOperator(OnceonlyOperator):
    """Settles what earlier checkpoints left, pins the next one, and returns its epoch; skips when there is no data.

    Args:
        reprocess: whether a committed interval is processed again, and replaces what is published; by default what
            the run's conf says: {"reprocess": true}. A run does it once, and once more each time it is cleared.
            The conf may name sinks under "keep", "again" or "only", with a "reason"; that is done once per run and
            reason, however often the run is cleared.
        spark_conn_id: the connection that the stage will use; it must exist before anything is planned.
    """

    is_plan = True
    template_fields: Sequence[str] = ("reprocess", "spark_conn_id")
    operator_extra_links: Collection[BaseOperatorLink] = (CheckpointLink(),)

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        reprocess: bool | str = REPROCESS_FROM_CONF,
        spark_conn_id: str | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.pipeline, self.reprocess, self.spark_conn_id = pipeline, reprocess, spark_conn_id

    def execute(self, context: Any) -> int:
        with task_outcome(pipeline=self.pipeline.name):
            interval = self._find_interval(context)
            coordinator, owner, instance = self.planner(), make_owner(context), find_instance(context)
            context["ti"].xcom_push(key=OWNER, value=owner)  # before anything is planned for it
            self._check(context, coordinator)
            request = self._request(context, f"{owner}, {instance}" if instance else owner)
            pipeline = self._locate_tables()
            planned = coordinator.plan(pipeline, owner, make_alive_check(context), interval, request, instance)
        checkpoint = planned.checkpoint
        for note in planned.notes:
            self.log.warning("%s: %s", self.pipeline.name, note)
        if planned.gaps:
            file = quote(pipeline_file.find_in_project(self.pipeline.name))
            for text in gap_advice.describe_gaps(self.pipeline.name, planned.gaps, file, context["ti"].dag_id):
                self.log.warning("%s", text)
        if checkpoint is None:
            why = descriptions.describe_no_data(planned.hidden_offsets, planned.is_at_end, "nothing to do")
            raise AirflowSkipException(f"{self.pipeline.name}: no new data, {why}")
        self.linked_epoch = checkpoint.epoch
        if checkpoint.state is State.COMMITTED:
            why = _why_done(coordinator, checkpoint, request) or _why_committed(checkpoint)
            raise AirflowSkipException(f"{self.pipeline.name} epoch {checkpoint.epoch}: {why}")
        self._log_ranges(checkpoint)
        return checkpoint.epoch

    def _find_interval(self, context: Any) -> Interval | None:
        """Return the interval of the run; None of a chained pipeline, and where the run's conf names a checkpoint.

        It is logged first: everything that follows is about it.
        """
        intervals.refuse_misspelt_keys(self.pipeline.name, context["dag_run"].conf or {})
        if self.pipeline.mode == "chained":
            return None
        has_no_interval = context.get("data_interval_start") == context.get("data_interval_end")
        if has_no_interval and (context["dag_run"].conf or {}).get("epoch") is not None:
            return None
        covered = intervals.find_covered(self.pipeline.name, context, lambda span: self._has_planned(span, context))
        self._say(f"{self.pipeline.name} covers {covered}")
        return covered.interval

    def _has_planned(self, interval: Interval, context: Any) -> bool:
        """Whether this very run has planned that interval before."""
        from onceonly.settings import Settings

        state_table = queries.find_state_table(Settings.from_env())
        if state_table is None:
            return False
        planned = state_table.view(self.pipeline.name).planned_by(make_owner(context))
        return any(checkpoint.interval == interval for checkpoint in planned)

    def _log_ranges(self, checkpoint: Checkpoint) -> None:
        for range_ in checkpoint.ranges:
            spans = dict(range_.partitions)
            self.log.info("epoch %s pins %s of %s %s", checkpoint.epoch, spans, range_.word, range_.topic)
        ahead = descriptions.describe_dated_ahead(checkpoint)
        if ahead:
            self.log.warning("epoch %s: %s. They are read anyway.", checkpoint.epoch, ahead)

    def planner(self) -> Coordinator:
        """Return the coordinator that plans."""
        from onceonly.runtime.live_services import open_planner

        return open_planner(self.services(), log=self._log_transition)

    def _check(self, context: Any, coordinator: Coordinator) -> None:
        """Refuse what this run would trip over later, while nothing is planned yet."""
        from onceonly.airflow import connections

        for conn_id in list_connection_ids(self.pipeline):
            connections.read_extra(conn_id)
        cluster = self.spark_conn_id and connections.read_spark_connection(self.spark_conn_id).cluster
        elsewhere = bundles.describe_project_elsewhere(context)
        if elsewhere:
            self.log.warning("%s: %s", self.pipeline.name, elsewhere)
        if not (cluster and elsewhere):  # a driver on the cluster may have a folder that this machine lacks
            bundles.refuse_missing_code(context, self.pipeline.transform)
        check_single_dag(context, coordinator.state_table.view(self.pipeline.name).latest)

    def _locate_tables(self) -> Pipeline:
        """Return the pipeline on the tables that its names mean now."""
        from onceonly.airflow import connections
        from onceonly.runtime import client_job

        names = list_named_tables(self.pipeline)
        if not names:
            return self.pipeline
        return place_tables(
            self.pipeline,
            client_job.find_tables(connections.read_spark_connection(self.spark_conn_id or "spark"), names),
        )

    def _request(self, context: Any, run: str) -> Reprocess | None:
        """Return the request to reprocess; None: there is none.

        Its name is the same for every try of this task; and another once the run is cleared. One for some sinks alone
        keeps it, until the run has another reason: a backfill may have given it another conf.

        Raises:
            InvalidPipeline: `reprocess` is neither true nor false.
        """
        word = str(self.reprocess).lower()
        if word not in ("true", "false"):
            raise InvalidPipeline(
                f"reprocess is {self.reprocess!r}.",
                todo="Set it to true or false in the run's conf: airflow dags trigger "
                f"{quote(context['ti'].dag_id)} --conf '{{\"reprocess\": true}}'. Nothing was written.",
                code="option-invalid",
            )
        from onceonly.coordinator.reprocess import make_request

        dag_run = context["dag_run"]
        replacing = None
        if word == "true":
            replacing = f"{run}, {dag_run.clear_number or 0}"
        who = getattr(dag_run, "triggering_user_name", None) or f"the run {context['run_id']}"
        conf = dag_run.conf or {}
        return make_request(replacing, f"{run}: {conf.get('reason')}", conf, who)


class RunningWork(Protocol):
    """Something that Spark is doing."""

    def end(self) -> None:
        """Ask for its end; return soon."""


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
        """Return the step's work on the checkpoint of this run."""
        from onceonly.runtime.driver_submission import Work

        return Work(self.pipeline, self.find_epoch(context), owner_of(context))

    def run_stage(self, context: Any, work: Work, then: str = "execute_complete") -> None:
        """Run the stage job: by spark-submit, in this process through Spark Connect, or all of it on the cluster.

        Args:
            then: the method that continues when a driver on the cluster has ended. This one does not return then.
        """
        from onceonly.airflow import connections, lineage, stats
        from onceonly.runtime import client_job
        from onceonly.settings import Settings

        started, spark = time.time(), connections.read_spark_connection(self.spark_conn_id)
        with stats.log_errors():
            spark = replace(spark, conf=lineage.add_parent_run(spark.conf, context))
        if spark.cluster is None:
            job = self._job = client_job.make_stage_job(spark, self._say, self._log_transition, connections.read_extra)
            job.run(work.pipeline, work.epoch, work.owner)
            return
        submission = work.prepare_stage(spark, Settings.from_env(), connections.read_extra)
        if submission:
            self.wait_for(submission, started, then)

    def wait_for(self, submission: Submission, started: float, then: str = "execute_complete") -> None:
        """Submit, and defer this task until the driver has ended; the method `then` continues from there."""
        from onceonly.airflow.triggers import DriverTrigger

        self._job = submission  # on_kill ends what is under way: the submission, then the driver
        driver = self._job = submission.run(self._say)
        self._say(f"the cluster runs it as {driver.driver}; a triggerer now waits for it")
        self._say(f"its log: {driver.describe_log()}")
        deadline = started + self.execution_timeout.total_seconds() if self.execution_timeout else None
        self.defer(trigger=DriverTrigger(**vars(driver), started=started, deadline=deadline), method_name=then)

    def on_kill(self) -> None:
        """End what runs on Spark: the task is cleared, marked, or timed out."""
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
        return self._report_staged(work, started)

    def execute_complete(self, context: Any, event: Any) -> dict[str, Any]:
        """Continue after the triggerer: see in the state table whether it is staged."""
        from onceonly.airflow.triggers import driver_of
        from onceonly.settings import Settings

        work = self.work(context)
        with task_outcome(context):
            work.require_staged(driver_of(event), Settings.from_env(), event["state"])
        return self._report_staged(work, event["started"])

    def _report_staged(self, work: Work, started: float) -> dict[str, Any]:
        """Send metrics and lineage of what is staged, on which nothing depends, and return the task's result."""
        from onceonly.airflow import lineage, stats
        from onceonly.settings import Settings

        with stats.log_errors():
            if stats.is_enabled() or lineage.is_enabled():
                checkpoint = work.read_checkpoint(Settings.from_env())
                stats.count_staged(checkpoint)
                self._report_lineage(checkpoint)
        return {"epoch": work.epoch, "spark_seconds": round(time.time() - started, 3)}


class AbortOperator(CheckpointOperator):
    """Discards what the run staged; does nothing when another process has settled or taken over the checkpoint.

    It records which earlier task failed, and its error.
    """

    def execute(self, context: Any) -> None:
        epoch = self.planned_epoch(context)
        if epoch is None:
            raise AirflowSkipException(f"{self.pipeline}: nothing was planned, so there is nothing to abort")
        why = explain_abort(context, sorted(self.upstream_task_ids))
        try:
            done = self.coordinator().abort(self.pipeline, epoch, why, owner_of(context))
        except Fenced as fenced:
            raise AirflowSkipException(str(fenced)) from fenced
        self._report_abort_lineage(done)


def _why_done(coordinator: Coordinator, checkpoint: Checkpoint, request: Reprocess | None) -> str:
    """Say why a request for some sinks has nothing to do; empty where there is none, or that has another reason."""
    if request is None or not request.is_for_some_sinks or checkpoint.skipped is not None:
        return ""
    return describe_done(coordinator.state_table, checkpoint, request.request, request.only)


def _why_committed(checkpoint: Checkpoint) -> str:
    """Say why a checkpoint that was just planned is committed: there is nothing to stage."""
    if checkpoint.forwarded:
        return f"published before, as recorded by {checkpoint.owner} ({checkpoint.reason})"
    if checkpoint.skipped is not None:
        skip = f"the interval {checkpoint.interval} was skipped by {checkpoint.owner} ({checkpoint.skipped})"
        return f"{skip}. {HOW_TO_REPROCESS}"
    if not checkpoint.decision and checkpoint.interval is None:
        return f"it {descriptions.describe_position(checkpoint)}"
    if not checkpoint.decision:
        return f"the interval {checkpoint.interval} holds no records"
    return f"already committed (by {checkpoint.owner}), nothing to do. {HOW_TO_REPROCESS}"

"""Recovery: it settles what ended runs left behind, publishes what people have approved, and announces both."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from shlex import quote
from typing import TYPE_CHECKING, Any

from onceonly.airflow import notices
from onceonly.airflow.base import OnceonlyOperator, task_outcome
from onceonly.airflow.names import APPROVED
from onceonly.airflow.notices import Notifier
from onceonly.airflow.operators import RunningWork
from onceonly.airflow.runs import make_alive_check
from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.errors import InvalidPipeline
from onceonly.views import descriptions

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.runtime.live_services import LiveServices

COMMITTED = "committed"  # key of an XCom: [pipeline, epoch] of each checkpoint that recovery has published


class RecoverOperator(OnceonlyOperator):
    """Settles all pipelines of the state table; the first error fails the task after everything was tried.

    A run that Approve on the page has started publishes that checkpoint alone, whether or not its own run has ended.
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
        self.spark_conn_id, self.on_held = spark_conn_id, notices.as_list(on_held)
        self._noticed: list[Checkpoint] = []  # held, or their approval has ended: people are told
        self._committed: list[Checkpoint] = []
        self._errors: list[Exception] = []
        self._spark_work: RunningWork | None = None

    def services(self) -> LiveServices:
        from onceonly.airflow.connections import RecoveryServices

        plain = super().services()
        services = RecoveryServices(plain.settings, plain.connections, self.spark_conn_id)
        self._spark_work = services  # on_kill ends what it asks of Spark
        return services

    def on_kill(self) -> None:
        """End what Spark does for this task."""
        if self._spark_work:
            self._spark_work.end()

    def execute(self, context: Any) -> dict[str, Any]:
        """Settle pipeline by pipeline, then clean up, then raise the first error.

        Returns by pipeline the states of the epochs that it has settled.
        """
        from onceonly.runtime import job_report

        self._errors = []
        coordinator = self.coordinator()
        approved = (getattr(context.get("dag_run"), "conf", None) or {}).get(APPROVED)
        if approved is not None:
            return self._publish_approved(context, coordinator, approved)
        settled = self._settle_pipelines(context, coordinator)
        self._stop_orphaned_drivers(context, coordinator)
        job_report.sweep_reports(coordinator.state_table)
        self._measure_pipelines(coordinator)
        if self._errors:
            raise self._errors[0]
        return settled

    def _publish_approved(self, context: Any, coordinator: Coordinator, approved: Any) -> dict[str, dict[int, str]]:
        """Publish what a person has approved."""
        with task_outcome():
            name, epoch, attempt = _read_approved(approved, context["ti"].dag_id)
            try:
                done = coordinator.publish_approved(name, epoch, attempt)
                self._committed = [done]  # an earlier try may have ended before it left this for the announcement
            finally:
                self._push_committed(context)
                notices.notify_once(self.on_held, context, self._noticed, self.log)
        return {name: {epoch: done.state.value}}

    def _settle_pipelines(self, context: Any, coordinator: Coordinator) -> dict[str, dict[int, str]]:
        """Return by pipeline, where anything is settled, the states of its epochs."""
        settled = {}
        for name in coordinator.state_table.pipelines():
            states = self._recover_pipeline(context, coordinator, name)
            self._push_committed(context)
            notices.notify_once(self.on_held, context, self._noticed, self.log)
            self._warn_of_unsettled(coordinator, name)
            if states:
                settled[name] = states
        return settled

    def _recover_pipeline(self, context: Any, coordinator: Coordinator, name: str) -> dict[int, str]:
        """Recover one pipeline, and return by epoch the states of what is settled."""
        states = {}
        try:
            for checkpoint in coordinator.recover(name, make_alive_check(context)):
                if checkpoint.state.is_settled:
                    states[checkpoint.epoch] = checkpoint.state.value
        except Exception as error:
            self._keep_error(error)
        return states

    def _push_committed(self, context: Any) -> None:
        """Leave for `AnnounceOperator` what is committed so far: after each pipeline, as this task may be killed."""
        committed = [(checkpoint.pipeline, checkpoint.epoch) for checkpoint in self._committed]
        context["ti"].xcom_push(key=COMMITTED, value=committed)

    def _warn_of_unsettled(self, coordinator: Coordinator, name: str) -> None:
        """Log what is left as it is: held, refused, or about to time out."""
        from onceonly.views.summary import list_timeout_warnings

        try:
            for checkpoint in coordinator.state_table.view(name).open:
                action = descriptions.describe_needed_action(checkpoint)
                if action:
                    self.log.warning("%s", action)
                for warning in list_timeout_warnings(checkpoint, datetime.now(UTC)):
                    self.log.warning("%s", warning)
        except Exception as error:  # its rows, or a handle in them, cannot be read: other pipelines may be sound
            self._keep_error(error)

    def _stop_orphaned_drivers(self, context: Any, coordinator: Coordinator) -> None:
        """Stop the drivers on clusters that no task waits for."""
        from onceonly.runtime import driver

        try:
            for line in driver.stop_orphaned_drivers(coordinator.state_table, make_alive_check(context), _cluster_of):
                self.log.warning("%s", line)
        except Exception as error:
            self._keep_error(error)

    def _measure_pipelines(self, coordinator: Coordinator) -> None:
        """Set Airflow's gauges of all pipelines, on which nothing depends."""
        from onceonly.airflow import stats

        with stats.log_errors():
            stats.measure_pipelines(coordinator.state_table, OnceonlyOperator.services(self))

    def _keep_error(self, error: Exception) -> None:
        """Log an error and keep it: only the first one fails the task, after everything was tried."""
        self.log.error("%s", error)
        self._errors.append(error)

    def _log_transition(self, checkpoint: Checkpoint, row: Row) -> None:
        super()._log_transition(checkpoint, row)
        if row.event is Event.COMMITTED:
            self._committed.append(checkpoint)
        if notices.is_due(checkpoint, row):
            self._noticed.append(checkpoint)


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

        state = self.coordinator().state_table
        checkpoints = []
        for name, epoch in context["ti"].xcom_pull(task_ids=self.recovery, key=COMMITTED) or ():
            checkpoint = state.view(name).checkpoint(epoch)
            if checkpoint:
                checkpoints.append(checkpoint)
        for checkpoint in checkpoints:
            announce_recovered(context, checkpoint)
        self._report_lineage(*checkpoints)


def _read_approved(value: Any, dag_id: str) -> tuple[str, int, int]:
    """Return the pipeline, epoch and attempt that a run's conf names."""
    try:
        return str(value["pipeline"]), int(value["epoch"]), int(value["attempt"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidPipeline(
            f"the conf of this run names the approved checkpoint {str(value)[:100]!r}.",
            "Approve on the page starts such a run, with a pipeline, an epoch and an attempt.",
            "Start the recovery DAG without a conf, and it settles whatever can be settled: airflow dags trigger "
            f"{quote(dag_id)}. Nothing was changed.",
            code="option-invalid",
        ) from error


def _cluster_of(conn_id: str) -> str | None:
    """Return the address of the cluster that a connection names; None: drivers do not run on it."""
    from onceonly.airflow import connections

    return connections.read_spark_connection(conn_id).cluster

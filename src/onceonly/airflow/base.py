"""What the operators share: the coordinator, the run's owner key, links to pages, and how errors become task outcomes.

An error is left for the abort task, which runs in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk._shared.secrets_masker import redact

from onceonly import redaction
from onceonly.airflow import bundles, runs
from onceonly.airflow.versions import AirflowFailException, conf
from onceonly.checkpoint.data_docs import find_address
from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.error_codes import without_rows
from onceonly.errors import InvalidPipeline, OnceonlyError
from onceonly.runtime import pipeline_file, spark_errors
from onceonly.views import queries

if TYPE_CHECKING:
    from onceonly.airflow.lineage import Lineage
    from onceonly.coordinator.coordinator import Coordinator
    from onceonly.runtime.live_services import LiveServices

PLAN_TASK = "plan"
OWNER = "onceonly_owner"  # key of an XCom of the plan task: the run's owner key, by which all its tasks go
ERROR_KEY = "onceonly_error"  # key of an XCom: what a task of this run failed with, for the abort task
MAX_ERROR_CHARACTERS = 1_000
NO_ERROR = "it was marked failed or killed, or it timed out"
UNKNOWN_ERROR = (
    "an earlier task of the run failed in Airflow; which one is not known, because Airflow's API did not answer"
)


def checkpoint_page(pipeline: str, epoch: int | None = None) -> str:
    """Return the address of a checkpoint's page, or of its pipeline's."""
    page = f"{_read_base_url()}/onceonly/pipelines/{pipeline}"
    return f"{page}/{epoch}" if epoch else page


def verification_page(pipeline: str) -> str:
    """Return the address of the page with the last verification of a pipeline."""
    return f"{checkpoint_page(pipeline)}/verification"


def docs_page(checkpoint: Checkpoint) -> str:
    """Return the address of the page that serves its Data Docs; empty if there are none.

    Docs that have a web address of their own are served there.
    """
    stored = find_address(checkpoint)
    if not stored or stored.startswith(("https://", "http://")):
        return stored
    return f"{_read_base_url()}{queries.docs_page(checkpoint)}"


def _read_base_url() -> str:
    """Return the address of Airflow; empty where only its paths are known."""
    return str(conf.get("api", "base_url", fallback="/")).rstrip("/")


class CheckpointLink(BaseOperatorLink):
    """The checkpoint's page, shown on the task once it has ended; without a checkpoint, the pipeline's."""

    name = "Checkpoint"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return checkpoint_page(getattr(operator.pipeline, "name", operator.pipeline), operator.linked_epoch)


class DocsLink(BaseOperatorLink):
    """The page of the Data Docs: what Great Expectations found in the rows that a gate has examined."""

    name = "Data Docs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        docs: str = operator.docs
        return docs


class OnceonlyOperator(BaseOperator):
    """What all operators share: the coordinator, the run's owner key, and how errors become task outcomes."""

    is_plan = False  # whether its tasks return the epoch that the others of the run work on
    linked_epoch: int | None = None  # whose page the task links to
    reported_lineage: Lineage | None = None  # for OpenLineage
    settled_checkpoints: tuple[Checkpoint, ...] = ()  # whose verdict or abort was recorded here, whichever task it is

    def pre_execute(self, context: Any) -> None:
        """Let this process use the project of its run, and reach object stores.

        Airflow calls it before each try, and when the task comes back from the triggerer.
        """
        from onceonly.airflow.connections import log_in_to_stores

        with task_outcome():
            bundles.follow_bundle(context)
            log_in_to_stores()

    def services(self) -> LiveServices:
        """Return the services of a coordinator, whose connections Airflow looks up."""
        from onceonly.airflow.connections import read_extra
        from onceonly.runtime.live_services import LiveServices

        return LiveServices(connections=read_extra)

    def coordinator(self) -> Coordinator:
        """Return a coordinator that logs, counts and reports each transition which this task records."""
        from onceonly.runtime.live_services import open_coordinator

        return open_coordinator(self.services(), log=self._log_transition)

    def _log_transition(self, checkpoint: Checkpoint, row: Row) -> None:
        """Log, count and report a transition: `row`, and the checkpoint after it."""
        from onceonly.airflow import stats
        from onceonly.views.descriptions import describe_transition

        for line in describe_transition(checkpoint, row):
            self._say(line)
        stats.count_transition(checkpoint, row)
        if row.event in (Event.VERDICT, Event.ABORTED):
            name = checkpoint.pipeline, checkpoint.epoch
            earlier = [cp for cp in self.settled_checkpoints if (cp.pipeline, cp.epoch) != name]
            self.settled_checkpoints = (*earlier, checkpoint)
            self._report_gate_lineage(*self.settled_checkpoints)  # at once: the task may fail with another checkpoint

    def _say(self, line: str) -> None:
        self.log.info("%s", line)

    def _report_lineage(self, *checkpoints: Checkpoint) -> None:
        """Report to OpenLineage what checkpoints have read, and what they have published."""
        from onceonly.airflow import lineage

        self._keep_lineage(lineage.collect_lineage, checkpoints)

    def _report_gate_lineage(self, *checkpoints: Checkpoint) -> None:
        """Report to OpenLineage what the gates of checkpoints found, and what aborted checkpoints do not publish."""
        from onceonly.airflow import lineage

        self._keep_lineage(lineage.collect_gate_lineage, checkpoints)

    def _report_abort_lineage(self, *checkpoints: Checkpoint) -> None:
        """Report to OpenLineage what aborted checkpoints do not publish."""
        from onceonly.airflow import lineage

        self._keep_lineage(lineage.collect_abort_lineage, checkpoints)

    def _keep_lineage(self, collect: Callable[..., Lineage], checkpoints: Sequence[Checkpoint]) -> None:
        """Keep the lineage that `collect` returns: OpenLineage's provider asks for it when the task has ended."""
        from onceonly.airflow import lineage, stats

        with stats.log_errors():
            if lineage.is_enabled():
                self.reported_lineage = collect(OnceonlyOperator.services(self), *checkpoints)
            else:
                self.reported_lineage = None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return what this task reports, as OpenLineage's provider asks for it."""
        from onceonly.airflow import lineage

        return lineage.make_facets(self.reported_lineage or lineage.Lineage())


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
        """Return the epoch to work on; fail the task, without a retry, if there is none."""
        epoch = self.planned_epoch(context)
        if epoch is None:
            plan = plan_task_of(self, context)
            raise AirflowFailException(
                f"{self.pipeline}: no epoch to work on.\n{_describe_missing_epoch(context, plan)}\n"
                f"{how_to_clear(context, plan)} Or pass epoch=…."
            )
        return epoch

    def planned_epoch(self, context: Any) -> int | None:
        """Return the epoch to work on; None if the run's plan task has planned nothing."""
        epoch = self.epoch
        if epoch is None:
            epoch = context["ti"].xcom_pull(task_ids=plan_task_of(self, context))
        self.linked_epoch = None if epoch is None else int(epoch)
        return self.linked_epoch


def owner_of(context: Any) -> str:
    """Return the owner key of the task's run: the plan task has left it, so another installation id changes nothing."""
    plan = plan_task_of(context.get("task"), context)
    owner: str | None = context["ti"].xcom_pull(task_ids=plan, key=OWNER)
    return owner or make_owner(context)


def plan_task_of(task: Any, context: Any) -> str:
    """Return the id of the plan task of a step: the one before it, whatever its id and its group.

    It is the one of the step's pipeline. With none before it, or several, it is the step's neighbour 'plan'.
    """
    pipeline = getattr(task, "pipeline", None)
    plans = [plan for plan in _plans_before(task) if plan.pipeline.name == pipeline]
    if len(plans) == 1:
        return str(plans[0].task_id)
    group, _, _ = str(getattr(context["ti"], "task_id", "")).rpartition(".")
    return f"{group}.{PLAN_TASK}".removeprefix(".")


def _plans_before(task: Any) -> list[Any]:
    """Return the plan tasks upstream of a task; none where it is in no DAG. A mapped one has an epoch per pipeline."""
    if task is None or not task.has_dag():
        return []
    return [other for other in task.get_flat_relatives(upstream=True) if getattr(other, "is_plan", False)]


def _describe_missing_epoch(context: Any, plan: str) -> str:
    dag = context.get("dag")
    if dag is not None and not dag.has_task(plan):
        return f"There is no plan task before it in this DAG, and none with the id '{plan}'."
    return f"The task '{plan}' of this run returned none."


def how_to_clear(context: Any, task_id: str) -> str:
    """Say how a task of this run and what follows it are run again."""
    return how_to_clear_of(context["ti"].dag_id, context["run_id"], context.get("logical_date"), task_id)


def how_to_clear_of(dag_id: str, run_id: str, date: datetime | None, task_id: str) -> str:
    """Say how a task of a run and what follows it are run again.

    Airflow's command finds runs by their dates. One that has none is cleared on its page. What it calls a regex is a
    part of the task's id.
    """
    if date is None:
        return f"Clear the task '{task_id}' and what follows on the page of this run: /dags/{dag_id}/runs/{run_id}."
    day = date.isoformat()
    return (
        f"Clear the task '{task_id}' and what follows: airflow tasks clear {quote(dag_id)} --yes --downstream "
        f"--task-regex {quote(task_id)} --start-date {day} --end-date {day}."
    )


def make_owner(context: Any) -> str:
    """Return the owner key of the task's run in this Airflow."""
    from onceonly.runtime.owners import airflow_owner

    return airflow_owner(context["ti"].dag_id, context["run_id"], runs.read_installation())


@contextmanager
def task_outcome(
    context: Any = None, final: tuple[type[Exception], ...] = (InvalidPipeline,), pipeline: str = ""
) -> Iterator[None]:
    """Fail without a retry where that cannot help: nothing changes invalid input but an edit.

    Args:
        context: where the abort task finds the error.
        final: errors after which the task is not tried again.
        pipeline: that the error is about, where it does not know it itself.
    """
    try:
        yield
    except Exception as error:
        _name_file(error, pipeline)
        if context is not None:
            leave_error(context, error)
        if isinstance(error, final) or getattr(error, "code", None) in spark_errors.MENDED_BY_EDIT:
            raise AirflowFailException(str(error)) from error
        raise


def _name_file(error: Exception, pipeline: str) -> None:
    """Let the commands of an error name the pipeline's own file."""
    if isinstance(error, OnceonlyError) and (error.pipeline or pipeline):
        error.advise(pipeline_file.name_in_project(error.todo, error.pipeline or pipeline))


def leave_error(context: Any, error: BaseException) -> None:
    """Leave an error for the abort task, which runs in another process.

    The error itself matters more than whether this works.
    Unlike a log, an XCom and the state table are not masked by Airflow: secrets that this task knows are cut out here.
    Rows are not quoted: what the state table holds cannot be erased.
    """
    if isinstance(error, OnceonlyError):
        error = without_rows(error)
    what_and_why = "\n".join(str(error).split("\n")[:2])
    with suppress(Exception):
        text = redaction.hide_credentials(redact(what_and_why))
        context["ti"].xcom_push(key=ERROR_KEY, value=text[:MAX_ERROR_CHARACTERS])


def explain_abort(context: Any, task_ids: Sequence[str]) -> str:
    """Say what the abort task records: which of these tasks failed, and with what error.

    The abort itself does not depend on an answer from Airflow's API.
    """
    ti = context["ti"]
    try:
        states = ti.get_task_states(ti.dag_id, task_ids=sorted(task_ids), run_ids=[ti.run_id]).get(ti.run_id, {})
        failures = [_describe_failure(ti, task_id) for task_id in sorted(states) if states[task_id] == "failed"]
    except Exception:
        return UNKNOWN_ERROR
    return "; ".join(failures) or "an earlier task of the run failed in Airflow"


def _describe_failure(ti: Any, task_id: str) -> str:
    """Say in one line that a task has failed, and with the error that it left for the abort task."""
    error = ti.xcom_pull(task_ids=task_id, key=ERROR_KEY)
    reason = " ".join(str(error).split()) if error else NO_ERROR
    return f"task '{task_id}' failed in Airflow: {reason}"

"""What Airflow knows of the runs that own checkpoints: whether one is still at work, and on which task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

from onceonly.airflow import runs
from onceonly.airflow.base import how_to_clear_of
from onceonly.airflow.ui.recovery_dag import RecoveryDag, describe_recovery, find_recovery_dag
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.runtime import owners
from onceonly.views import descriptions, formatting
from onceonly.waits import CLOCK

FAILED, SUCCESS = "failed", "success"
GATE_TASK = "gate"
UP_FOR_RETRY = "up_for_retry"
ACTIVE_STATES = ("queued", "running")  # of a run
TASK_STATES = {  # of tasks at which a run is, in words
    "running": "is running",
    "deferred": "is running, and a triggerer waits for it",
    "restarting": "is being restarted",
    "queued": "is queued",
    "scheduled": "is about to be queued",
    UP_FOR_RETRY: "has failed and will be tried again",
    "up_for_reschedule": "waits for its next look",
}


@dataclass(frozen=True)
class OwnerRun:
    """A run of this Airflow that owns a checkpoint. `state` is None where the run no longer exists."""

    dag_id: str
    run_id: str
    state: str | None

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE_STATES

    @property
    def path(self) -> str:
        """Return where Airflow shows it."""
        return f"/dags/{quote(self.dag_id, safe='')}/runs/{quote(self.run_id, safe='')}"


@dataclass(frozen=True)
class ActiveTask:
    """A task at which a run is."""

    task_id: str
    state: str
    since: datetime | None

    def __str__(self) -> str:
        """Return 'stage is running since 21:21:07 UTC (45 s)'."""
        text = f"{self.task_id} {TASK_STATES[self.state]}"
        if self.since is None:
            return text
        time, age = self.since.strftime(CLOCK), formatting.age(self.since)
        if self.state == UP_FOR_RETRY:
            return f"{text}: it failed at {time} ({age} ago)"
        return f"{text} since {time} ({age})"


def read_owner_runs(checkpoints: Iterable[Checkpoint]) -> dict[str, OwnerRun]:
    """Return by owner key the runs of this Airflow that own these checkpoints, or did; others have none here."""
    keys = set[str]()
    for checkpoint in checkpoints:
        keys.update(checkpoint.owners)
    run_by_key = {}
    for key in keys:
        run = owners.parse_airflow_run(key)
        if run and owners.installation_of(key) == runs.read_installation_on_server():
            run_by_key[key] = run
    states = _read_states(run_by_key.values())
    return {key: OwnerRun(*run, states.get(run)) for key, run in run_by_key.items()}


def _read_states(run_names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the states of runs by their DAG and id."""
    names = set(run_names)
    if not names:
        return {}
    query = select(DagRun.dag_id, DagRun.run_id, DagRun.state).where(
        DagRun.dag_id.in_({dag_id for dag_id, _ in names}), DagRun.run_id.in_({run_id for _, run_id in names})
    )
    with create_session() as session:
        rows = session.execute(query).all()
    return {(row.dag_id, row.run_id): _plain(row.state) for row in rows}


def read_active_tasks(run: OwnerRun) -> list[ActiveTask]:
    """Return the tasks at which a run is, those that have begun first."""
    query = select(TaskInstance.task_id, TaskInstance.state, TaskInstance.start_date, TaskInstance.end_date).where(
        TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id, TaskInstance.state.in_(list(TASK_STATES))
    )
    tasks = []
    with create_session() as session:
        for row in session.execute(query):
            state = _plain(row.state)
            since = row.end_date if state == UP_FOR_RETRY else row.start_date
            tasks.append(ActiveTask(row.task_id, state, since))
    order = list(TASK_STATES)
    return sorted(tasks, key=lambda task: (order.index(task.state), task.task_id))


@dataclass(frozen=True)
class LeftBehind:
    """Unsettled checkpoints on which nobody works, although they wait for no person.

    Args:
        texts: by pipeline and epoch, what becomes of it and what to do.
        recovery: the recovery DAG; None: there is none, or nothing waits for it.
    """

    texts: Mapping[tuple[str, int], str]
    recovery: RecoveryDag | None = None


def find_left_behind(checkpoints: Iterable[Checkpoint], owner_runs: Mapping[str, OwnerRun]) -> LeftBehind:
    """Return those of these checkpoints on which nobody works."""
    ends = []
    for checkpoint in checkpoints:
        step = descriptions.describe_recovery_step(checkpoint)
        end = step and _describe_end(checkpoint, owner_runs.get(checkpoint.owner))
        if end:
            ends.append((checkpoint, end, step))
    if not ends:
        return LeftBehind({})
    recovery, texts = find_recovery_dag(), {}
    for checkpoint, end, step in ends:
        name = f"{checkpoint.pipeline} epoch {checkpoint.epoch}"
        what = f"Nobody works on {name}, which is {formatting.state(checkpoint)}: {end}. {step}"
        texts[checkpoint.pipeline, checkpoint.epoch] = f"{what} {describe_recovery(recovery, checkpoint.pipeline)}"
    return LeftBehind(texts, recovery)


def _describe_end(checkpoint: Checkpoint, run: OwnerRun | None) -> str:
    """Say how the owner of a checkpoint has ended; empty while it is running, or may be."""
    if run is None:
        if owners.is_alive(checkpoint):
            return ""
        return descriptions.describe_silence(checkpoint)
    if run.is_active:
        return ""
    if run.state is None:
        return f"its run '{run.run_id}' no longer exists in Airflow"
    if run.state == SUCCESS:
        return f"its run '{run.run_id}' has ended without a commit, although Airflow calls it a success"
    return f"its run '{run.run_id}' has {run.state}"


def describe_failed_run(checkpoint: Checkpoint, run: OwnerRun | None) -> str:
    """Say why the run of a checkpoint that was approved stays red, and how it gets green; empty if it is not."""
    if run is None or run.state != FAILED or checkpoint.state is not State.COMMITTED or not checkpoint.approved:
        return ""
    task_id, date = _read_failed_task(run)
    return (
        f"Its rows are published, and its run '{run.run_id}' stays failed in Airflow, because its task '{task_id}' has "
        f"failed. To make it green: {how_to_clear_of(run.dag_id, run.run_id, date, task_id)} Nothing is staged or "
        "published again by that."
    )


def _read_failed_task(run: OwnerRun) -> tuple[str, datetime | None]:
    """Return the task of a run that has failed, the gate by default, and the run's logical date."""
    of_run = TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id
    failed = select(TaskInstance.task_id).where(*of_run, TaskInstance.state == FAILED).order_by(TaskInstance.task_id)
    date = select(DagRun.logical_date).where(DagRun.dag_id == run.dag_id, DagRun.run_id == run.run_id)
    with create_session() as session:
        return session.scalar(failed) or GATE_TASK, session.scalar(date)


def _plain(state: Any) -> str:
    return str(getattr(state, "value", state))

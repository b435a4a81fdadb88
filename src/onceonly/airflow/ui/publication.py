"""Approve on the page: a run of the recovery DAG publishes the checkpoint at once, and the page shows how far it is."""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote
from typing import Any

from airflow.api_fastapi.core_api.datamodels.dag_run import TriggerDAGRunPostBody
from airflow.api_fastapi.core_api.routes.public.dag_run import trigger_dag_run
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi import Request
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from onceonly.airflow.names import APPROVED
from onceonly.airflow.ui.owner_runs import describe_failed_run, read_owner_runs
from onceonly.airflow.ui.recovery_dag import NEW_RECOVERY_DAG, RecoveryDag, find_recovery_dag
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.views import descriptions, formatting
from onceonly.views.changes import describe_change

RUNNING, QUEUED, FAILED = "running", "queued", "failed"


def describe_obstacle(checkpoint: Checkpoint, recovery: RecoveryDag | None) -> str:
    """Say why an approval would not publish, and what to do; empty where it would."""
    by_hand = f"onceonly approve {checkpoint.pipeline} {checkpoint.epoch} --reason … --seen {checkpoint.changed_seq}"
    if recovery is None:
        return (
            "But this Airflow has no recovery DAG, which would publish them: the approval would only be recorded. "
            f"Add it ({NEW_RECOVERY_DAG}), or use the command line, which publishes by itself: {by_hand}"
        )
    if recovery.is_paused:
        return (
            f"But the DAG '{recovery.dag_id}', which publishes them, is paused: its run would wait. "
            f"Unpause it: airflow dags unpause {quote(recovery.dag_id)}. Or use the command line: {by_hand}"
        )
    return ""


def start_run(request: Request, user: GetUserDep, recovery: RecoveryDag, checkpoint: Checkpoint) -> str:
    """Start the run that publishes what was approved, and return its id.

    The id names the attempt: a second request, as where the answer to the first was lost, finds that run.
    """
    run_id = _run_id(checkpoint)
    approved = {"pipeline": checkpoint.pipeline, "epoch": checkpoint.epoch, "attempt": checkpoint.attempt}
    body = TriggerDAGRunPostBody(dag_run_id=run_id, conf={APPROVED: approved}, logical_date=None)
    with create_session() as session:
        if _read_run_state(session, recovery.dag_id, run_id) is None:
            try:
                trigger_dag_run(recovery.dag_id, body, DBDagBag(), user, session, request)
                session.commit()
            except IntegrityError:
                session.rollback()  # another request was first
    return run_id


def describe_approved(checkpoints: Iterable[Checkpoint]) -> dict[tuple[str, int], str]:
    """Return by pipeline and epoch how far those are that a person has approved, and that are not decided yet."""
    texts = {}
    for checkpoint in checkpoints:
        if checkpoint.approved and checkpoint.state is State.STAGED and not checkpoint.refused:
            text = describe_progress(checkpoint, checkpoint.attempt)["text"]
            texts[checkpoint.pipeline, checkpoint.epoch] = text
    return texts


def describe_progress(checkpoint: Checkpoint, attempt: int) -> dict[str, Any]:
    """Return {"text", "done"}: how far the publication of an approved attempt is, and whether nothing more comes."""
    name = f"{checkpoint.pipeline} epoch {checkpoint.epoch}"
    if checkpoint.attempt != attempt or checkpoint.state.is_settled:
        note = describe_failed_run(checkpoint, read_owner_runs([checkpoint]).get(checkpoint.owner))
        return {"text": f"{describe_change(formatting.HELD, checkpoint)}\n{note}".rstrip(), "done": True}
    if checkpoint.refused:
        return {"text": descriptions.describe_needed_action(checkpoint), "done": True}
    if checkpoint.approved is None:
        return {"text": f"{name} is {formatting.state(checkpoint)}.", "done": True}
    recovery = find_recovery_dag()
    state = None
    if recovery:
        with create_session() as session:
            state = _read_run_state(session, recovery.dag_id, _run_id(checkpoint))
    if recovery is None or state is None:
        return {
            "text": f"{name}: approved, and not published yet. {_how_to_publish(checkpoint, recovery)}",
            "done": True,
        }
    if state not in (QUEUED, RUNNING):
        text = f"{name}: approved, and not published yet: the run has {state}. The approval stands, and "
        how = f"recovery continues (at once: airflow dags trigger {quote(recovery.dag_id)})."
        return {"text": f"{text}{how} Look at the log of the run '{_run_id(checkpoint)}'.", "done": True}
    return {"text": f"{name}: approved, {_describe_step(checkpoint, recovery, state)}", "done": False}


def _describe_step(checkpoint: Checkpoint, recovery: RecoveryDag, state: str) -> str:
    if checkpoint.state is State.COMMITTING:
        published = ", ".join(checkpoint.published) or "no sink"
        return f"decided. Published so far: {published}; waiting: {', '.join(checkpoint.waiting)}."
    if state == RUNNING:
        return "being published …"
    if recovery.is_paused:
        return f"and waiting: the DAG '{recovery.dag_id}' is paused. airflow dags unpause {quote(recovery.dag_id)}"
    return f"the run of '{recovery.dag_id}' that publishes it is queued …"


def _how_to_publish(checkpoint: Checkpoint, recovery: RecoveryDag | None) -> str:
    how = f"Add the recovery DAG ({NEW_RECOVERY_DAG}), or use" if recovery is None else "Use"
    command = f"onceonly approve {checkpoint.pipeline} {checkpoint.epoch} --reason … --seen {checkpoint.changed_seq}"
    return f"{how} the command line: {command}"


def _run_id(checkpoint: Checkpoint) -> str:
    return f"approved__{checkpoint.pipeline}-{checkpoint.epoch}-{checkpoint.attempt}"


def _read_run_state(session: Any, dag_id: str, run_id: str) -> str | None:
    """Return the state of a run; None: there is no such run."""
    state = session.scalar(select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    if state is None:
        return None
    return str(getattr(state, "value", state))

"""What users may do: each is one call of the coordinator, and is in Airflow's audit log before it is tried."""

from __future__ import annotations

import json
from shlex import quote
from typing import Annotated, Literal

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models import Log
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field, StringConstraints
from sqlalchemy import select

from onceonly.airflow import runs
from onceonly.airflow.ui import live, publication, recovery_dag, repairs
from onceonly.airflow.ui.access import EditorDep, Viewer
from onceonly.checkpoint.model import Checkpoint
from onceonly.coordinator.manual import Seen
from onceonly.runtime import owners
from onceonly.views import formatting
from onceonly.views.changes import NOTHING_TO_SETTLE, describe_change
from onceonly.views.manual_actions import describe_resolution
from onceonly.views.story import read_story

router = APIRouter()
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]


class ActionRequest(BaseModel):
    """The body of every action.

    Args:
        seen: the number of what the user was looking at: every action on a checkpoint is refused without it.
    """

    reason: Reason
    seen: int | None = Field(default=None, ge=0)

    @property
    def looked_at(self) -> Seen | None:
        """Return what the user was looking at, as the coordinator compares it."""
        if self.seen is None:
            return None
        return Seen(self.seen)


class Resolution(ActionRequest):
    """The body of a resolution: what somebody found out about a sink, or decides about it."""

    sink: str
    word: Literal["committed", "aborted", "give-up"]


class Repair(ActionRequest):
    """The body of a repair: names of sinks. With none, every sink is written, and its rows are replaced."""

    keep: list[str] = []
    again: list[str] = []
    only: list[str] = []

    @property
    def wish(self) -> dict[str, list[str]]:
        return {"keep": self.keep, "again": self.again, "only": self.only}


@router.post("/pipelines/{pipeline}/recover")
def recover(pipeline: str, action: ActionRequest, viewer: EditorDep) -> dict[str, str]:
    """Settle what ended owners left behind."""
    _log_action("recover", viewer, pipeline, action)
    states = {checkpoint.epoch: checkpoint.state.value for checkpoint in viewer.state.view(pipeline).open}
    settled = live.coordinator().recover(pipeline, alive)
    lines = [describe_change(states.get(cp.epoch, cp.state.value), cp) for cp in settled]
    return {"done": "\n".join(lines) or NOTHING_TO_SETTLE}


@router.post("/pipelines/{pipeline}/{epoch}/abort")
def abort(pipeline: str, epoch: int, action: ActionRequest, viewer: EditorDep) -> dict[str, str]:
    """Abort a checkpoint that is not decided."""
    _log_action("abort", viewer, pipeline, action, epoch)
    was = formatting.state(viewer.state.view(pipeline).require(epoch))
    coordinator = live.coordinator()
    coordinator.require_sinks(pipeline, epoch)
    done = coordinator.abort(pipeline, epoch, action.reason, who=viewer.name, seen=action.looked_at)
    return {"done": describe_change(was, done)}


@router.post("/pipelines/{pipeline}/{epoch}/approve")
def approve(
    request: Request, pipeline: str, epoch: int, action: ActionRequest, viewer: EditorDep, user: GetUserDep
) -> dict[str, str]:
    """Publish a held checkpoint although its gate failed it: record that, and start the run that publishes it.

    If this process ends in between, the approval stands. The same request, sent again, starts the run then.
    """
    _log_action("approve", viewer, pipeline, action, epoch)
    approved = live.coordinator().approve(pipeline, epoch, viewer.name, action.reason, action.looked_at)
    recovery = recovery_dag.find_recovery_dag()
    if recovery is None or approved.state.is_settled:
        return {"done": publication.describe_progress(approved, approved.attempt)["text"]}
    try:
        run_id = publication.start_run(request, user, recovery, approved)
    except HTTPException as refusal:  # the approval stands
        return {"done": f"{publication.describe_progress(approved, approved.attempt)['text']}\n{refusal.detail}"}
    return {
        "done": publication.describe_progress(approved, approved.attempt)["text"],
        "run": repairs.run_path(recovery.dag_id, run_id),
        "follow": f"/pipelines/{pipeline}/{epoch}/publication/{approved.attempt}",
    }


@router.post("/pipelines/{pipeline}/{epoch}/resolve")
def resolve(pipeline: str, epoch: int, action: Resolution, viewer: EditorDep) -> dict[str, str]:
    """Settle a decided checkpoint by hand, where its sink cannot."""
    _log_action("resolve", viewer, pipeline, action, epoch)
    was = viewer.state.view(pipeline).require(epoch).state.value
    coordinator, sink, looked_at = live.coordinator(), action.sink, action.looked_at
    if action.word == "give-up":
        done = coordinator.give_up(pipeline, epoch, sink, viewer.name, action.reason, seen=looked_at)
    else:
        committed = action.word == "committed"
        done = coordinator.resolve_doubt(pipeline, epoch, sink, committed, viewer.name, action.reason, looked_at)
    is_published = sink not in done.given_up
    resolution = describe_resolution(action.word, sink, viewer.name, action.reason, is_published)
    return {"done": f"{resolution}\n{describe_change(was, done)}"}


@router.post("/pipelines/{pipeline}/{epoch}/repair")
def repair(
    request: Request, pipeline: str, epoch: int, action: Repair, viewer: EditorDep, user: GetUserDep
) -> dict[str, str]:
    """Start a run that writes the rows of a checkpoint once more, to some sinks or to all."""
    if not viewer.may("POST", pipeline):
        raise HTTPException(403, "A repair is a run of the DAG: that needs permission to start its runs.")
    _log_action("repair", viewer, pipeline, action, epoch)
    checkpoint = viewer.state.view(pipeline).require(epoch)
    repairs.refuse_changed(read_story(viewer.state, checkpoint), action.seen)
    conf = repairs.make_conf(checkpoint, action.reason, action.wish)
    dag_id = repairs.require_dag(viewer, pipeline, repairs.make_command(checkpoint, conf))
    sinks = live.coordinator().check_request(pipeline, epoch, repairs.make_request(conf, viewer.name))
    run_id, is_paused = repairs.start_run(request, user, dag_id, checkpoint, action.seen or 0, conf)
    done = f"Run '{run_id}' is queued. It writes {', '.join(sinks)}."
    if is_paused:
        done += f" The DAG '{dag_id}' is paused, and the run waits until: airflow dags unpause {quote(dag_id)}"
    return {"done": done, "run": repairs.run_path(dag_id, run_id)}


def alive(checkpoint: Checkpoint) -> bool:
    """Whether the owner of a checkpoint is still running.

    A DAG run of this Airflow is, until it has ended. Another owner, or a run of another Airflow, is judged by its
    heartbeat.
    """
    run = owners.parse_airflow_run(checkpoint.owner)
    if run is None or owners.installation_of(checkpoint.owner) != runs.read_installation_on_server():
        return owners.is_alive(checkpoint)
    with create_session() as session:
        state = session.scalar(select(DagRun.state).where(DagRun.dag_id == run[0], DagRun.run_id == run[1]))
    return state in ("queued", "running")


def _log_action(event: str, viewer: Viewer, pipeline: str, action: ActionRequest, epoch: int | None = None) -> None:
    """Write an action to Airflow's audit log, once for each DAG of the pipeline: it shows among the events of each."""
    extra = json.dumps({"pipeline": pipeline, "epoch": epoch, **action.model_dump()})
    with create_session() as session:
        for dag_id in sorted(viewer.dags(pipeline)):
            session.add(Log(f"onceonly_{event}", None, viewer.name, viewer.name, extra, dag_id=dag_id))

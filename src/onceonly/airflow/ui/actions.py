"""What users may do: each is one call of the coordinator, and is in Airflow's audit log before it is tried."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from airflow.models import Log
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi import APIRouter
from pydantic import BaseModel, Field, StringConstraints
from sqlalchemy import select

from onceonly.airflow import installation
from onceonly.airflow.ui import live
from onceonly.airflow.ui.access import EditorDep, Viewer
from onceonly.checkpoint.model import Checkpoint
from onceonly.coordinator.manual import Seen
from onceonly.runtime import owners
from onceonly.views import formatting

router = APIRouter()
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]


class ActionRequest(BaseModel):
    """What every action is given.

    Args:
        seen: the number of what the user was looking at: every action on a checkpoint is refused without it.
    """

    reason: Reason
    seen: int | None = Field(default=None, ge=0)

    @property
    def looked_at(self) -> Seen | None:
        return None if self.seen is None else Seen(self.seen)


class Resolution(ActionRequest):
    """What somebody found out about a sink, or decides about it."""

    sink: str
    word: Literal["committed", "aborted", "give-up"]


@router.post("/pipelines/{pipeline}/recover")
def recover(pipeline: str, said: ActionRequest, viewer: EditorDep) -> dict[str, str]:
    """Settle what ended owners left behind."""
    _record("recover", viewer, pipeline, said)
    settled = live.coordinator().recover(pipeline, alive)
    words = ", ".join(f"epoch {cp.epoch} is {formatting.state(cp)}" for cp in settled)
    return {"done": words or "There is nothing to settle."}


@router.post("/pipelines/{pipeline}/{epoch}/abort")
def abort(pipeline: str, epoch: int, said: ActionRequest, viewer: EditorDep) -> dict[str, str]:
    _record("abort", viewer, pipeline, said, epoch)
    return _became(live.coordinator().abort(pipeline, epoch, said.reason, who=viewer.name, seen=said.looked_at))


@router.post("/pipelines/{pipeline}/{epoch}/approve")
def approve(pipeline: str, epoch: int, said: ActionRequest, viewer: EditorDep) -> dict[str, str]:
    """Let a held checkpoint be published with the next commit, although its gate failed it."""
    _record("approve", viewer, pipeline, said, epoch)
    return _became(live.coordinator().approve(pipeline, epoch, viewer.name, said.reason, said.looked_at))


@router.post("/pipelines/{pipeline}/{epoch}/resolve")
def resolve(pipeline: str, epoch: int, said: Resolution, viewer: EditorDep) -> dict[str, str]:
    """Settle a decided checkpoint by hand, where its sink cannot."""
    _record("resolve", viewer, pipeline, said, epoch)
    through = live.coordinator()
    if said.word == "give-up":
        return _became(through.give_up(pipeline, epoch, said.sink, viewer.name, said.reason, seen=said.looked_at))
    committed = said.word == "committed"
    return _became(
        through.resolve_doubt(pipeline, epoch, said.sink, committed, viewer.name, said.reason, said.looked_at)
    )


def alive(checkpoint: Checkpoint) -> bool:
    """Whether the DAG run that owns it has not ended; another owner, or a run of another Airflow, by its heartbeat."""
    run = owners.parse_airflow_run(checkpoint.owner)
    if run is None or owners.installation_of(checkpoint.owner) != installation.of_server():
        return owners.alive(checkpoint)
    with create_session() as session:
        state = session.scalar(select(DagRun.state).where(DagRun.dag_id == run[0], DagRun.run_id == run[1]))
    return state in ("queued", "running")


def _record(event: str, viewer: Viewer, pipeline: str, said: ActionRequest, epoch: int | None = None) -> None:
    """Once for each DAG of the pipeline: so it shows among the events of all of them."""
    extra = json.dumps({"pipeline": pipeline, "epoch": epoch, **said.model_dump()})
    with create_session() as session:
        for dag_id in sorted(viewer.dags(pipeline)):
            session.add(Log(f"onceonly_{event}", None, viewer.name, viewer.name, extra, dag_id=dag_id))


def _became(now: Checkpoint) -> dict[str, str]:
    return {"done": f"Epoch {now.epoch} is {formatting.state(now)}."}

"""What a page offers to repair, and the run of a DAG that does it.

A page starts a run whose conf is the request, so that a repair goes through the same tasks as everything else.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from airflow.api_fastapi.core_api.datamodels.dag_run import TriggerDAGRunPostBody
from airflow.api_fastapi.core_api.routes.public.dag_run import trigger_dag_run
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi import Request
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from onceonly.airflow import runs
from onceonly.airflow.intervals import CONF_KEY as INTERVAL_KEY
from onceonly.airflow.ui.access import Viewer
from onceonly.checkpoint.commands import interval_times
from onceonly.checkpoint.model import Checkpoint
from onceonly.coordinator import reprocess
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import Busy, InvalidPipeline
from onceonly.runtime import pipeline_file
from onceonly.runtime.owners import installation_of, parse_airflow_run
from onceonly.views.story import STATE_KIND, Deed, Story

REPLACE, KEEP, AGAIN, ADD = "replace", "keep", "again", "add"
MEANINGS = {REPLACE: "its rows are replaced", KEEP: "its rows stay as they are", AGAIN: "its rows come once more"}
LACKING_MEANINGS = {  # of a sink in which no rows of these records are in force
    ADD: "it has no rows: they are added",
    KEEP: "it has no rows, and gets none",
    AGAIN: "its lost rows come once more",
}
CHOICES = {"kafka": (KEEP, AGAIN), "delta": (REPLACE, KEEP), "files": (REPLACE, KEEP)}  # by kind, the default first
ANY_CHOICE = (REPLACE, KEEP, AGAIN)  # of a kind from another package
DIGEST_CHARACTERS = 8


@dataclass(frozen=True)
class Offer:
    """What a person may ask for on the page of a checkpoint.

    Args:
        seen: the number of what is shown; a request is refused once it has changed.
        choices: {"sink", "options": [(word, meaning)]} of each sink to correct, also of one that lacks the rows: a
            correction writes it unless it is kept. Empty: nothing can be corrected.
        lacking: sinks to complete, each with whether its rows come once more, as it may have shown them before.
    """

    seen: int
    choices: tuple[dict[str, Any], ...]
    lacking: tuple[tuple[str, bool], ...]


def make_offer(checkpoint: Checkpoint, story: Story) -> Offer | None:
    """Return what may be asked for; None: nothing, or something is under way."""
    if not story.in_force or not _is_settled(story):
        return None
    kinds: dict[str, str] = {}
    for other in story.checkpoints:  # a sink that was added later is not in the first one's definition
        kinds |= _kinds_of(other)
    choices: list[dict[str, Any]] = []
    if checkpoint.interval is not None:
        for sink in story.in_force:
            if kinds.get(sink, STATE_KIND) != STATE_KIND:
                choices.append(_choice(sink, CHOICES.get(kinds[sink], ANY_CHOICE), MEANINGS))
    can_correct, lacking = bool(choices), list[tuple[str, bool]]()
    for sink in story.lacking:
        is_again = _comes_once_more(story, sink)
        lacking.append((sink, is_again))
        if can_correct:
            choices.append(_choice(sink, (KEEP, AGAIN) if is_again else (ADD, KEEP), LACKING_MEANINGS))
    return Offer(number_of(story), tuple(choices), tuple(lacking))


def _choice(sink: str, words: Iterable[str], meanings: Mapping[str, str]) -> dict[str, Any]:
    return {"sink": sink, "options": [(word, meanings[word]) for word in words]}


def number_of(story: Story) -> int:
    """Return the number of what is shown: the last row that has changed one of the checkpoints."""
    return max(checkpoint.changed_seq for checkpoint in story.checkpoints)


def _is_settled(story: Story) -> bool:
    return all(checkpoint.state.is_settled for checkpoint in story.checkpoints)


def _kinds_of(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the kinds of its sinks by name."""
    return {sink["name"]: sink["kind"] for sink in checkpoint.definition.json["sinks"]}


def _comes_once_more(story: Story, sink: str) -> bool:
    """Whether a sink that cannot retract rows may have shown those that it lacks: its target has lost them."""
    for checkpoint in story.checkpoints:
        part = story.part(checkpoint.epoch, sink)
        kinds = _kinds_of(checkpoint)
        if part and part.deed is Deed.MISSING and REPLACE not in CHOICES.get(kinds[sink], ANY_CHOICE):
            return True
    return False


def make_conf(checkpoint: Checkpoint, reason: str, wish: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the conf of the run that does what is asked for.

    Args:
        wish: names of sinks under "keep", "again" and "only"; all empty: every sink is written, and its rows replaced.
    """
    conf = dict[str, Any]()
    for key, names in wish.items():
        if names:
            conf[key] = names
    if not wish["only"]:
        conf["reprocess"] = True
    if checkpoint.interval is None:
        conf["epoch"] = checkpoint.origin
    else:  # its logical date lies elsewhere, so the conf says which interval is meant
        conf[INTERVAL_KEY] = [checkpoint.interval.start.isoformat(), checkpoint.interval.end.isoformat()]
    return {**conf, "reason": reason}


def refuse_changed(story: Story, seen: int | None) -> None:
    """Refuse a request if anything has changed that the person was shown, or is under way.

    Raises:
        InvalidPipeline: nothing was started.
    """
    name, epoch = story.checkpoints[-1].pipeline, story.checkpoints[-1].epoch
    if seen != number_of(story) or not _is_settled(story):
        raise InvalidPipeline(
            f"{name} epoch {epoch} has changed since you looked at it, or is being repaired.",
            f"The last row that changed it has number {number_of(story)}. You have seen {seen}.",
            f"Look again, then decide: onceonly describe {name} {epoch}. Nothing was started.",
            code="seen-outdated",
        )


def find_dag(viewer: Viewer, pipeline: str) -> str | None:
    """Return the id of the DAG whose runs write the pipeline; None: this Airflow has none, or none that is the one."""
    latest = viewer.state.view(pipeline).latest
    with create_session() as session:
        current_dags = select(DagModel.dag_id).where(DagModel.dag_id.in_(viewer.dags(pipeline)), ~DagModel.is_stale)
        dag_ids = set(session.scalars(current_dags))
    run = parse_airflow_run(latest.owner) if latest else None
    if latest and run and run[0] in dag_ids and installation_of(latest.owner) == runs.read_installation_on_server():
        return run[0]
    return dag_ids.pop() if len(dag_ids) == 1 else None


def start_run(
    request: Request, user: GetUserDep, dag_id: str, checkpoint: Checkpoint, seen: int, conf: dict[str, Any]
) -> tuple[str, bool]:
    """Start a run with that conf, on the interval of the checkpoint; return its id, and whether the DAG is paused.

    Its id says what was asked for and what the person was shown. So nothing is asked for twice, as where the answer to
    the first request was lost.

    Raises:
        Busy: there is that run already.
        HTTPException: Airflow refuses it.
    """
    digest = hashlib.sha256(json.dumps(conf, sort_keys=True).encode()).hexdigest()[:DIGEST_CHARACTERS]
    run_id = f"repair__{checkpoint.pipeline}-{checkpoint.epoch}-{seen}-{digest}"
    interval: dict[str, Any] = {"logical_date": None}
    if checkpoint.interval:
        span = checkpoint.interval
        interval = {"data_interval_start": span.start, "data_interval_end": span.end}
    with create_session() as session:
        same_run = select(DagRun.run_id).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        if session.scalar(same_run):
            raise _asked_before_error(dag_id, run_id)
        is_paused = bool(session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == dag_id)))
        if checkpoint.interval:
            interval["logical_date"] = _find_logical_date(dag_id, session)
        body = TriggerDAGRunPostBody(dag_run_id=run_id, conf=conf, **interval)
        try:
            trigger_dag_run(dag_id, body, DBDagBag(), user, session, request)
            session.commit()
        except IntegrityError as error:
            session.rollback()
            raise _asked_before_error(dag_id, run_id) from error
    return run_id, is_paused


def _find_logical_date(dag_id: str, session: Session) -> datetime:
    """Return the logical date of a run that starts now; one run has that of the interval already.

    Of a run after the end date of a DAG or of a task, Airflow makes no tasks, and says that it has succeeded. So it is
    just before that date; how much, tells runs apart, as no two have the same one.
    """
    now = datetime.now(UTC)
    dag = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
    ends = []
    for limited in (dag, *dag.tasks) if dag else ():
        if limited.end_date:
            ends.append(limited.end_date)
    if not ends or now <= min(ends):
        return now
    return min(ends) - timedelta(microseconds=now.microsecond + 1)


def make_request(conf: Mapping[str, Any], who: str) -> Reprocess:
    """Return the request that the plan task of a run with that conf will make, to look at it before."""
    request = reprocess.make_request("a run" if conf.get("reprocess") else None, "a run", conf, who)
    return request or Reprocess("a run")


def run_path(dag_id: str, run_id: str) -> str:
    """Return where Airflow shows a run."""
    return f"/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


def make_command(checkpoint: Checkpoint, conf: Mapping[str, Any]) -> str:
    """Return the command that does by hand what a run with that conf does."""
    words = ["onceonly", "run", pipeline_file.find_in_project(checkpoint.pipeline)]
    if conf.get("reprocess") and checkpoint.interval:
        words += ["--reprocess", "--interval", *interval_times(checkpoint.interval)]
    else:
        words += ["--epoch", str(checkpoint.origin)]
    for option in ("keep", "again", "only"):
        for sink in conf.get(option, ()):
            words += [f"--{option}", sink]
    return shlex.join([*words, "--reason", conf["reason"]])


def require_dag(viewer: Viewer, pipeline: str, command: str) -> str:
    """Return the id of the DAG whose runs write the pipeline.

    Args:
        command: that does the same by hand.
    Raises:
        InvalidPipeline: there is none, or none that is the one.
    """
    dag_id = find_dag(viewer, pipeline)
    if dag_id is None:
        raise _no_dag_error(pipeline, command)
    return dag_id


def _no_dag_error(pipeline: str, command: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{pipeline}: no DAG of this Airflow writes it.",
        "A repair is a run of the DAG that writes the pipeline, and there is none, or more than one.",
        f"Use the command line: {command}. Nothing was started.",
        code="no-dag-to-run",
    )


def _asked_before_error(dag_id: str, run_id: str) -> Busy:
    return Busy(
        f"this was asked for before, by the run '{run_id}' of DAG '{dag_id}'.",
        "The same request is done once.",
        f"Look at that run: {run_path(dag_id, run_id)}. If it has failed, clear it there; for something else give "
        "another reason.",
        code="asked-before",
    )

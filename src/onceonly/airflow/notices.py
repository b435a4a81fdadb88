"""What tasks tell people: why a run's checkpoint was aborted, that one is held, that an approval has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any

from airflow.sdk._shared.secrets_masker import redact

from onceonly.airflow.links import page_of
from onceonly.checkpoint.model import Event
from onceonly.views import formatting, queries

if TYPE_CHECKING:
    from onceonly.checkpoint.model import Checkpoint, Row

ERROR = "onceonly_error"  # key of an XCom: what a task of this run failed with, for the abort task
UNKNOWN = "an earlier task of the run failed in Airflow; which one is not known, because Airflow's API did not answer"
LONGEST = 1_000  # characters of it
NO_ERROR = "it was marked failed or killed, or it timed out"
Notifier = Callable[[Any], Any]  # an Airflow notifier, or any function of a task's context


def leave_error(context: Any, error: BaseException) -> None:
    """For the abort task, which runs in another process; the error itself matters more than whether this works.

    Unlike a log, an XCom and the state table are not masked by Airflow: secrets that this task knows are cut out here.
    """
    what_and_why = "\n".join(str(error).split("\n")[:2])
    with suppress(Exception):
        context["ti"].xcom_push(key=ERROR, value=queries.without_secrets(redact(what_and_why))[:LONGEST])


def why_aborted(context: Any, task_ids: Sequence[str]) -> str:
    """What the abort task records: which of these tasks failed, and with what error.

    The abort itself does not depend on an answer from Airflow's API.
    """
    ti = context["ti"]
    try:
        states = ti.get_task_states(ti.dag_id, task_ids=sorted(task_ids), run_ids=[ti.run_id]).get(ti.run_id, {})
        said = [_failure(ti, task_id) for task_id in sorted(states) if states[task_id] == "failed"]
    except Exception:
        return UNKNOWN
    return "; ".join(said) or "an earlier task of the run failed in Airflow"


def _failure(ti: Any, task_id: str) -> str:
    error = ti.xcom_pull(task_ids=task_id, key=ERROR)
    return f"task '{task_id}' failed in Airflow: {' '.join(str(error).split()) if error else NO_ERROR}"


def is_due(checkpoint: Checkpoint, row: Row) -> bool:
    """Whether people are told of what `row` has recorded: it is held, or an approval has ended with its attempt."""
    if row.event is Event.VERDICT:
        return checkpoint.held
    return row.event is Event.ABORTING and "unfit" in row.body and checkpoint.approved is not None


def about(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a notifier is given as `held` in its context, beside what Airflow has there.

    Of an approval that has ended: there is nothing to decide, so it has no checks, and no commands.
    """
    from onceonly.coordinator.gate import failed_checks

    of = f"{checkpoint.pipeline} {checkpoint.epoch} --reason … --seen {checkpoint.changed_seq}"
    return {
        "pipeline": checkpoint.pipeline,
        "epoch": checkpoint.epoch,
        "text": formatting.waits(checkpoint),
        "checks": failed_checks(checkpoint.verdict or {}) if checkpoint.held else [],
        "page": page_of(checkpoint.pipeline, checkpoint.epoch),
        "approve": f"onceonly approve {of}" if checkpoint.held else "",
        "abort": f"onceonly abort {of}" if checkpoint.held else "",
    }


def told(context: Any) -> str:
    """For people, without secrets: what is held, or which task has failed and why, and where to look."""
    if held := context.get("held"):
        return "\n".join([held["text"], *(f"  {check}" for check in held["checks"]), held["page"]])
    task, error = context.get("task"), context.get("exception") or context.get("reason") or NO_ERROR
    what = f"{context['ti'].dag_id}, run {context['ti'].run_id}: task '{context['ti'].task_id}' has failed."
    pipeline = getattr(task, "pipeline", None)
    page = [page_of(getattr(pipeline, "name", pipeline), getattr(task, "worked_on", None))] if pipeline else []
    why = queries.without_secrets(redact(str(error)))[:LONGEST]
    return "\n".join([what, why, *page])


def notify(notifiers: Sequence[Notifier], context: Any, checkpoint: Checkpoint) -> Iterator[str]:
    """Call each; for the log, what failed. Nothing depends on who listens."""
    given = {**context, "held": about(checkpoint)}
    for notifier in notifiers:
        try:
            copy(notifier)(given)  # one of Airflow's keeps the text that it has rendered
        except Exception as error:
            yield f"{given['held']['text']}\nThe notifier failed, so perhaps nobody knows: {error!r}"


def listed(given: Notifier | Sequence[Notifier] | None) -> list[Notifier]:
    """One, several or none, as for Airflow's own callbacks."""
    if given is None:
        return []
    return list(given) if isinstance(given, Sequence) else [given]

"""This Airflow, its runs and its DAGs: which installation this is, whether a run is running, whose a pipeline is.

Several Airflows may use one state table. Every owner key of a run names its installation, so two of them never take
each other's runs for their own, nor for ended: an Airflow knows nothing of the runs of another one. The id is a random
one, kept in a variable of Airflow. Tasks, the recovery DAG and the api-server of one installation all read it there,
and those of another cannot.
"""

from __future__ import annotations

import re
import time
import uuid
from functools import cache, lru_cache
from shlex import quote
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError

from onceonly.airflow.versions import conf
from onceonly.checkpoint.model import Checkpoint
from onceonly.errors import InvalidPipeline

if TYPE_CHECKING:
    from onceonly.coordinator.coordinator import Alive

INSTANCE = "onceonly_instance"  # key in the task state store of the plan task
INSTALLATION_VARIABLE = "onceonly_installation"
VALID_INSTALLATION = re.compile(r"[A-Za-z0-9_-]{1,64}")
INSTALLATION_TTL_SECONDS = 10  # what the api-server has read counts at most so long
INSTALLATION_DESCRIPTION = "Onceonly's id of this Airflow. Never copy it to another one that uses the same state table."


def read_installation() -> str:
    """Return the id, as a task reads it; the first task that asks makes it.

    Two first tasks at once may each make one, and the last one stays. A run goes by that of its plan task (see
    `base.owner_of`), and is judged by its heartbeat if that was the other one.

    Raises:
        AirflowRuntimeError: Airflow's API does not answer. An id is made only where it says that there is none.
    """
    from airflow.sdk import Variable

    value = Variable.get(INSTALLATION_VARIABLE, default=None) or _read_installation_variable()
    if value is None:
        Variable.set(INSTALLATION_VARIABLE, uuid.uuid4().hex[:12], description=INSTALLATION_DESCRIPTION)
        value = _read_installation_variable()
    return _require_valid_installation(value)


def read_installation_on_server() -> str:
    """Return the id, as the api-server reads it; empty: no task has made it yet, so there is no run of this Airflow."""
    return _read_installation_once(int(time.monotonic() / INSTALLATION_TTL_SECONDS))


@lru_cache(1)
def _read_installation_once(moment: int) -> str:
    """Read the id once per moment: a page asks for every owner that it shows."""
    from airflow.models.variable import Variable

    value = Variable.get(INSTALLATION_VARIABLE, default_var=None)
    if not value:
        return ""
    return _require_valid_installation(value)


def _read_installation_variable() -> Any:
    """Return what the database has; None: the API says that it has nothing.

    `Variable.get` takes an error for the same.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, GetVariable
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    answer: Any = SUPERVISOR_COMMS.send(GetVariable(key=INSTALLATION_VARIABLE))
    if isinstance(answer, ErrorResponse):
        if answer.error is ErrorType.VARIABLE_NOT_FOUND:
            return None
        raise AirflowRuntimeError(answer)
    return answer.value


def _require_valid_installation(value: Any) -> str:
    if isinstance(value, str) and VALID_INSTALLATION.fullmatch(value):
        return value
    raise InvalidPipeline(
        f"the Airflow variable '{INSTALLATION_VARIABLE}' cannot be used.",
        f"It names this Airflow in the state table: 1 to 64 letters, digits, - and _. It is {str(value)[:100]!r}.",
        f"Delete it: airflow variables delete {INSTALLATION_VARIABLE}, and unset AIRFLOW_VAR_"
        f"{INSTALLATION_VARIABLE.upper()}, where that is set. The next plan makes another one. Nothing was written.",
        code="installation-invalid",
    )


def find_instance(context: Any) -> str | None:
    """Return what tells the task's run from one that was deleted and had its id; None: nothing does.

    A random number, kept in what Airflow stores for the task: it stays when the task is retried or cleared, and goes
    with the run. (Airflow's own number of a run comes again in SQLite, and no task gets to know it.) Airflow has such a
    store since 3.3.
    """
    from onceonly.airflow.versions import NEVER_EXPIRE

    store, ti = context.get("task_state_store"), context["ti"]
    if store is None:
        return None
    stored: Any = store.get(INSTANCE)
    if stored is None and ti.try_number > 1 and conf.getboolean("state_store", "clear_on_success", fallback=False):
        return None  # it may have been there until the task was done
    is_own = stored and not _is_of_a_deleted_run(stored, ti)
    number = stored["number"] if is_own else uuid.uuid4().hex
    store.set(INSTANCE, {"number": number, "try": ti.try_number, "id": str(ti.id)}, retention=NEVER_EXPIRE)
    return str(store.get(INSTANCE)["number"])  # two processes at once go by the last one, or plan a checkpoint each


def _is_of_a_deleted_run(stored: Any, ti: Any) -> bool:
    """Whether the number was stored for a run that was deleted.

    Airflow's own store forgets with the run, another may not. Within a run, the number of tries only grows.
    """
    return bool(stored["id"] != str(ti.id) and stored["try"] >= ti.try_number)


def check_single_dag(context: Any, latest: Checkpoint | None) -> None:
    """Refuse a pipeline of another DAG that exists and is not paused.

    A pipeline's checkpoints belong to one DAG, else each would take its turn for the other's work.

    Args:
        latest: the last checkpoint of the pipeline.
    Raises:
        InvalidPipeline: two DAGs have the pipeline.
    """
    from onceonly.runtime.owners import installation_of, parse_airflow_run

    run = parse_airflow_run(latest.owner) if latest else None
    if latest is None or run is None or run[0] == context["ti"].dag_id:
        return
    if installation_of(latest.owner) != read_installation() or not _has_active_dag(context, run[0]):
        return  # a DAG of that name in this Airflow is not the one of another Airflow
    raise InvalidPipeline(
        f"{latest.pipeline}: two DAGs have a pipeline of this name, '{run[0]}' and '{context['ti'].dag_id}'.",
        f"Epoch {latest.epoch} was planned by '{run[0]}', which exists and is not paused.",
        f"If the DAG was renamed, pause the old one: airflow dags pause {quote(run[0])}. That works also where Airflow "
        "no longer shows it because its file is gone. If both shall run, give one of the pipelines another name "
        "(Pipeline(name=…)) and other targets. Nothing was written.",
        code="pipeline-of-two-dags",
    )


def _has_active_dag(context: Any, dag_id: str) -> bool:
    """Whether Airflow has a DAG of that name which is not paused."""
    ti = context["ti"]
    try:
        if not hasattr(ti, "get_dag"):  # before Airflow 3.2: a running one is not paused
            return bool(ti.get_dr_count(dag_id, states=["queued", "running"]))
        return not ti.get_dag(dag_id).is_paused
    except Exception as error:
        if _http_status(error) == 404:
            return False
        raise


def make_alive_check(context: Any) -> Alive:
    """Return a function that asks Airflow whether the owner of a checkpoint is still running.

    Owners outside of Airflow, and runs of another Airflow, of which this one knows nothing, are judged by their process
    or their heartbeat (`owners.is_alive`).
    """
    from onceonly.runtime.owners import installation_of, is_alive, parse_airflow_run

    own_installation = cache(read_installation)

    def is_running(checkpoint: Checkpoint) -> bool:
        run = parse_airflow_run(checkpoint.owner)
        if run is None or installation_of(checkpoint.owner) != own_installation():
            return is_alive(checkpoint)
        try:
            return context["ti"].get_dagrun_state(*run) in ("queued", "running")
        except Exception as error:
            if _http_status(error) == 404:  # the run was deleted
                return False
            raise

    return is_running


def _http_status(error: Exception) -> int | None:
    """Return the API's HTTP status in an error; None: it has none.

    That is an error of the task runner, or of `dag.test()`, which talks to the API by itself.
    """
    if isinstance(error, AirflowRuntimeError):
        status = (error.error.detail or {}).get("status_code")
    else:
        status = getattr(getattr(error, "response", None), "status_code", None)
    return int(status) if status else None

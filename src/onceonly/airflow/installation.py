"""Which Airflow this is, where several use one state table.

Every owner key of a run names its installation, so two of them never take each other's runs for their own, nor for
ended: an Airflow knows nothing of the runs of another one. The id is a random one, kept in a variable of Airflow.
Tasks, the recovery DAG and the api-server of one installation all read it there, and those of another cannot.
"""

from __future__ import annotations

import re
import time
import uuid
from functools import lru_cache
from typing import Any

from onceonly.errors import InvalidPipeline

VARIABLE = "onceonly_installation"
VALID_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
ID_TTL_SECONDS = 10  # what the api-server has read counts at most so long
DESCRIPTION = "Onceonly's id of this Airflow. Never copy it to another one that uses the same state table."


def of_task() -> str:
    """Return the id, as a task reads it; the first task that asks makes it.

    Two first tasks at once may each make one, and the last one stays. A run goes by that of its plan task (see
    `operators.owner_of`), and is judged by its heartbeat if that was the other one.

    Raises:
        AirflowRuntimeError: Airflow's API does not answer. An id is made only where it says that there is none.
    """
    from airflow.sdk import Variable

    value = Variable.get(VARIABLE, default=None) or _read_variable()
    if value is None:
        Variable.set(VARIABLE, uuid.uuid4().hex[:12], description=DESCRIPTION)
        value = _read_variable()
    return _require_valid(value)


def of_server() -> str:
    """Return the id, as the api-server reads it; empty: no task has made it yet, so there is no run of this Airflow."""
    return _read_on_server(int(time.monotonic() / ID_TTL_SECONDS))


@lru_cache(1)
def _read_on_server(moment: int) -> str:
    """Read the id once per moment: a page asks for every owner that it shows."""
    from airflow.models.variable import Variable

    value = Variable.get(VARIABLE, default_var=None)
    if not value:
        return ""
    return _require_valid(value)


def _read_variable() -> Any:
    """Return what the database has; None: the API says that it has nothing.

    `Variable.get` takes an error for the same.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, GetVariable
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    answer: Any = SUPERVISOR_COMMS.send(GetVariable(key=VARIABLE))
    if isinstance(answer, ErrorResponse):
        if answer.error is ErrorType.VARIABLE_NOT_FOUND:
            return None
        raise AirflowRuntimeError(answer)
    return answer.value


def _require_valid(value: Any) -> str:
    if isinstance(value, str) and VALID_ID.fullmatch(value):
        return value
    raise InvalidPipeline(
        f"the Airflow variable '{VARIABLE}' cannot be used.",
        f"It names this Airflow in the state table: 1 to 64 letters, digits, - and _. It is {str(value)[:100]!r}.",
        "Correct it, or delete it: the next plan makes another one. Nothing was written.",
        "installation-invalid",
    )

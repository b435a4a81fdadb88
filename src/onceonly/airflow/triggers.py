"""Waiting for a driver on the cluster, in the triggerer: it occupies no worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from onceonly.errors import OnceonlyError
from onceonly.runtime.driver import Driver
from onceonly.runtime.driver_submission import TIMED_OUT, TIMED_OUT_RUNNING

POLL_SECONDS = 2.0  # between two looks
KILL_TIMEOUT_SECONDS = 15  # for a driver to end; Airflow gives on_kill thirty
# after its time is over: then the task continues, though no master says that the driver has ended
OVERTIME_SECONDS = 60.0


class DriverTrigger(BaseTrigger):
    """Logs the output of the stage job, and fires when it has ended, with its own arguments and the driver's outcome.

    Args:
        master, driver, report: see `runtime.driver.Driver`.
        started: seconds since the epoch.
        deadline: seconds since the epoch; then the driver is killed, and the event's "state" begins with "TIMED OUT".
    """

    def __init__(
        self, master: str, driver: str, report: str, started: float = 0.0, deadline: float | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.master, self.driver, self.report = master, driver, report
        self.started, self.deadline = started, deadline
        self._logged_state = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path and the arguments of this trigger, as Airflow stores them; none of them is secret."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments()

    def _arguments(self) -> dict[str, Any]:
        return {
            "master": self.master,
            "driver": self.driver,
            "report": self.report,
            "started": self.started,
            "deadline": self.deadline,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, once the driver has ended or its time has been over for long enough."""
        logged_lines, last_problem = 0, ""
        # A triggerer loads Airflow's API at its first question, which takes long: on_kill has thirty seconds.
        first_question = asyncio.create_task(self._is_awaited())
        while True:
            late = self.deadline is not None and time.time() > self.deadline
            state, problem = await asyncio.to_thread(self._end_driver if late else self._read_state)
            lines, job_ended = await asyncio.to_thread(self._read_report)
            for line in lines[logged_lines:]:
                self.log.info("%s", line)
            logged_lines = max(logged_lines, len(lines))  # a report that does not answer has no lines
            if problem and problem != last_problem:
                self.log.warning("%s\nThe job may still be running: asking again.", problem)
            last_problem = problem
            if job_ended or state or self._is_overtime():
                first_question.cancel()
                yield self._event(_outcome(state, job_ended, late))
                return
            await asyncio.sleep(POLL_SECONDS)

    async def on_kill(self) -> None:
        """End the driver, as this triggerer has to stop: what was cleared or marked does not keep running on Spark.

        Of a task that still waits another triggerer has taken over, because the heartbeats of this one were late. The
        next try of a task that was cleared may wait by now, too: for a driver of its own.
        """
        problem = ""
        for _ in range(KILL_TIMEOUT_SECONDS):
            awaited, problem = await self._is_awaited()
            if awaited:
                self.log.info("the task still waits for driver %s, through another triggerer", self.driver)
                return
            if not problem:
                state, problem = await asyncio.to_thread(self._end_driver)
                if state:
                    await asyncio.to_thread(self._open_driver().forget)
                    return
            await asyncio.sleep(1)
        self.log.error("driver %s may still be running: %s", self.driver, problem or "it has not ended yet")

    async def _is_awaited(self) -> tuple[bool, str]:
        """Return whether the task still waits for this driver, and why that is not known; else an empty text."""
        task = self.task_instance
        if task is None:
            return False, ""
        try:
            if await _read_task_state(task) != "deferred":
                return False, ""
            # A cleared task may wait for the driver of its next try: then this one's report is followed by another.
            report = self._open_driver().open_report()
            return not await asyncio.to_thread(report.is_followed), ""
        except Exception as error:  # whatever it is: a driver is not ended for it
            return False, f"It is not known whether the task still waits: {error!r}"

    def _is_overtime(self) -> bool:
        return self.deadline is not None and time.time() > self.deadline + OVERTIME_SECONDS

    def _end_driver(self) -> tuple[str, str]:
        """Have the driver killed, and return what `_read_state` does."""
        try:
            self._open_driver().end()
        except Exception as error:  # as of a look
            return "", _explain(error)
        return self._read_state()

    def _read_state(self) -> tuple[str, str]:
        """Return the state in which the driver has ended, and why the cluster was not understood; either may be empty.

        A state of a driver that has not ended is logged when it is a new one.
        """
        try:
            driver_state = self._open_driver().look()
        except Exception as error:  # whatever it is, it says nothing about the driver: the task is not to fail of it
            return "", _explain(error)
        if not driver_state.is_at_work:
            return driver_state.state, ""
        if driver_state.state != self._logged_state:  # it may wait in a queue, or for its image
            self._logged_state = driver_state.state
            self.log.info("driver %s is %s", self.driver, driver_state.state)
        return "", ""

    def _read_report(self) -> tuple[tuple[str, ...], bool]:
        """Return the lines that the job has reported, and whether it has ended."""
        with suppress(Exception):  # it is for people, and its storage may not answer
            report = self._open_driver().open_report().read()
            return report.lines, report.code is not None
        return (), False

    def _open_driver(self) -> Driver:
        return driver_of(self._arguments())

    def _event(self, state: str) -> TriggerEvent:
        return TriggerEvent({**self._arguments(), "state": state})  # type: ignore[no-untyped-call]


def driver_of(event: Any) -> Driver:
    """Return the driver that an event of this trigger, or its arguments, are about."""
    return Driver(event["master"], event["driver"], event["report"])


def _explain(error: Exception) -> str:
    if isinstance(error, OnceonlyError):
        return str(error)
    return f"The cluster could not be asked: {error!r}"


def _outcome(state: str, job_ended: bool, late: bool) -> str:
    """Return the "state" of the event: the driver's, or that its time was over."""
    if late:
        return TIMED_OUT if job_ended or state else TIMED_OUT_RUNNING
    return state or "at its end"


async def _read_task_state(task: Any) -> str | None:
    """Return the task instance's state, as Airflow has it now; None: it has none, or no longer exists."""
    from airflow.sdk.execution_time.comms import GetTaskStates
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    question = GetTaskStates(
        dag_id=task.dag_id, run_ids=[task.run_id], task_ids=[task.task_id], map_index=task.map_index
    )
    answer: Any = await SUPERVISOR_COMMS.asend(question)
    name = task.task_id if task.map_index < 0 else f"{task.task_id}_{task.map_index}"
    state: str | None = answer.task_states.get(task.run_id, {}).get(name)
    return state

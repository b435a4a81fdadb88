"""Waiting for a driver on the cluster, in the triggerer: it occupies no worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from onceonly.clusters.driver import Driver
from onceonly.clusters.work import ENDED_LATE, NOT_SEEN_ENDED
from onceonly.errors import OnceonlyError

EVERY = 2.0  # seconds between two looks
GRACE = 15  # seconds for a driver to end; Airflow gives on_kill thirty
LAST = 60.0  # seconds after its time is over: then the task continues, though no master says that the driver has ended


class DriverTrigger(BaseTrigger):
    """Logs the output of the stage job, and fires when it has ended, with its own arguments and the driver's outcome.

    Args:
        master, driver, report: see `clusters.driver.Driver`.
        started: seconds since the epoch.
        deadline: seconds since the epoch; then the driver is killed, and the event's "state" begins with "TIMED OUT".
    """

    def __init__(
        self, master: str, driver: str, report: str, started: float = 0.0, deadline: float | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.master, self.driver, self.report = master, driver, report
        self.started, self.deadline = started, deadline
        self._told = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What a triggerer needs to wait for it; nothing of it is secret."""
        names = ("master", "driver", "report", "started", "deadline")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        logged, trouble = 0, ""
        # A triggerer loads Airflow's API at its first question, which takes long: on_kill has thirty seconds.
        asked = asyncio.create_task(self._is_awaited())
        while True:
            late = self.deadline is not None and time.time() > self.deadline
            state, puzzled = await asyncio.to_thread(self._end if late else self._look)
            lines, over = await asyncio.to_thread(self._listen)
            for line in lines[logged:]:
                self.log.info("%s", line)
            logged = max(logged, len(lines))
            if puzzled and puzzled != trouble:
                self.log.warning("%s\nThe job may still be running: asking again.", puzzled)
            trouble = puzzled
            if over or state or self._is_over():
                asked.cancel()
                yield self._event(_outcome(state, over, late))
                return
            await asyncio.sleep(EVERY)

    async def on_kill(self) -> None:
        """This triggerer has to stop: nothing of a task that was cleared or marked keeps running on Spark.

        Of a task that still waits another triggerer has taken over, because the heartbeats of this one were late. The
        next try of a task that was cleared may wait by now, too: for a driver of its own.
        """
        puzzled = ""
        for _ in range(GRACE):
            awaited, puzzled = await self._is_awaited()
            if awaited:
                self.log.info("the task still waits for driver %s, through another triggerer", self.driver)
                return
            if not puzzled:
                state, puzzled = await asyncio.to_thread(self._end)
                if state:
                    await asyncio.to_thread(self._known().forget)
                    return
            await asyncio.sleep(1)
        self.log.error("driver %s may still be running: %s", self.driver, puzzled or "it has not ended yet")

    async def _is_awaited(self) -> tuple[bool, str]:
        """Whether the task still waits for this driver; and why that is not known, or nothing."""
        task = self.task_instance
        if task is None:
            return False, ""
        try:
            awaits_one = await _state_of(task) == "deferred"
            return awaits_one and not await asyncio.to_thread(self._known().open_report().is_followed), ""
        except Exception as error:  # whatever it is: a driver is not ended for it
            return False, f"It is not known whether the task still waits: {error!r}"

    def _is_over(self) -> bool:
        return self.deadline is not None and time.time() > self.deadline + LAST

    def _end(self) -> tuple[str, str]:
        """Have it killed, and look."""
        try:
            self._known().end()
        except Exception as error:  # as of a look
            return "", _told(error)
        return self._look()

    def _look(self) -> tuple[str, str]:
        """The state in which the driver has ended, or nothing; and why the cluster was not understood, or nothing."""
        try:
            seen = self._known().look()
        except Exception as error:  # whatever it is, it says nothing about the driver: the task is not to fail of it
            return "", _told(error)
        if seen.at_work and seen.state != self._told:  # it may wait in a queue, or for its image
            self._told = seen.state
            self.log.info("driver %s is %s", self.driver, seen.state)
        return ("" if seen.at_work else seen.state), ""

    def _listen(self) -> tuple[tuple[str, ...], bool]:
        with suppress(Exception):  # it is for people, and its storage may not answer
            said = self._known().open_report().read()
            return said.lines, said.code is not None
        return (), False

    def _known(self) -> Driver:
        return driver_of(self.serialize()[1])

    def _event(self, state: str) -> TriggerEvent:
        return TriggerEvent({**self.serialize()[1], "state": state})  # type: ignore[no-untyped-call]


def driver_of(event: Any) -> Driver:
    """The driver that an event of this trigger, or its arguments, are about."""
    return Driver(event["master"], event["driver"], event["report"])


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, OnceonlyError) else f"The cluster could not be asked: {error!r}"


def _outcome(state: str, over: bool, late: bool) -> str:
    if late:
        return ENDED_LATE if over or state else NOT_SEEN_ENDED
    return state or "at its end"


async def _state_of(task: Any) -> str | None:
    """The task instance's state, as Airflow has it now; None: it has none, or no longer exists."""
    from airflow.sdk.execution_time.comms import GetTaskStates
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    asked = GetTaskStates(dag_id=task.dag_id, run_ids=[task.run_id], task_ids=[task.task_id], map_index=task.map_index)
    answer: Any = await SUPERVISOR_COMMS.asend(asked)
    name = task.task_id if task.map_index < 0 else f"{task.task_id}_{task.map_index}"
    found: str | None = answer.task_states.get(task.run_id, {}).get(name)
    return found

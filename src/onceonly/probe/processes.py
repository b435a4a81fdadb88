"""The workers of a probe as processes of this machine. They meet in this process, which hands on what each has seen.

They are forked from a process that has imported everything, and are given the environment by a pipe: no credentials are
in arguments. If this process is killed, their pipes break, and they end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from onceonly.errors import NotCommitted
from onceonly.probe.trials import Answer
from onceonly.probe.workers import Job, run_worker

STEP_TIMEOUT_SECONDS = 600.0  # for one step of all workers
END_TIMEOUT_SECONDS = 10.0  # for a worker that is to end
Progress = Callable[[Mapping[str, Any]], None]


def run_processes(job: Job, progress: Progress) -> dict[str, Any]:
    """Run all workers, and return what the first one does.

    Args:
        progress: is called with what the first worker says of it.
    Raises:
        NotCommitted: a worker has died, or does not answer.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["onceonly.probe.processes"])
    with ExitStack() as stack:
        pipes: list[Connection] = []
        for number in range(job.workers):
            pipe, worker_pipe = context.Pipe()
            process = context.Process(target=work, args=(worker_pipe, job, number, dict(os.environ)), daemon=True)
            process.start()
            stack.callback(_end, process, pipe)
            worker_pipe.close()
            pipes.append(pipe)
        while True:
            messages = _receive(pipes)
            if "result" in messages[0]:
                result: dict[str, Any] = messages[0]["result"]
                return result
            answers = [message["answer"] for message in messages]
            if "goes_on" in answers[0]:
                progress(answers[0])
            for pipe in pipes:
                pipe.send(answers)


def _receive(pipes: Sequence[Connection]) -> list[dict[str, Any]]:
    """Return the next message of every worker, by their numbers. Raises the error of one that has failed."""
    messages: dict[int, dict[str, Any]] = {}
    while len(messages) < len(pipes):
        waiting = {pipe: number for number, pipe in enumerate(pipes) if number not in messages}
        ready = wait(list(waiting), STEP_TIMEOUT_SECONDS)
        if not ready:
            raise _lost_error(f"None of them has answered for {STEP_TIMEOUT_SECONDS:.0f} s.")
        for pipe in ready:
            number = waiting[pipe]  # type: ignore[index]
            try:
                message = pipes[number].recv()
            except (EOFError, ConnectionError) as error:
                raise _lost_error(f"Worker {number} has died.") from error
            if "error" in message:
                raise message["error"]
            messages[number] = message
    return [messages[number] for number in range(len(pipes))]


def _lost_error(why: str) -> NotCommitted:
    return NotCommitted(
        "the probe was not completed.",
        f"{why} Perhaps this machine has too little memory for the processes.",
        "Repeat it, with fewer: onceonly probe --workers 8 …",
        code="probe-not-completed",
    )


def _end(process: Any, pipe: Connection) -> None:
    """End a worker: without its pipe it ends by itself."""
    pipe.close()
    process.terminate()
    process.join(END_TIMEOUT_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()


def work(pipe: Connection, job: Job, number: int, environment: Mapping[str, str]) -> None:
    """Be one of the workers, with the environment of the process that probes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the process that probes ends the others
    os.environ.clear()
    os.environ.update(environment)
    with suppress(EOFError, ConnectionError):  # the process that probes has gone
        message: dict[str, Any]
        try:
            message = {"result": run_worker(job, number, _PipeMeeting(pipe))}
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            message = {"error": error}
        pipe.send(message)


class _PipeMeeting:
    """The meeting in the process at the other end of a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def exchange(self, answer: Answer) -> Sequence[Answer]:
        self._pipe.send({"answer": answer})
        answers: Sequence[Answer] = self._pipe.recv()
        return answers

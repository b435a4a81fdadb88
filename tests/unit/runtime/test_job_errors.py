"""What of a driver's output goes into an error."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from codes import raises

from onceonly.errors import NotCommitted
from onceonly.runtime import client_job
from onceonly.runtime.child_process import MAX_ERROR_LINES, select_last_lines
from onceonly.runtime.client_job import classify_exit
from onceonly.runtime.spark_connection import SparkConnection
from onceonly.spark import check


def test_what_went_wrong_is_not_pushed_out_by_the_frames_of_a_stack_trace() -> None:
    frames = [f"\tat org.apache.spark.deploy.SparkSubmit.run{number}(SparkSubmit.scala)" for number in range(50)]
    lines = ["started", "Exception in thread main: forbidden", *frames, "Caused by: no right", *frames, "\t... 7 more"]
    assert select_last_lines(lines) == ["started", "Exception in thread main: forbidden", "Caused by: no right"]


def test_the_last_lines_are_told() -> None:
    assert select_last_lines([str(number) for number in range(100)]) == [
        str(number) for number in range(100 - MAX_ERROR_LINES, 100)
    ]


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["started", str(NotCommitted("no", "Why.", "Do.", code="disk-full")), "Why.", "Do."], "disk-full"),
        (["first [disk-full]", "then [no-answer]", "and so on"], "no-answer"),
        (["a line of a library [main-thread]", "no [disk-full] at its end"], "job-failed"),
        ([], "job-failed"),
    ],
)
def test_a_job_keeps_the_code_of_its_last_error(lines: list[str], code: str) -> None:
    lines = "\n".join(lines).splitlines()
    failed = classify_exit(1, lines)
    assert isinstance(failed, NotCommitted)
    assert (failed.code, failed.why) == (code, "\n".join(lines))


def test_a_killed_job_has_a_code_of_its_own() -> None:
    assert [getattr(classify_exit(code, ["no [disk-full]"]), "code", "") for code in (-9, 137)] == ["job-killed"] * 2


def submit(host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> client_job.SubmitJob:
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    monkeypatch.delenv("ONCEONLY_STATE", raising=False)
    return client_job.SubmitJob(SparkConnection(f"spark://{host}", connection="spark_big"), print, lambda _: {})


def test_a_master_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the connection, and before Spark has waited a minute for it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with raises(NotCommitted, "spark-unreachable", f"(?s)spark://{address}.*'spark_big'"):
        submit(address, monkeypatch, tmp_path).run("flights", 1, "run-1")


def test_a_server_that_is_no_master_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark says only in its log that no master has answered, and then that its context is stopped."""
    said = "ERROR StandaloneSchedulerBackend: Application has been killed. Reason: All masters are unresponsive!"
    program = (
        f"print({said!r}); print('Cannot call methods on a stopped SparkContext [staging-failed]'); raise SystemExit(1)"
    )

    @contextmanager
    def start(*_: object) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
            yield process

    monkeypatch.setattr(client_job, "start_program", start)
    monkeypatch.setattr(client_job, "_find_checkpoint", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with raises(NotCommitted, "spark-unreachable", f"(?s)spark://{address}.*'spark_big'"):
            submit(address, monkeypatch, tmp_path).run("flights", 1, "run-1")


def test_one_master_of_several_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        note = check.check_server(f"spark://127.0.0.1:1,127.0.0.1:{listener.getsockname()[1]}", "SPARK")
    assert note.startswith("Spark answers at spark://127.0.0.1:1,127.0.0.1:")

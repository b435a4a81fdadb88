"""What of a driver's output goes into an error."""

from __future__ import annotations

import pytest

from onceonly.errors import NotCommitted
from onceonly.runtime.child_process import MAX_ERROR_LINES, select_last_lines
from onceonly.runtime.client_job import classify_exit


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

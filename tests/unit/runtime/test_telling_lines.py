"""What of a driver's output goes into an error."""

from __future__ import annotations

from onceonly.runtime.child_process import MAX_ERROR_LINES, select_last_lines


def test_what_went_wrong_is_not_pushed_out_by_the_frames_of_a_stack_trace() -> None:
    frames = [f"\tat org.apache.spark.deploy.SparkSubmit.run{number}(SparkSubmit.scala)" for number in range(50)]
    lines = ["started", "Exception in thread main: forbidden", *frames, "Caused by: no right", *frames, "\t... 7 more"]
    assert select_last_lines(lines) == ["started", "Exception in thread main: forbidden", "Caused by: no right"]


def test_the_last_lines_are_told() -> None:
    assert select_last_lines([str(number) for number in range(100)]) == [
        str(number) for number in range(100 - MAX_ERROR_LINES, 100)
    ]

"""The stage job: what spark-submit and Spark's master run, through jobs/stage.py."""

from __future__ import annotations

from onceonly.checkpoint import Checkpoint, Row
from onceonly.errors import exit_code
from onceonly.orphan import die_with_parent
from onceonly.report import Report
from onceonly.spark.progress import Say
from onceonly.telling import MARK, lines
from onceonly.wiring import LiveParts, coordinator, stage


def main(argv: list[str]) -> int:
    """Stage PIPELINE EPOCH for OWNER; everything else comes from the state table and the environment.

    A job that another machine runs has two arguments more: SINCE, which row of the checkpoint it was asked after, and
    the URI of its REPORT.
    """
    die_with_parent()  # the JVM that started it is Spark's driver
    name, epoch, owner, *elsewhere = argv
    if not elsewhere:
        return _stage(name, int(epoch), owner, None, say)
    since, report = int(elsewhere[0]), Report(elsewhere[1])

    def say_there(line: str) -> None:
        say(line)
        report.say(line)

    code = _stage(name, int(epoch), owner, since, say_there)
    report.end(code)
    return code


def _stage(name: str, epoch: int, owner: str, since: int | None, tell: Say) -> int:
    def notify(checkpoint: Checkpoint, row: Row) -> None:
        for line in lines(checkpoint, row):
            tell(line)

    try:
        parts = LiveParts()
        stage(parts, coordinator(parts, log=notify), name, epoch, owner, tell, since)
    except Exception as error:
        tell(str(error))
        return exit_code(error)
    return 0


def say(line: str) -> None:
    """For whoever reads the job's output: the stage task, which logs these lines as its own."""
    print(f"{MARK}{line}", flush=True)

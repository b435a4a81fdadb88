"""What runs as Spark's driver in a process of its own: a stage, or a gate's examination. See `runtime/jobs`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceonly.checkpoint.model import Checkpoint, Row
from onceonly.coordinator.coordinator import Coordinator
from onceonly.errors import exit_code
from onceonly.runtime import factory
from onceonly.runtime.factory import LiveParts
from onceonly.runtime.job_report import Report
from onceonly.runtime.orphan import die_with_jvm
from onceonly.spark.conf import stay_here
from onceonly.spark.progress import Say
from onceonly.views.steps import MARK, lines

Step = Callable[[LiveParts, Coordinator, Say], Any]


def stage(argv: list[str]) -> int:
    """Stage PIPELINE EPOCH for OWNER; everything else comes from the state table and the environment.

    A driver on the cluster has two arguments more: the URI of its REPORT, and SINCE, the checkpoint's last row when it
    was asked for.
    """
    name, epoch, owner, *elsewhere = argv
    since = int(elsewhere[1]) if elsewhere else None
    return _run(
        lambda parts, through, tell: factory.stage(parts, through, name, int(epoch), owner, tell, since), elsewhere[:1]
    )


def gate(argv: list[str]) -> int:
    """Have what is staged of PIPELINE EPOCH examined, by BY, and tell it to REPORT."""
    name, epoch, by, report = argv
    return _run(lambda parts, through, tell: through.gate(name, int(epoch), by), [report])


def _run(step: Step, reports: list[str]) -> int:
    die_with_jvm()
    stay_here()
    _hide_programs()
    heard = [Report(uri) for uri in reports]

    def tell(line: str) -> None:
        say(line)
        for report in heard:
            report.say(line)

    def notify(checkpoint: Checkpoint, row: Row) -> None:
        for line in lines(checkpoint, row):
            tell(line)

    code = 0
    try:
        parts = LiveParts()
        step(parts, factory.coordinator(parts, log=notify), tell)
    except Exception as error:
        tell(str(error))
        code = exit_code(error)
    for report in heard:
        report.end(code)
    return code


def _hide_programs() -> None:
    """Python looks beside the file it runs for modules first; a transform may be called `stage` or `gate`, too."""
    here = Path(__file__).with_name("jobs").resolve()
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]


def say(line: str) -> None:
    """For whoever reads the job's output: the stage task, which logs these lines as its own."""
    print(f"{MARK}{line}", flush=True)

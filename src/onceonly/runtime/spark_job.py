"""Spark drivers in processes of their own: a stage, a gate's examination, a look at a catalog. See `runtime/jobs`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceonly.checkpoint.model import Checkpoint, Row
from onceonly.coordinator.coordinator import Coordinator
from onceonly.errors import OnceonlyError, exit_code, first_sentence
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.child_process import die_with_jvm
from onceonly.runtime.job_report import Report
from onceonly.runtime.live_services import LiveServices
from onceonly.spark import catalog
from onceonly.spark.conf import stay_here
from onceonly.spark.progress import Say
from onceonly.views.descriptions import JOB_LINE_PREFIX, describe_transition

Step = Callable[[LiveServices, Coordinator, Say], Any]


def stage(argv: list[str]) -> int:
    """Stage PIPELINE EPOCH for OWNER; everything else comes from the state table and the environment.

    A driver on the cluster has two more arguments: the URI of its REPORT, and SINCE, the number of the checkpoint's
    last row when it was submitted; and perhaps a file of CONNECTIONS.
    """
    name, epoch, owner, *of_driver = argv
    reports, connections = of_driver[:1], of_driver[2:]
    since = int(of_driver[1]) if of_driver else None
    return _run(
        lambda services, coordinator, say: spark_stage.stage(
            services, coordinator, name, int(epoch), owner, say, since
        ),
        reports,
        connections,
    )


def gate(argv: list[str]) -> int:
    """Examine the staged rows of PIPELINE EPOCH for BY, and write the lines to REPORT; perhaps by CONNECTIONS."""
    name, epoch, by, report, *connections = argv
    return _run(lambda services, coordinator, say: coordinator.gate(name, int(epoch), by), [report], connections)


def tables(names: list[str]) -> int:
    """Say where the tables of these NAMES are, as JSON in one line."""
    die_with_jvm()
    stay_here()
    _hide_programs()
    try:
        tables_by_name = catalog.find(LiveServices().spark(), names)
    except Exception as error:
        say(str(error))
        return exit_code(error)
    say(json.dumps({name: vars(table) for name, table in tables_by_name.items()}))
    return 0


def _run(step: Step, report_uris: list[str], connection_files: list[str]) -> int:
    """Run a step of a driver, and return its exit code; its lines go to stdout and to the reports."""
    die_with_jvm()
    stay_here()
    _hide_programs()
    for file in connection_files:  # of this process alone: what its cluster shows of its environment lacks them
        os.environ.update(json.loads(Path(file).read_text()))
    reports = [Report(uri) for uri in report_uris]

    def write(line: str) -> None:
        say(line)
        for report in reports:
            report.say(line)

    def notify(checkpoint: Checkpoint, row: Row) -> None:
        for line in describe_transition(checkpoint, row):
            write(line)

    code = 0
    try:
        services = LiveServices()
        step(services, live_services.open_coordinator(services, log=notify), write)
    except Exception as error:
        write(str(error) if isinstance(error, OnceonlyError) else first_sentence(error))
        code = exit_code(error)
    for report in reports:
        report.end(code)
    return code


def _hide_programs() -> None:
    """Take the folder of the programs off Python's path, where it looks for modules first.

    A transform may be called `stage` or `gate`, too.
    """
    jobs_folder = Path(__file__).with_name("jobs").resolve()
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != jobs_folder]


def say(line: str) -> None:
    """Print a line of the job's output; the stage task logs such lines as its own."""
    print(f"{JOB_LINE_PREFIX}{line}", flush=True)

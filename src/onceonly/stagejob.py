"""The stage job: what spark-submit runs, through jobs/stage.py."""

from __future__ import annotations

from onceonly.checkpoint import Checkpoint, Row
from onceonly.errors import exit_code
from onceonly.telling import MARK, lines
from onceonly.wiring import LiveParts, coordinator, stage


def main(argv: list[str]) -> int:
    """Stage PIPELINE EPOCH for OWNER; everything else comes from the state table and the environment."""
    name, epoch, owner = argv
    parts = LiveParts()
    through = coordinator(parts, log=tell)
    try:
        stage(parts, through, name, int(epoch), owner, say)
    except Exception as error:
        say(str(error))
        return exit_code(error)
    return 0


def tell(checkpoint: Checkpoint, row: Row) -> None:
    for line in lines(checkpoint, row):
        say(line)


def say(line: str) -> None:
    """For whoever reads the job's output: the stage task, which logs these lines as its own."""
    print(f"{MARK}{line}", flush=True)

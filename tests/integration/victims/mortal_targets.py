"""A process that runs `targets` until nothing is left, or says a command of `onceonly`, until a fault hits it.

Arguments: LAKE FAULT NUMBERS WORDS…. LAKE is what `Lake` takes, as JSON. NUMBERS are two, such as '12,30': at its 12th
point the process 'dies' or 'stops', as FAULT says; at its 30th it dies. The number 0 is never reached. WORDS are 'run',
or a command as an error has printed it. A refusal is printed as JSON, behind the word 'refused'. Run by
test_targets_crash.py.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from contextlib import redirect_stdout
from itertools import count
from typing import Any

import person
from integration.faults.points import around
from integration.projects.targets import NAME, Lake, stage_kafka_without_spark
from integration.victims import storm

from onceonly.cli import environment, main
from onceonly.errors import OnceonlyError, StageAgain
from onceonly.runtime import owners
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.files import manifest, moves
from onceonly.sinks.files.sink import FileWriter
from onceonly.sinks.kafka.sink import KafkaWriter

FAULTS = {"dies": signal.SIGKILL, "stops": signal.SIGSTOP}
number = count(1)


def reach(point: str) -> None:
    first, later = map(int, sys.argv[3].split(","))
    now = next(number)
    if fault := sys.argv[2] if now == first else "dies" if now == later else "":
        print(f"{fault} {point}", file=sys.__stdout__, flush=True)
        os.killpg(0, FAULTS[fault])


def run(lake: Lake) -> None:
    """Checkpoint after checkpoint; what cannot be published any more is staged again."""
    for turn in count():
        through, owner = lake.coordinator, f"{owners.process_owner()}-{turn}"
        planned = through.plan(lake.pipeline, owner, owners.is_never_alive).checkpoint
        if planned is None:
            through.recover(NAME, owners.is_never_alive)
            return
        lake.stage(planned.epoch, owner)
        try:
            through.commit(NAME, planned.epoch)
        except StageAgain as again:
            print(f"staged again {again.code}", flush=True)


def say(lake: Lake, words: list[str]) -> None:
    """As a person does who has just looked."""
    environment.open_coordinator = lambda settings: lake.coordinator
    epoch = int(words[2]) if words[2:] and words[2].isdigit() else None
    seen = () if words[0] == "recover" else person.seen(lake.coordinator.state_table, NAME, epoch)
    with redirect_stdout(io.StringIO()) as printed:
        try:
            main([*words, *seen, "--json"])
        except SystemExit as ended:
            code = ended.code
    if not code:
        return
    answer = json.loads(printed.getvalue())
    refuse(answer["errors"][0] if "errors" in answer else answer)


def refuse(refusal: dict[str, Any]) -> None:
    print("refused", json.dumps(refusal), flush=True)
    sys.exit(4)


def mortal() -> None:
    writers = (DeltaWriter, FileWriter, KafkaWriter)
    storm.around_all(reach, *writers)
    for writer in writers:
        around(writer, "rehearse", f"rehearse of {writer.__name__}", reach)
        around(writer, "compare", f"compare of {writer.__name__}", reach)
    around(moves, "_move", "move", reach)  # type: ignore[arg-type]
    around(manifest, "write", "manifest", reach)  # type: ignore[arg-type]


if __name__ == "__main__":
    lake = Lake(**json.loads(sys.argv[1]))
    if not lake.spark:
        stage_kafka_without_spark()
    mortal()
    try:
        run(lake) if sys.argv[4:] == ["run"] else say(lake, sys.argv[4:])
    except OnceonlyError as error:
        refuse({"code": error.code, "what": error.what, "why": error.why, "todo": error.todo})

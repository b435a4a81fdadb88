"""A process that runs `everything` until nothing is left, or until its n-th point, where a fault hits it.

Arguments: FOLDER SPARK FAULT NUMBER TOPIC OUT. The fault 'dies' is a SIGKILL of its group; 'stops' a SIGSTOP, after
which it goes on when it is woken up. The number 0 is never reached.
"""

from __future__ import annotations

import sys
from itertools import count

from integration.faults.points import around
from integration.projects.everything import pipeline
from integration.victims import storm

from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.files import manifest, moves
from onceonly.sinks.files.sink import FileWriter
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.state.sink import StateWriter

number = count(1)


def reach(point: str) -> None:
    if next(number) == int(sys.argv[4]):
        storm.hit(sys.argv[3], point)


def main() -> None:
    storm.around_all(reach, DeltaWriter, FileWriter, KafkaWriter, StateWriter)
    around(moves, "_move", "move", reach)  # type: ignore[arg-type]
    around(manifest, "write", "manifest", reach)  # type: ignore[arg-type]
    storm.run(storm.ready(), pipeline(*sys.argv[5:7]))


if __name__ == "__main__":
    main()

"""A process that does something to the pipeline of `projects/repairs.py`, until a fault hits it.

Arguments: SHOP FAULT AT WORK. SHOP is what `Shop` takes, as JSON. AT is the name of a point, or the numbers of two, as
'12,30': at the first one the process 'dies' or 'stops', as FAULT says; at the second one it dies. The number 0 is never
reached. WORK is a list, as JSON: {"interval": 3} is a run, with "request" and "wish" a repair of it; {"lost": SINK}
accepts a loss, {"lacks": SINK, "request": …} writes again what the sink lacks, {} recovers. A refusal is printed as
JSON, behind the word 'refused'. Run by test_repair_crash.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import count
from typing import Any

from integration.faults.points import around
from integration.projects.repairs import Shop, interval
from integration.projects.targets import NAME, stage_kafka_without_spark
from integration.victims import storm
from person import Person
from unit.lightdelta import LightDelta
from unit.lightfiles import LightFiles

from onceonly.checkpoint.model import State
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.coordinator.repair import Wish
from onceonly.coordinator.reprocess import Reprocess, make_request
from onceonly.errors import OnceonlyError, StageAgain
from onceonly.runtime import owners
from onceonly.sinks.delta.checkpoint_rows import RowFinder
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.files import manifest, moves
from onceonly.sinks.files.sink import FileWriter
from onceonly.sinks.kafka.sink import KafkaWriter

FAULTS = {"dies": signal.SIGKILL, "stops": signal.SIGSTOP}
NUMBER = count(1)


def reach(point: str) -> None:
    fault = _fault_at(point, next(NUMBER), sys.argv[3])
    if fault:
        print(f"{fault} {point}", file=sys.__stdout__, flush=True)
        os.killpg(0, FAULTS[fault])


def _fault_at(point: str, number: int, at: str) -> str:
    if " " in at:
        return sys.argv[2] if point == at else ""
    first, second = map(int, at.split(","))
    if number == first:
        return sys.argv[2]
    return "dies" if number == second else ""


def work(shop: Shop, wanted: dict[str, Any]) -> None:
    if "interval" in wanted:
        return process(shop, interval(wanted["interval"]), request_of(wanted))
    if "lacks" in wanted:
        wish = Wish("ann", wanted["request"], Person(shop.coordinator).looks_at(NAME))
        for request in shop.coordinator.begin_repair(shop.pipeline, wanted["lacks"], wish):
            process(shop, None, request)
        return None
    if "lost" in wanted:
        Person(shop.coordinator).accept_loss(NAME, wanted["lost"], Acceptance("ann", "its disk is gone"))
    shop.coordinator.recover(NAME, owners.is_never_alive)
    return None


def request_of(wanted: dict[str, Any]) -> Reprocess | None:
    if "wish" not in wanted:
        return None
    wish = {**wanted["wish"], "reason": wanted["request"]}
    replacing = None if "only" in wish else wanted["request"]
    return make_request(replacing, wanted["request"], wish, "ann")


def process(shop: Shop, of: Interval | None, request: Reprocess | None) -> None:
    """Run the interval, or repair it; what cannot be published any more is staged again."""
    for turn in count():
        through, owner = shop.coordinator, f"{owners.process_owner()}-{turn}"
        planned = through.plan(shop.pipeline, owner, owners.is_never_alive, of, request).checkpoint
        if planned is None or planned.state is State.COMMITTED:
            return  # by an earlier process
        shop.stage(planned.epoch, owner)
        try:
            done = through.commit(NAME, planned.epoch)
        except StageAgain as again:
            print(f"staged again {again.code}", flush=True)
            continue
        print(f"epoch {done.epoch} replaces {done.replaces} in {done.sinks}", flush=True)
        return


def mortal(is_light: bool) -> None:
    if is_light:  # rows are staged without Spark
        for writer, base in ((LightDelta, DeltaWriter), (LightFiles, FileWriter)):
            around(writer, "stage", f"stage of {base.__name__}", reach)
    writers = (DeltaWriter, FileWriter, KafkaWriter)
    storm.around_all(reach, *writers)
    for writer in writers:
        around(writer, "rehearse", f"rehearse of {writer.__name__}", reach)
    around(RowFinder, "copy_others", "copy of others", reach)
    around(moves, "_move", "move", reach)  # type: ignore[arg-type]
    around(manifest, "write", "manifest", reach)  # type: ignore[arg-type]


if __name__ == "__main__":
    shop = Shop(**json.loads(sys.argv[1]))
    if shop.bootstrap and not shop.spark:
        stage_kafka_without_spark()
    mortal(is_light=not shop.spark)
    try:
        for wanted in json.loads(sys.argv[4]):
            work(shop, wanted)
    except OnceonlyError as error:
        print("refused", json.dumps({"code": error.code, "text": str(error)}), flush=True)
        sys.exit(4)

"""python -m benchmarks.once HOME STATE SPOOL BOOTSTRAP NUMBER [TOPIC]: prints a checkpoint's seconds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.kafka_sink import ours
from benchmarks.ratio import seconds
from benchmarks.world import TOPIC
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings


def main(home: str, state: str, spool: str, bootstrap: str, number: str, topic: str = TOPIC) -> None:
    chosen = {"home": Path(home), "state": state, "spool": spool, "bootstrap": bootstrap}
    parts = LiveServices(replace(Settings.from_env(), **chosen))
    parts.spark()
    print(seconds(lambda: ours(parts, int(number), topic)))


if __name__ == "__main__":
    main(*sys.argv[1:])

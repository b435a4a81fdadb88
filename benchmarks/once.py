"""python -m benchmarks.once HOME STATE SPOOL BOOTSTRAP NUMBER: one checkpoint in a new session; prints its seconds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.kafka_sink import ours
from benchmarks.ratio import seconds
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings


def main(home: str, state: str, spool: str, bootstrap: str, number: str) -> None:
    chosen = {"home": Path(home), "state": state, "spool": spool, "bootstrap": bootstrap}
    parts = LiveServices(replace(Settings.from_env(), **chosen))
    parts.spark()
    print(seconds(lambda: ours(parts, int(number))))


if __name__ == "__main__":
    main(*sys.argv[1:])

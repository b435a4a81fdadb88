"""make trial ARGS="backfill": ends with 0 when everything that was promised was seen.

backfill, reprocess, overlap, catch_up, outage, deferred; and interventions: clearing, marking, killing, or any by its
name, together in one Airflow.
"""

from __future__ import annotations

import sys

from trials.backfill import backfill
from trials.deferred import deferred
from trials.interventions import GROUPS, intervene
from trials.outage import outage
from trials.overlap import catch_up, overlap
from trials.reprocess import reprocess

TRIALS = {
    "backfill": backfill,
    "reprocess": reprocess,
    "overlap": overlap,
    "catch_up": catch_up,
    "outage": outage,
    "deferred": deferred,
}
MAIN = [*TRIALS, "clearing", "marking", "killing"]


def main(names: list[str]) -> int:
    results = {name: TRIALS[name]() for name in names if name in TRIALS}
    if together := [name for name in names if name not in TRIALS]:
        results[", ".join(together)] = intervene([do for name in together for do in GROUPS[name]])
    print("\n".join(f"{name}: {'held' if held else 'NOT HELD'}" for name, held in results.items()))
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or MAIN))

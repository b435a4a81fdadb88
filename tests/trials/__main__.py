"""make trial ARGS="backfill": ends with 0 when everything that was promised was seen."""

from __future__ import annotations

import sys
from functools import partial

from trials.backfill import backfill
from trials.interventions import GROUPS, intervene
from trials.reprocess import reprocess

TRIALS = {
    "backfill": backfill,
    "reprocess": reprocess,
    **{name: partial(intervene, dos) for name, dos in GROUPS.items()},
}

MAIN = ("backfill", "reprocess", "clearing", "marking", "killing")


def main(names: list[str]) -> int:
    results = {name: TRIALS[name]() for name in names or MAIN}
    print("\n".join(f"{name}: {'held' if held else 'NOT HELD'}" for name, held in results.items()))
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

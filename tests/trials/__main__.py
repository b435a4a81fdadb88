"""make trial ARGS="backfill": ends with 0 when everything that was promised was seen."""

from __future__ import annotations

import sys
from functools import partial

from trials.backfill import backfill
from trials.interventions import GROUPS, intervene
from trials.reprocess import reprocess

TRIALS = {"backfill": backfill, "reprocess": reprocess, **{group: partial(intervene, group) for group in GROUPS}}


def main(names: list[str]) -> int:
    results = {name: TRIALS[name]() for name in names or TRIALS}
    print("\n".join(f"{name}: {'held' if held else 'NOT HELD'}" for name, held in results.items()))
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

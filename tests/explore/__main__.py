"""make explore: every scenario within its bound; ends with 0 when no schedule breaks a promise.

ARGS="--replay ID" runs one schedule again and prints its steps; names choose scenarios.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from explore.scenarios import SCENARIOS, by_name
from explore.search import Found, Violation, named, play, verdict

PROCESSES = 2


def main(given: list[str]) -> int:
    return replay(" ".join(given[1:])) if given[:1] == ["--replay"] else explore(given)


def explore(names: list[str]) -> int:
    """All scenarios, or those of these names."""
    chosen = names or [scenario.name for scenario in SCENARIOS]
    started, spawn = time.monotonic(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, spawn, max_tasks_per_child=1) as pool:
        results = []
        for found in pool.map(named, chosen):
            print(
                "\n".join([line(found), *(text for violation in found.violations for text in lines(violation))]),
                flush=True,
            )
            results.append(found)
    bad = sum(len(found.violations) for found in results)
    print(
        f"{len(results)} scenarios, {sum(found.states for found in results):,} states, "
        f"{sum(found.schedules for found in results):,} schedules, {time.monotonic() - started:.0f} s, {bad} violations"
    )
    return 1 if bad else 0


def line(found: Found) -> str:
    counts = f"{found.states:7,} states {found.schedules:7,} schedules {found.seconds:6.1f} s"
    return f"{found.scenario:20} {counts}  {len(found.violations) or 'no'} violation{'s'[: len(found.violations) != 1]}"


def lines(violation: Violation) -> list[str]:
    """What is broken, the steps that lead there, and how to see them again."""
    wrong = [f"  BROKEN: {what}" for what in violation.what]
    return [*wrong, *(f"    {step}" for step in violation.log), f'  make explore ARGS="--replay {violation.id}"']


def replay(id: str) -> int:
    """One schedule by its id."""
    scenario, deviations = parse(id)
    schedule = play(scenario, scenario.begin(), deviations, scenario.bound)
    wrong = tuple(verdict(scenario, schedule))
    print("\n".join(lines(Violation(id, wrong, tuple(schedule.log)))))
    print(f"{'broken' if wrong else 'every promise is kept'}")
    return 1 if wrong else 0


def parse(id: str):
    """An id's scenario, and its deviations by the number of the decision."""
    name, _, rest = id.partition(":")
    pairs = (part.partition("=") for part in rest.split(",") if part)
    return by_name(name), {int(number): chosen for number, _, chosen in pairs}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

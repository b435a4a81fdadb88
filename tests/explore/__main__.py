"""make explore: every scenario within its bound; ends with 0 when no schedule breaks a promise.

--replay ID runs one schedule and prints it; names choose scenarios.
"""

from __future__ import annotations

import sys

from explore.scenarios import SCENARIOS, by_name
from explore.search import Found, Search, play, verdict


def main(given: list[str]) -> int:
    if given[:1] == ["--replay"]:
        return replay(given[1])
    bad = 0
    for scenario in SCENARIOS:
        if not given or scenario.name in given:
            found = Search(scenario).run()
            show(found)
            bad += len(found.violations)
    return 1 if bad else 0


def replay(id: str) -> int:
    """One schedule by its id."""
    name, _, rest = id.partition(":")
    scenario = by_name(name)
    deviations = {int(n): chosen for n, _, chosen in (each.partition("=") for each in rest.split(",") if each)}
    schedule = play(scenario, scenario.begin(), deviations, scenario.bound)
    print("\n".join(schedule.log))
    wrong = verdict(scenario, schedule)
    print("\n".join(f"  WRONG: {each}" for each in wrong) or "nothing is wrong")
    return 1 if wrong else 0


def show(found: Found) -> None:
    rate = found.schedules / max(found.seconds, 0.001)
    print(
        f"{found.scenario:32} {found.states:7} states {found.schedules:7} schedules {found.seconds:7.1f} s {rate:5.0f}/s"
        f"  {len(found.violations)} violations"
    )
    for violation in found.violations:
        print(f"  {violation.id}")
        for what in violation.what:
            print(f"  WRONG: {what}")
        print("\n".join(f"    {line}" for line in violation.log))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

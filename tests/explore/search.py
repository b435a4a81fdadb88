"""All schedules of a scenario up to a bound, those with few deviations first; what was met is not gone on from.

Source: Musuvathi and Qadeer, Iterative Context Bounding (PLDI 2007): few preemptions find nearly everything.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from explore.judge import judge
from explore.scenario import Scenario
from explore.scenarios import by_name
from explore.scheduler import Cost, Schedule
from explore.steps import Endless

Deviations = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Violation:
    """A schedule that breaks a promise, and which."""

    id: str  # replays it: python -m explore --replay ID
    what: tuple[str, ...]
    log: tuple[str, ...]


@dataclass
class Found:
    """What a search has come to."""

    scenario: str
    schedules: int = 0
    states: int = 0
    seconds: float = 0.0
    cut: bool = False  # it ended by `most`, not by itself
    violations: list[Violation] = field(default_factory=list)


@dataclass
class Search:
    """Depth first below each number of deviations."""

    scenario: Scenario
    bound: Cost | None = None
    most: int | None = None  # schedules
    enough: int = 1  # violations

    def __post_init__(self) -> None:
        self._met: dict[Hashable, list[Cost]] = {}
        self._judged: dict[Hashable, list[str]] = {}
        self._waiting: dict[int, deque[Deviations]] = {0: deque([()])}
        self._begin = self.scenario.begin()
        self._bound = self.bound or self.scenario.bound

    def run(self) -> Found:
        """All of them, or up to the first violations."""
        found, started = Found(self.scenario.name), time.monotonic()
        while (deviations := self._next()) is not None and len(found.violations) < self.enough:
            if self.most is not None and found.schedules >= self.most:
                found.cut = True
                break
            found.schedules += 1
            found.violations += self._try(deviations)
        found.states, found.seconds = len(self._met), time.monotonic() - started
        return found

    def _next(self) -> Deviations | None:
        for total in sorted(self._waiting):
            if self._waiting[total]:
                return self._waiting[total].pop()
        return None

    def _try(self, deviations: Deviations) -> list[Violation]:
        schedule = play(self.scenario, self._begin.copy(), dict(deviations), self._bound, self._known)
        self._branch(schedule, deviations)
        if schedule.pruned:
            return []
        wrong = verdict(self.scenario, schedule, self._judged)
        return [Violation(name(self.scenario, deviations), tuple(wrong), tuple(schedule.log))] if wrong else []

    def _branch(self, schedule: Schedule, deviations: Deviations) -> None:
        first = deviations[-1][0] + 1 if deviations else 0
        for number in range(first, len(schedule.decisions)):
            decision = schedule.decisions[number]
            spent = self._bound.any - decision.left.any
            for option, cost in decision.options:
                queue = self._waiting.setdefault(spent + cost.any, deque())
                queue.append((*deviations, (number, option)))

    def _known(self, key: Hashable, left: Cost) -> bool:
        """Whether this situation was met with as much left to spend; else it now is."""
        before = self._met.setdefault(key, [])
        if any(cost.covers(left) for cost in before):
            return True
        before.append(left)
        return False


def named(scenario: str) -> Found:
    """All schedules of the scenario of that name."""
    return Search(by_name(scenario)).run()


def play(scenario: Scenario, world, deviations: Mapping[int, str], bound: Cost, known=None) -> Schedule:
    schedule = Schedule(world, scenario.actors, bound, deviations, known or (lambda key, left: False))
    with world.deterministic():
        try:
            schedule.run()
        except Endless as error:
            world.broken.append(str(error))
    return schedule


def verdict(scenario: Scenario, schedule: Schedule, judged: dict[Hashable, list[str]] | None = None) -> list[str]:
    """What is wrong with a schedule that has ended; the same end is judged once."""
    is_calm = scenario.calm and not schedule.deviations
    wrong = [*schedule.world.broken, *schedule.unexpected((lambda error: False) if is_calm else scenario.expects)]
    if wrong:
        return wrong
    known = judged if judged is not None else {}
    key = schedule.world.key()
    if key not in known:
        known[key] = judge(scenario, schedule.world.copy())
    return known[key]


def name(scenario: Scenario, deviations: Deviations) -> str:
    return f"{scenario.name}:{','.join(f'{number}={chosen}' for number, chosen in deviations)}"

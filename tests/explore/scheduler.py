"""One schedule: actors take their steps one at a time, in the order that is decided for them.

Each actor is a greenlet that gives its turn away before every step. At each decision the actor at work goes on, unless
the schedule deviates there: another takes over, it is killed for good, or its step fails.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from greenlet import GreenletExit, getcurrent, greenlet

from explore.steps import AFTER, BEFORE, Endless, Point
from explore.world import World

MOST = 600  # steps of a schedule
DIES, GOES_ON = "dies", "goes on"

Act = Callable[[World], None]


@dataclass(frozen=True)
class Cost:
    """How often a schedule deviates, by kind, and of any kind; of one alternative, or of what is left to spend."""

    preemptions: int = 0
    crashes: int = 0
    faults: int = 0
    any: int = 0

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(mine - theirs for mine, theirs in zip(self._each, other._each, strict=True)))

    def covers(self, other: Cost) -> bool:
        """Whether nothing of `other` is more."""
        return all(mine >= theirs for mine, theirs in zip(self._each, other._each, strict=True))

    @property
    def _each(self) -> tuple[int, int, int, int]:
        return (self.preemptions, self.crashes, self.faults, self.any)


FREE, SWITCH, CRASH, FAULT = Cost(), Cost(preemptions=1, any=1), Cost(crashes=1, any=1), Cost(faults=1, any=1)


@dataclass
class Actor:
    """A process: where it waits, what it has learned so far, and how it ended."""

    name: str
    run: greenlet
    point: Point | None = None
    learned: Hashable = None
    steps: int = 0
    error: BaseException | None = None

    @property
    def alive(self) -> bool:
        return self.point is not None


@dataclass(frozen=True)
class Decision:
    """One decision of a schedule: what was possible instead, at what cost, and what was left to spend."""

    options: tuple[tuple[str, Cost], ...]
    left: Cost


@dataclass
class Schedule:
    """Runs the actors of one schedule to the end.

    Args:
        deviations: number of a decision -> what is chosen there; everywhere else the actor at work goes on.
        known: is asked, after the last deviation, whether this very situation has been met: then it ends here.
    """

    world: World
    acts: Mapping[str, Act]
    bound: Cost
    deviations: Mapping[int, str] = field(default_factory=dict)
    known: Callable[[Hashable, Cost], bool] = lambda key, left: False
    log: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    pruned: bool = False

    def __post_init__(self) -> None:
        self._actors = {name: self._actor(name, act) for name, act in self.acts.items()}
        self._current: Actor | None = None
        self._switched = False
        self._left = self.bound
        self._last = max(self.deviations, default=-1)

    def _actor(self, name: str, act: Act) -> Actor:
        return Actor(name, greenlet(lambda: self._work(name, act)))

    def _work(self, name: str, act: Act) -> None:
        try:
            act(self.world)
        except GreenletExit:
            raise
        except BaseException as error:
            self._actors[name].error = error

    def run(self) -> None:
        """Every actor ends, is killed, or the situation is known."""
        steps = self.world.steps
        steps.pace, steps.saw = self._pace, self._saw
        try:
            for actor in self._actors.values():
                self._resume(actor, None)
            while not self.pruned and not self.world.broken and any(a.alive for a in self._actors.values()):
                self._decide()
        finally:
            steps.saw = None
            steps.pace = self._closed
            for actor in self._actors.values():
                actor.run.throw()  # unwinds what is left; no step of it has an effect any more
            steps.pace = None

    # ---- called by actors

    def _pace(self, point: Point) -> str:
        answer: str = getcurrent().parent.switch(point)
        return answer

    def _closed(self, point: Point) -> str:
        raise GreenletExit

    def _saw(self, learned: Hashable) -> None:
        actor = self._actors[self.world.steps.actor]
        actor.learned = _number(actor.learned, learned)

    # ---- the hub

    def _resume(self, actor: Actor, answer: str | None) -> None:
        self.world.steps.actor = actor.name
        point = actor.run.switch(answer) if answer else actor.run.switch()
        actor.point = None if actor.run.dead else point
        actor.steps += 1 if answer else 0
        if actor.steps > MOST:
            raise Endless(f"{actor.name} takes more than {MOST} steps")
        if actor.point is None:
            self._ended(actor)

    def _ended(self, actor: Actor) -> None:
        self._current = None if self._current is actor else self._current
        said = str(actor.error).splitlines()[:1] if actor.error else []
        self.log.append(
            f"{actor.name} ends{f' with {type(actor.error).__name__}: ' if actor.error else ''}{''.join(said)}"
        )

    def _decide(self) -> None:
        number = len(self.decisions)
        new = number > self._last
        if new and self.known(self._key(), self._left):
            self.pruned = True
            return
        options = tuple(self._options()) if new or number in self.deviations else ()
        self.decisions.append(Decision(options, self._left))
        chosen = self.deviations.get(number, GOES_ON)
        if chosen == GOES_ON:
            if self._current is None:
                self._current = next(actor for actor in self._actors.values() if actor.alive)
                self.log.append(f"-- {self._current.name}")
            return self._step(self._current, "done")
        cost = dict(options).get(chosen)
        if cost is None:
            raise LookupError(f"decision {number} cannot be '{chosen}'; possible: {[name for name, _ in options]}")
        self._left -= cost
        self._deviate(number, chosen)

    def _deviate(self, number: int, chosen: str) -> None:
        if chosen == DIES:
            assert self._current
            self.log.append(f"{number}: {self._current.name} DIES before it {_does(self._current)}")
            self._current.point = self._current = None
        elif chosen in (BEFORE, AFTER):
            assert self._current
            self.log.append(f"{number}: {chosen.upper()}:")
            self._step(self._current, chosen)
        else:
            was = f" while {self._current.name} waits to {_does(self._current)}" if self._current else ""
            self._current, self._switched = self._actors[chosen], True
            self.log.append(f"-- {number}: {chosen}{was}")

    def _step(self, actor: Actor, answer: str) -> None:
        assert actor.point
        self.log.append(f"{actor.name}: {actor.point.what}")
        self._switched = False
        self._resume(actor, answer)

    def _options(self) -> Iterator[tuple[str, Cost]]:
        """What may happen instead of going on."""
        others = [actor.name for actor in self._actors.values() if actor.alive and actor is not self._current]
        if self._current is None:
            yield from ((name, FREE) for name in others[1:])
            return
        offered: list[tuple[str, Cost]] = []
        if not self._switched:
            offered += [(name, SWITCH) for name in others]
        if self._current.steps:
            offered.append((DIES, CRASH))
        assert self._current.point
        offered += [(fault, FAULT) for fault in self._current.point.faults]
        yield from ((name, cost) for name, cost in offered if self._left.covers(cost))

    def _key(self) -> Hashable:
        at = tuple((actor.alive, actor.learned) for actor in self._actors.values())
        return (self.world.key(), self._current.name if self._current else None, self._switched, at)

    def unexpected(self, expected: Callable[[BaseException], bool]) -> list[str]:
        """Errors that no process may end with."""
        ended = ((actor.name, actor.error) for actor in self._actors.values())
        return [f"{n} ended with {e!r}" for n, e in ended if e is not None and not expected(e)]


_NUMBERS: dict[tuple[Hashable, Hashable], int] = {}


def _number(known: Hashable, learned: Hashable) -> int:
    """A number for what an actor has learned: the same for the same."""
    return _NUMBERS.setdefault((known, learned), len(_NUMBERS) + 1)


def _does(actor: Actor) -> str:
    return actor.point.what if actor.point else "?"

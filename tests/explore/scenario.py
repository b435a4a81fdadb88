"""What a scenario is: a beginning, a few actors, and how far schedules may deviate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from explore.scheduler import Act, Cost
from explore.world import NAME, NOON, World
from onceonly.checkpoint.offsets import Interval
from onceonly.errors import CannotPublish, InDoubt, OnceonlyError
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource

EXPECTED = (OnceonlyError, ConnectionError, FileNotFoundError)  # errors that a process may end with
PAIRS, SINGLES, SWITCHES = Cost(2, 1, 1, any=2), Cost(1, 1, 1, any=1), Cost(2, 0, 0, any=2)


def pipeline(*sinks, **changes) -> Pipeline:
    given = {"source": KafkaSource("t"), "transform": "a.b:c", "sinks": sinks or [DeltaSink("a", "a")], **changes}
    return Pipeline(name=NAME, **given)


@dataclass(frozen=True)
class Scenario:
    """Two or three actors in a world.

    Args:
        pipelines: the definition as actors name it; "now" is the one that counts in the end.
        before: what has happened already, in order.
        mend: done when all actors have ended, before anybody judges: what was broken works again.
    """

    name: str
    actors: Mapping[str, Act]
    pipelines: Mapping[str, Pipeline] = field(default_factory=lambda: {"now": pipeline()})
    bound: Cost = PAIRS
    records: Sequence[int] = (0, 1)
    verdicts: Sequence[str] = ("passed",)
    before: Sequence[Act] = ()
    mend: Callable[[World], None] = lambda world: None
    may_lose: Sequence[tuple[str, int]] = ()  # sink and epoch that a person gives up, or may have to
    may_go_back: Sequence[str] = ()  # sinks of which a person accepts that rows are missing, or may have to
    may_abort: Sequence[int] = ()  # epochs that a person aborts, or may have to
    whole: Sequence[str] = ()  # sinks that show every record in the end, whatever their targets have lost
    intervals: Sequence[Interval] = ()  # that are run in the end, where the pipeline runs by intervals
    moving: bool = False  # something happens to the topic
    steady: bool = True  # no target goes back, or is replaced by another
    calm: bool = False  # without any deviation, no actor ends with an error
    quick: bool = False  # small enough for every test run

    def covers(self, minute: int) -> bool:
        """Whether a record of that minute belongs to what is run in the end."""
        at = NOON + timedelta(minutes=minute)
        return not self.intervals or any(interval.start <= at < interval.end for interval in self.intervals)

    def expects(self, error: BaseException) -> bool:
        """Whether an actor may end with it: not with an illegal row, nor told to give up a sound sink."""
        if isinstance(error, CannotPublish) and not isinstance(error, InDoubt) and not self.may_lose:
            return not self.steady  # nothing is refused after its rehearsal, unless its target has changed: `of_effect`
        return isinstance(error, EXPECTED) and "illegal transition" not in str(error)

    def begin(self) -> World:
        world = World(
            self.pipelines, tuple(self.records), tuple(self.verdicts), still=not self.moving, steady=self.steady
        )
        with world.deterministic():
            for act in self.before:
                act(world)
        return world

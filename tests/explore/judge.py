"""What is looked at when all has ended: recovery is run as long as it helps, a person does what they are told, and a
last run reads what is left; then every sink has to show every record once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

from explore import actors, targets
from explore.scenario import EXPECTED, Scenario
from explore.scheduler import MOST, Act
from explore.steps import Endless, Point
from explore.world import World
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.errors import InvalidPipeline

ROUNDS = 12  # of recovery; each of them settles something
COMMANDS = re.compile(
    r"--(give-up|committed) (\w+)|onceonly (approve|abort) (?:\w+ (\d+) --reason)?|onceonly (accept-loss) \w+ (\w+)"
)


def judge(scenario: Scenario, world: World) -> list[str]:
    """What is wrong in the end; empty: nothing."""
    world.steps.actor, world.steps.pace = "end", _patience()
    with world.deterministic():
        try:
            scenario.mend(world)
            world.verdicts = (*world.verdicts[world.looks :][:1], "passed")
            world.looks = 0
            wrong = list(_settle(scenario, world)) or list(_left(world)) or list(_go_on(scenario, world))
        except Endless as error:
            wrong = [str(error)]
    return [*world.broken, *wrong]


def _patience() -> Any:
    numbers = count()

    def pace(point: Point) -> str:
        if next(numbers) > 4 * MOST:
            raise Endless(f"the end never comes; the last step: {point.what}")
        return "done"

    return pace


def _settle(scenario: Scenario, world: World) -> Iterator[str]:
    """Recovery, and what its errors tell a person to do, until all is settled or nothing helps."""
    for _ in range(ROUNDS):
        was, error = world.key(), _recover(world)
        if error is not None and not isinstance(error, EXPECTED):
            yield f"recovery ends with {error!r}"
            return
        waiting = [cp for cp in world.checkpoints.values() if not cp.state.is_settled]
        if not waiting and error is None:
            return
        if world.key() != was:
            continue
        failed = _follow(scenario, world, waiting, error)
        if failed:
            yield failed
            return
    yield f"not settled after {ROUNDS} rounds: {[(cp.epoch, cp.state.value) for cp in waiting]}, {error}"


def _recover(world: World) -> Exception | None:
    try:
        actors.recover()(world)
    except Exception as error:
        return error
    return None


def _follow(scenario: Scenario, world: World, waiting: list[Checkpoint], error: Exception | None) -> str | None:
    """Do what a person is told to do; what is wrong with it, else None."""
    held = next((cp for cp in waiting if cp.is_held), None)
    command = COMMANDS.search(str(error)) if error else None
    if held is None and command is None:
        states = [f"epoch {cp.epoch} is {cp.state.value}" for cp in waiting]
        return f"{', '.join(states)}, recovery says {error!r}, and that names no other command"
    told, act = _approval(held) if held else _word(command, waiting)
    loses = told[0] == "give-up" and told[1:] not in scenario.may_lose
    loses = loses or (told[0] == "abort" and told[2] not in scenario.may_abort)
    if act is None or loses or (told[0] == "accept-loss" and told[1] not in scenario.may_go_back):
        return f"{told} is asked of a person, and nothing was broken: {error}"
    try:
        act(world)
    except EXPECTED as refused:
        if str(refused) != str(error) and isinstance(refused, InvalidPipeline) and COMMANDS.search(str(refused)):
            return _follow(scenario, world, waiting, refused)  # something else has to be done first
        return f"{told} was to be done, and is refused: {refused}"
    return None


def _approval(held: Checkpoint) -> tuple[Any, Act]:
    return ("approve", "", held.epoch), actors.approve(held.epoch)


def _word(command: Any, waiting: list[Checkpoint]) -> tuple[Any, Act | None]:
    """What is to be said of the first decision that waits for the sink."""
    if lost := command.group(6):
        return ("accept-loss", lost), actors.accept_loss(lost)
    if refused := command.group(4):
        return ("abort", "", int(refused)), actors.abort(int(refused), who="me")
    word, sink = command.group(1), command.group(2)
    decided = sorted(waiting, key=lambda cp: cp.decision or 0)
    epoch = next((cp.epoch for cp in decided if sink and sink in cp.waiting), 0)
    if not epoch:
        return (command.group(0), sink, epoch), None
    return (word, sink, epoch), (actors.resolve_doubt if word == "committed" else actors.give_up)(sink, epoch)


def _left(world: World) -> Iterator[str]:
    """What is staged although all is settled, and nobody keeps it for anything."""
    keeping = {name for cp in world.checkpoints.values() for name in _kept(cp)}
    for sink, target in world.targets.items():
        for name in sorted(target.left() - keeping):
            yield f"{name} is left in {sink}"


def _kept(checkpoint: Checkpoint) -> Iterator[str]:
    """Names of what a gate failed, and of what was given up: people may look at it."""
    for attempt in checkpoint.claims:
        if checkpoint.keeps_rows_of(attempt):
            yield from (checkpoint.transaction(sink, attempt).name for sink in checkpoint.sinks)
    yield from (checkpoint.handles[sink]["txn"] for sink in checkpoint.given_up)


# ---- rows


def _go_on(scenario: Scenario, world: World) -> Iterator[str]:
    """A next run works, and with it everything that was written to the source has arrived once."""
    world.looks = len(world.verdicts) - 1
    for number, interval in enumerate(scenario.intervals or [None, None, None]):
        error = _run(f"last{number}", interval, world)
        if error and _accepts(scenario, error, world):
            error = _run(f"last{number}", interval, world)
        if error:
            yield f"the next run ends with {type(error).__name__}: {error}"
            return
    yield from _settle(scenario, world)
    yield from _left(world)
    yield from _chain(scenario, world)
    for sink in world.targets:
        yield from _rows(world, sink)
    for sink in scenario.whole:
        shown = world.targets[sink].visible()
        if lost := [row for row, minute in enumerate(world.records) if scenario.covers(minute) and row not in shown]:
            yield f"{sink} has lost {lost} for good"


def _run(owner: str, interval: Any, world: World) -> Exception | None:
    try:
        actors.run(owner, interval)(world)
    except Exception as error:
        return error
    return None


def _accepts(scenario: Scenario, error: Exception, world: World) -> bool:
    """A person accepts the loss that a run names, where the scenario has one."""
    command = COMMANDS.search(str(error))
    if command is None or command.group(6) not in scenario.may_go_back:
        return False
    try:
        actors.accept_loss(command.group(6))(world)
    except EXPECTED:
        return False
    return True


def _decided(world: World) -> list[Checkpoint]:
    done = (cp for cp in world.checkpoints.values() if cp.state is State.COMMITTED and cp.decision)
    return sorted(done, key=lambda cp: cp.decision or 0)


def _chain(scenario: Scenario, world: World) -> Iterator[str]:
    """Every record is in one checkpoint that is in force, or in one that leaves it out."""
    left_out = [cp for cp in world.checkpoints.values() if cp.skipped is not None]
    read = [row for cp in [*_in_force(_decided(world)), *left_out] for row in _range(cp)]
    wanted = [row for row, minute in enumerate(world.records) if scenario.covers(minute)]
    if sorted(read) != wanted:
        yield f"the checkpoints in force read {sorted(read)} of {wanted}"


def _in_force(decided: list[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints of all sinks; what a repair writes, one of them has read before."""
    found: list[Checkpoint] = []
    origins = {cp.epoch: cp.epoch if cp.repairs is None else cp.repairs for cp in decided}
    for cp in decided:
        if cp.rewinds_to is not None:
            found = [each for each in found if each.epoch <= cp.rewinds_to]
        elif cp.only is None:
            replaced = origins.get(cp.replaces or 0)
            found = [*(each for each in found if each.epoch != replaced), cp]
    return found


def _range(cp: Checkpoint) -> range:
    return range(*cp.ranges[0].partitions[0])


def _rows(world: World, sink: str) -> Iterator[str]:
    target, decided = world.targets[sink], _decided(world)
    if any("not_fenced" in cp.given_up.get(sink, {}) for cp in decided):
        rows = [] if isinstance(target, targets.Runs) else target.visible()
        if twice := sorted({row for row in rows if rows.count(row) > 1}):
            yield f"{sink} shows {twice} more than once"
        return  # nobody knows whether it has the rows that were given up; but never beside themselves
    shown = _state(target, decided, sink) if isinstance(target, targets.Runs) else target.visible()
    wanted = _wanted(decided, sink)
    if isinstance(target, targets.Days):
        wanted = next(([*_range(cp)] for cp in reversed(decided) if cp.is_shown_by(sink)), [])
    if twice := sorted({row for row in shown if shown.count(row) > max(1, wanted.count(row))}):
        yield f"{sink} shows {twice} more than once"
    if not isinstance(target, targets.Lake | targets.Topic):
        shown, wanted = sorted(shown), sorted(wanted)
    if shown != wanted:
        yield f"{sink} shows {shown} and was to show {wanted}"
    order = [entry.decision for entry in target.log]
    if isinstance(target, targets.Lake) and order != sorted(set(order)):
        yield f"3: {sink} shows the decisions in the order {order}"


def _wanted(decided: list[Checkpoint], sink: str) -> list[int]:
    """Rows of the decisions that reached this sink, in their order."""
    found: list[Checkpoint] = []
    taken_back: set[int] = set()  # their records are read again, so nothing is to bring them a second time
    for cp in decided:
        if cp.rewinds_to is not None:
            found = [each for each in found if each.origin <= cp.rewinds_to]
            taken_back |= set(range(cp.rewinds_to + 1, cp.epoch))
        elif cp.is_shown_by(sink) and not (cp.is_repair and cp.origin in taken_back):
            if cp.replaces is not None and (sink not in cp.again or sink in cp.lacking):
                found = [each for each in found if not _is_of_same_records(each, cp)]
            found.append(cp)
    return [row for cp in found for row in _range(cp)]


def _is_of_same_records(one: Checkpoint, other: Checkpoint) -> bool:
    return one.interval == other.interval if other.interval else one.origin == other.origin


def _state(target: Any, decided: list[Checkpoint], sink: str) -> list[int]:
    """Rows of the runs that the last handle lists; a run that is gone shows as -1."""
    handles = [cp.handles[sink] for cp in decided if sink in cp.handles and sink not in cp.given_up]
    runs = handles[-1]["runs"] if handles else []
    return [row for run in runs for row in target.staged.get(run, (-1,))]

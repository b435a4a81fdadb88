"""What people, tasks and the world do; each call is a process of its own, which knows nothing of the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from explore.scheduler import Act
from explore.world import NAME, TOPIC, World, before
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator import gate as gating
from onceonly.coordinator.manual import Seen
from onceonly.coordinator.skip_offsets import Skip
from onceonly.errors import Fenced, InvalidPipeline, OnceonlyError

Alive = Callable[[Checkpoint], bool]


def nobody(checkpoint: Checkpoint) -> bool:
    """Everyone is taken for dead: the worst that can be thought of others."""
    return False


def everybody(checkpoint: Checkpoint) -> bool:
    return True


# ---- tasks


def plan(
    owner: str, interval: Interval | None = None, now: str = "now", alive: Alive = nobody, again: str | None = None
) -> Act:
    def act(world: World) -> None:
        _plan(world, owner, interval, now, alive, again)

    return act


def _plan(
    world: World, owner: str, interval: Interval | None, now: str, alive: Alive, again: str | None
) -> Checkpoint | None:
    return world.coordinator.plan(world.pipelines[now], owner, alive, interval, again).checkpoint


def stage(epoch: int = 1, owner: str | None = None) -> Act:
    def act(world: World) -> None:
        world.acting[world.steps.actor] = (owner, None)
        held = before(world, epoch)
        world.coordinator.stage(NAME, epoch, partial(world.parts.produce, before=held), owner)

    return act


def stage_later(epoch: int = 1, owner: str | None = None) -> Act:
    """A driver that waited in a queue since the task that wanted it was at work."""

    def act(world: World) -> None:
        since = world.checkpoints[epoch].last_seq
        world.acting[world.steps.actor] = (owner, since)
        world.steps.take("waits in a queue", lambda: None)
        world.coordinator.stage(NAME, epoch, world.parts.produce, owner, since)

    return act


def tidy_stage(epoch: int = 1, owner: str | None = None) -> Act:
    """Where it fails, nothing that it wrote is left."""

    def act(world: World) -> None:
        me = world.steps.actor
        try:
            stage(epoch, owner)(world)
        except (Fenced, ConnectionError):
            left = {name for target in world.targets.values() for name in target.left() if name.endswith(me)}
            world.broken += [f"{me} failed, and {name} is left" for name in sorted(left)]
            raise

    return act


def gate(epoch: int = 1, by: str = "task") -> Act:
    def act(world: World) -> None:
        gating.require(world.coordinator.gate(NAME, epoch, by))

    return act


def commit(epoch: int = 1) -> Act:
    return lambda world: _drop(world.coordinator.commit(NAME, epoch))


def abort(epoch: int = 1, owner: str | None = None, who: str | None = None) -> Act:
    def act(world: World) -> None:
        seen = _look(world, epoch) if who else None
        world.coordinator.abort(NAME, epoch, "told to", owner, who, seen=seen)

    return act


def run(
    owner: str,
    interval: Interval | None = None,
    now: str = "now",
    alive: Alive = nobody,
    again: str | None = None,
) -> Act:
    """plan, stage, gate, commit; and abort where stage or gate failed, as the DAG does."""

    def act(world: World) -> None:
        checkpoint = _plan(world, owner, interval, now, alive, again)
        if checkpoint is None or checkpoint.state is State.COMMITTED:
            return
        try:
            stage(checkpoint.epoch, owner)(world)
            gate(checkpoint.epoch, owner)(world)
        except (OnceonlyError, ConnectionError):
            _unless_fenced(abort(checkpoint.epoch, owner), world)
            raise
        world.acting.pop(world.steps.actor)
        commit(checkpoint.epoch)(world)

    return act


def recover(alive: Alive = nobody) -> Act:
    return lambda world: _drop(world.coordinator.recover(NAME, alive))


def settle(epoch: int = 1) -> Act:
    """gate and commit, and abort where the gate failed it."""

    def act(world: World) -> None:
        try:
            gate(epoch)(world)
        except OnceonlyError:
            _unless_fenced(abort(epoch, "run1"), world)
            raise
        commit(epoch)(world)

    return act


def sweep(world: World) -> None:
    world.coordinator.sweep(NAME)


# ---- a person's word


def _look(world: World, epoch: int | None = None) -> Seen:
    """A person looks at a checkpoint, or at the whole pipeline: a step of its own, so it may change before the act."""

    def number() -> int:
        chain = world.table.chain(NAME)
        if epoch is None:
            return chain.head.changed
        checkpoint = chain.checkpoints.get(epoch)
        return checkpoint.changed_seq if checkpoint else 0

    what = f"looks at epoch {epoch}" if epoch else "looks at the pipeline"
    return Seen(world.steps.take(what, number, seen=lambda seq: seq))


def approve(epoch: int = 1) -> Act:
    def act(world: World) -> None:
        world.coordinator.approve(NAME, epoch, "me", "looked", _look(world, epoch))
        world.coordinator.commit(NAME, epoch)

    return act


def give_up(sink: str, epoch: int = 1) -> Act:
    """As the refusal says, where there is one: rows that a rewind should take out are removed by hand first."""

    def act(world: World) -> None:
        give = partial(world.coordinator.give_up, NAME, epoch, sink, "me", "gone", seen=_look(world, epoch))
        try:
            give()
        except InvalidPipeline as refused:
            if "--removed" not in str(refused):
                raise
            _remove_by_hand(world, epoch, sink)
            give(removed=True)

    return act


def _remove_by_hand(world: World, epoch: int, sink: str) -> None:
    out = {old["txn"] for old in world.checkpoints[epoch].handles[sink]["retracts"]}
    world.steps.take(f"rows are removed from {sink} by hand", lambda: world.targets[sink].remove(out))


def resolve_doubt(sink: str, epoch: int = 1) -> Act:
    """Says what is true of a transaction whose marker is gone."""

    def act(world: World) -> None:
        seen = _look(world, epoch)
        tx = world.checkpoints[epoch].handles[sink]["tx"]
        committed = tx in world.targets[sink].committed
        world.coordinator.resolve_doubt(NAME, epoch, sink, committed, "me", "looked", seen)

    return act


def skip(to: int) -> Act:
    """A person leaves out what comes before that offset and was not read."""

    def act(world: World) -> None:
        world.coordinator.skip_offsets(NAME, Skip(TOPIC, 0, to, "me", "damaged", _look(world)))

    return act


def rewind(epoch: int) -> Act:
    return lambda world: _drop(world.coordinator.rewind(NAME, epoch, "me", "bad", _look(world)))


# ---- the world


def breaks(sink: str, how: str | None) -> Act:
    """From now on it 'refuses' to be published to, is 'down' or 'fenced'; None: it works again."""

    def act(world: World) -> None:
        def effect() -> None:
            world.targets[sink].broken = how

        world.steps.take(f"{sink} is {how or 'well again'}", effect)

    return act


def times_out(sink: str) -> Act:
    """The broker ends what is open."""

    def act(world: World) -> None:
        target = world.targets[sink]
        world.steps.take(f"{sink}: what is open times out", lambda: [target.end(id, "aborted") for id in target.txs])

    return act


def forgets(sink: str) -> Act:
    """The log that shows what became of transactions is cut."""

    def act(world: World) -> None:
        def effect() -> None:
            target = world.targets[sink]
            target.cut = tuple(id for id, tx in target.txs.items() if tx.stands != "open")

        world.steps.take(f"{sink}: the log is cut", effect)

    return act


def arrives(*minutes: int) -> Act:
    def act(world: World) -> None:
        def effect() -> None:
            world.records += minutes

        world.steps.take(f"records of minute {minutes} arrive", effect)

    return act


def try_(act: Act) -> Act:
    return one_after_the_other(act)


def one_after_the_other(*acts: Act) -> Act:
    """The same process does each; what one of them raises does not keep it from the next."""

    def act(world: World) -> None:
        for each in acts:
            try:
                each(world)
            except (OnceonlyError, ConnectionError):
                continue

    return act


def _unless_fenced(act: Act, world: World) -> None:
    try:
        act(world)
    except Fenced:
        return


def _drop(result: object) -> None:
    return

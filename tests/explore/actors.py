"""What people, tasks and the world do; each call is a process of its own, which knows nothing of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from explore.scheduler import Act
from explore.steps import Point
from explore.targets import Target
from explore.world import NAME, TOPIC, World, before
from onceonly.checkpoint.model import Checkpoint, Event, State
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator import gate as gating
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.coordinator.manual import Seen
from onceonly.coordinator.repair import Wish
from onceonly.coordinator.reprocess import Reprocess
from onceonly.coordinator.skip import Skip
from onceonly.errors import Fenced, InvalidPipeline, OnceonlyError, StageAgain

Alive = Callable[[Checkpoint], bool]


def nobody(checkpoint: Checkpoint) -> bool:
    """Everyone is taken for dead: the worst that can be thought of others."""
    return False


def everybody(checkpoint: Checkpoint) -> bool:
    return True


def all_but(owner: str) -> Alive:
    return lambda checkpoint: checkpoint.owner != owner


# ---- tasks


def plan(
    owner: str,
    interval: Interval | None = None,
    now: str = "now",
    alive: Alive = nobody,
    again: str | Reprocess | None = None,
) -> Act:
    def act(world: World) -> None:
        _plan(world, owner, interval, now, alive, again)

    return act


def _plan(
    world: World, owner: str, interval: Interval | None, now: str, alive: Alive, again: str | Reprocess | None
) -> Checkpoint | None:
    world.begins()
    world.acting.pop(world.steps.actor, None)  # a plan aborts what others have left
    with _knowing(world, lambda checkpoint: checkpoint.owner == owner or alive(checkpoint)):
        wish = Reprocess(again) if isinstance(again, str) else again
        return world.coordinator.plan(world.pipelines[now], owner, alive, interval, wish).checkpoint


@contextmanager
def _knowing(world: World, alive: Alive) -> Iterator[None]:
    """The actor at work knows these owners to be alive."""
    actor = world.steps.actor
    world.alive[actor] = alive
    try:
        yield
    finally:
        world.alive.pop(actor, None)


def stage(epoch: int = 1, owner: str | None = None, pipeline: str = NAME) -> Act:
    def act(world: World) -> None:
        world.begins()
        world.acting[world.steps.actor] = (owner, None)
        held = before(world, epoch, pipeline)
        world.coordinator.stage(pipeline, epoch, partial(world.parts.produce, before=held), owner)

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


def gate(epoch: int = 1, by: str = "task", pipeline: str = NAME) -> Act:
    def act(world: World) -> None:
        gating.require_passed(world.coordinator.gate(pipeline, epoch, by))

    return act


def commit(epoch: int = 1, pipeline: str = NAME) -> Act:
    def act(world: World) -> None:
        world.begins()
        state = world.coordinator.commit(pipeline, epoch).state
        if state is not State.COMMITTED:
            world.broken.append(f"a commit of epoch {epoch} ended without an error, and it is {state.value}")

    return act


def abort(epoch: int = 1, owner: str | None = None, who: str | None = None, pipeline: str = NAME) -> Act:
    def act(world: World) -> None:
        seen = _look(world, epoch) if who else None
        state = world.coordinator.abort(pipeline, epoch, "told to", owner, who, seen=seen).state
        aborts = [row for row in world.table.history(pipeline, epoch, epoch) if row.event is Event.ABORTING]
        if not aborts:
            world.broken.append(f"an abort of epoch {epoch} ended without an error, and it is {state.value}")

    return act


def run(
    owner: str,
    interval: Interval | None = None,
    now: str = "now",
    alive: Alive = nobody,
    again: str | Reprocess | None = None,
) -> Act:
    """plan, stage, gate, commit; abort where stage or gate failed, and stage again what has to be, as the DAG does."""

    def act(world: World) -> None:
        checkpoint = _plan(world, owner, interval, now, alive, again)
        if isinstance(again, Reprocess):
            _require_as_asked(world, again, checkpoint)
        if checkpoint is None or checkpoint.state is State.COMMITTED:
            return
        while not _try_to_publish(world, checkpoint, owner):
            continue  # as long as it has to be staged again

    return act


def _require_as_asked(world: World, wish: Reprocess, planned: Checkpoint | None) -> None:
    """What goes on writes none of the sinks that are not asked for; what is done under that name wrote all that are."""
    if planned is None:
        return
    sinks = set(wish.only) or {sink.name for sink in world.pipelines["now"].sinks} - set(wish.keep)
    if planned.state is not State.COMMITTED and not set(planned.sinks) <= sinks:
        world.broken.append(f"'{wish.request}' asks for {sorted(sinks)}, and is to write {sorted(planned.sinks)}")
    if planned.state is not State.COMMITTED or wish.only:
        return
    own = [cp for cp in world.checkpoints.values() if cp.request == wish.request]
    if planned.replaces and not any(cp.state is State.COMMITTED and set(cp.handles) == sinks for cp in own):
        world.broken.append(f"'{wish.request}' ends as done, and nothing was written to {sorted(sinks)}")


def _try_to_publish(world: World, checkpoint: Checkpoint, owner: str) -> bool:
    name, epoch = checkpoint.pipeline, checkpoint.epoch
    try:
        stage(epoch, owner, name)(world)
        gate(epoch, owner, name)(world)
    except (OnceonlyError, ConnectionError):
        _unless_fenced(abort(epoch, owner, pipeline=name), world)
        raise
    world.acting.pop(world.steps.actor)
    try:
        commit(epoch, name)(world)
    except StageAgain:
        return False
    return True


def recover(alive: Alive = nobody) -> Act:
    def act(world: World) -> None:
        world.begins()
        with _knowing(world, alive):
            world.coordinator.recover(NAME, alive)

    return act


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


def approve(epoch: int = 1, commits: bool = True) -> Act:
    def act(world: World) -> None:
        world.coordinator.approve(NAME, epoch, "me", "looked", _look(world, epoch))
        if commits:
            commit(epoch)(world)

    return act


def give_up(sink: str, epoch: int = 1, gone: bool = False) -> Act:
    """As the refusal says, where there is one: rows that a rewind should take out are removed by hand first."""

    def act(world: World) -> None:
        seen = _look(world, epoch)
        world.gone |= {sink} if gone else set()
        give = partial(world.coordinator.give_up, NAME, epoch, sink, "me", "gone", gone=gone, seen=seen)
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


def accept_loss(sink: str) -> Act:
    """A person accepts that rows are missing in the target, and goes on from it as it is."""

    def act(world: World) -> None:
        said = Acceptance("me", "lost", seen=_look(world))
        world.coordinator.accept_loss(NAME, sink, said)

    return act


def repair(sink: str, who: str = "me", again: bool = False) -> Act:
    """A person has written again what the sink lacks, one checkpoint after the other."""

    def act(world: World) -> None:
        wish = Wish(who, "lost", _look(world), again)
        for request in world.coordinator.begin_repair(world.pipelines["now"], sink, wish):
            run(who, again=request)(world)

    return act


def repairs_in_the_end(sink: str, again: bool = False) -> Act:
    """When all has ended a person repairs the sink, as often as it takes."""

    def act(world: World) -> None:
        for _ in range(6):
            one_after_the_other(recover(), repair(sink, "end", again))(world)
        lack = world.coordinator.lack(world.pipelines["now"], sink, again)
        world.broken += [f"{sink} still lacks epoch {lost.checkpoint.epoch} ({lost.how})" for lost in lack.lost]

    return act


# ---- the world


def dies_after(act: Act, step: str) -> Act:
    """A process that is killed right after its first step of that name."""

    def acts(world: World) -> None:
        taken: list[str] = []

        def pace(point: Point) -> str:
            if taken and step in taken[-1]:
                raise Killed
            taken.append(point.what)
            return "done"

        world.steps.pace = pace
        try:
            act(world)
        except Killed:
            return
        finally:
            world.steps.pace = None

    return acts


class Killed(BaseException):
    """The end of a process."""


def decides(epoch: int = 1) -> Act:
    """The decision to publish is taken, by a process that is killed before it publishes."""
    return dies_after(commit(epoch), "records 'committing'")


def copied(sink: str) -> Act:
    """Somebody keeps a copy of a target as it is."""
    return lambda world: world.copies.update({sink: world.targets[sink].copy()})


def has_another(sink: str, identity: str = "") -> Act:
    """Another target will come to that place; without an identity: an empty place, where nothing is mounted."""
    return lambda world: world.copies.update({sink: type(world.targets[sink])(identity=identity)})


def swaps(sink: str) -> Act:
    """The target is replaced by its copy, or by another one; and the next time it comes back."""
    return lambda world: world.steps.take(f"{sink} is replaced by {_called(world, sink)}", lambda: _swap(world, sink))


def brings_back(sink: str) -> Act:
    """The newest of the two is in its place."""
    return lambda world: _swap(world, sink) if _is_newer(world.copies[sink], world.targets[sink]) else None


def _swap(world: World, sink: str) -> None:
    was = world.targets[sink].copy()
    world.replace_target(sink, world.copies[sink])
    world.copies[sink] = was


def _called(world: World, sink: str) -> str:
    copy = world.copies[sink]
    return f"one with {len(copy.versions)} versions" if copy.identity else "nothing"


def _is_newer(one: Target, other: Target) -> bool:
    return len(one.versions) > len(other.versions)


def evolves(sink: str) -> Act:
    """From now on each publication adds a column to the target, if it has none."""

    def act(world: World) -> None:
        world.targets[sink].column = ""

    return act


def breaks(sink: str, how: str | None) -> Act:
    """From now on it 'refuses' to be published to, 'damages' what is staged, is 'down' or 'fenced'; None: it works."""

    def act(world: World) -> None:
        def effect() -> None:
            world.targets[sink].broken = how
            world.targets[sink].is_changed()

        world.steps.take(f"{sink} is {how or 'well again'}", effect)

    return act


def loses_staged(sink: str) -> Act:
    """A VACUUM removes what is staged, except what was rehearsed: of that, the rehearsal has made new copies."""

    def act(world: World) -> None:
        target = world.targets[sink]

        def effect() -> None:
            target.staged = {name: rows for name, rows in target.staged.items() if name in target.rehearsed}

        world.steps.take(f"{sink}: what is staged is removed", effect)

    return act


def loses_staged_for_good(sink: str) -> Act:
    """What is staged is removed, also what was rehearsed."""

    def act(world: World) -> None:
        target = world.targets[sink]

        def effect() -> None:
            target.staged = {name: rows for name, rows in target.staged.items() if name in target.published}
            target.is_changed()

        world.steps.take(f"{sink}: all that is staged is removed", effect)

    return act


def publishes_and_dies(epoch: int, sink: str) -> Act:
    """The transaction is committed, by a process that is killed before it records that."""
    return dies_after(commit(epoch), f"{sink}: ends the transaction")


def breaks_unless_decided(sink: str, how: str | None, epoch: int = 1) -> Act:
    """As `breaks`, where nothing is decided that waits for the sink."""
    return lambda world: None if world.checkpoints[epoch].decision else breaks(sink, how)(world)


def times_out(sink: str, epoch: int | None = None) -> Act:
    """The broker ends what is open: all of it, or what is of one checkpoint."""

    def act(world: World) -> None:
        target = world.targets[sink]

        def effect() -> None:
            for id in target.txs:
                if epoch is None or world.checkpoints[epoch].handles[sink]["tx"] == id:
                    target.end(id, "aborted")

        world.steps.take(f"{sink}: what is open times out", effect)

    return act


def forgets(sink: str) -> Act:
    """The log that shows what became of transactions is cut."""

    def act(world: World) -> None:
        def effect() -> None:
            target = world.targets[sink]
            target.cut = tuple(id for id, tx in target.txs.items() if tx.stands != "open")

        world.steps.take(f"{sink}: the log is cut", effect)

    return act


def remembers(sink: str) -> Act:
    """What was cut can be read again."""

    def act(world: World) -> None:
        def effect() -> None:
            world.targets[sink].cut = ()

        world.steps.take(f"{sink}: the log can be read again", effect)

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

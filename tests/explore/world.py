"""Everything that processes share: the state table, the source, the targets, and what a gate finds."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from unittest import mock

from explore import invariants, sinks, targets
from explore.steps import BEFORE, Made, Steps
from explore.table import Chain, MemoryTable
from onceonly.checkpoint import offsets
from onceonly.checkpoint.boundary_search import FirstRecord, search
from onceonly.checkpoint.interfaces import Findings, Inspector
from onceonly.checkpoint.model import Checkpoint, Event, Row, Transaction
from onceonly.checkpoint.offsets import NO_OFFSETS, Interval, Offsets, TopicLog, TopicRange
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.stage import find_state_before
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
FROM_JSON, TO_JSON = Pipeline.from_json, Pipeline.to_json
NAME, TOPIC = "p", "t"
KINDS: Mapping[type, Any] = {
    DeltaSink: targets.Lake,
    FileSink: targets.Folder,
    KafkaSink: targets.Topic,
    StateSink: targets.Runs,
}


def minutes(start: int, end: int) -> Interval:
    return Interval(NOON + timedelta(minutes=start), NOON + timedelta(minutes=end))


READ: dict[int, tuple[Any, Pipeline]] = {}  # by identity of the definition, which is kept with it


def _read(definition: Mapping[str, Any]) -> Pipeline:
    """`Pipeline.from_json`, which every step asks for: each definition is read once."""
    if id(definition) not in READ:
        READ[id(definition)] = (definition, FROM_JSON(definition))
    return READ[id(definition)][1]


WRITTEN: dict[int, tuple[Pipeline, dict[str, Any]]] = {}  # by identity of the pipeline, which is kept with it


def _written(pipeline: Pipeline) -> dict[str, Any]:
    """`Pipeline.to_json`, which every step asks for as well."""
    if id(pipeline) not in WRITTEN:
        WRITTEN[id(pipeline)] = (pipeline, TO_JSON(pipeline))
    return WRITTEN[id(pipeline)][1]


@dataclass
class World:
    """One world, in which one schedule happens.

    Args:
        pipelines: its definition, by the name under which actors ask for it.
        records: minute of each record, in order of the log; a record's row is its offset.
        verdicts: what the gate finds, one after the other; the last one stays.
    """

    pipelines: Mapping[str, Pipeline]
    records: tuple[int, ...]
    verdicts: tuple[str, ...] = ("passed",)
    topic_id: str = "topic-1"
    still: bool = True  # nothing happens to the topic: looks at it are no steps
    steady: bool = True  # no target goes back: comparing it with what was published to it is no step
    targets: dict[str, Any] = field(default_factory=dict)
    looks: int = 0  # of the gate
    broken: list[str] = field(default_factory=list)  # invariants
    doomed: dict[int, frozenset[str]] = field(default_factory=dict)  # by epoch: what was staged when its abort began
    acting: dict[str, tuple[str | None, int | None]] = field(default_factory=dict)  # actor -> for whom, and since when
    alive: dict[str, Callable[[Checkpoint], bool]] = field(default_factory=dict)  # actor -> whom it knows to be alive
    copies: dict[str, Any] = field(default_factory=dict)  # by sink: its target as it was, or will be again
    gone: frozenset[str] = frozenset()  # sinks of which a person has said that they never answer again
    lacking: dict[str, frozenset[str]] = field(default_factory=dict)  # actor -> targets that lack rows since it began

    def __post_init__(self) -> None:
        self.steps = Steps()
        self.table = MemoryTable(self.steps, self._watch_row)
        self.parts = MemoryParts(self)
        for pipeline in self.pipelines.values():
            for sink in pipeline.sinks:
                self.targets.setdefault(sink.name, _make_target(sink))

    def copy(self) -> World:
        """As it is between two steps; nobody is at work in it."""
        copied = {name: target.copy() for name, target in self.targets.items()}
        shared = (self.pipelines, self.records, self.verdicts, self.topic_id, self.still, self.steady)
        world = World(*shared, copied, self.looks, list(self.broken), dict(self.doomed))
        world.copies, world.lacking, world.gone = dict(self.copies), dict(self.lacking), self.gone
        world.table.chains = dict(self.table.chains)
        return world

    def key(self) -> Hashable:
        chains = tuple(sorted((name, chain.number) for name, chain in self.table.chains.items()))
        shown = tuple(target.key() for target in self.targets.values())
        doomed = str(sorted((epoch, sorted(names)) for epoch, names in self.doomed.items()))
        copies = tuple(copy.key() for copy in self.copies.values())
        lacking = str(sorted((actor, sorted(names)) for actor, names in self.lacking.items() if names))
        return (chains, shown, self.records, self.looks, self.topic_id, doomed, copies, lacking)

    @property
    def coordinator(self) -> Coordinator:
        """A new process's: it remembers nothing of the one before."""
        return Coordinator(self.table, self.parts)  # type: ignore[arg-type]

    @property
    def checkpoints(self) -> Mapping[int, Checkpoint]:
        return self.table.chain(NAME).checkpoints

    def _watch_row(self, row: Row, before: Checkpoint | None, after: Checkpoint) -> None:
        actor, chain = self.steps.actor, self.table.chain(row.pipeline)
        self.broken += invariants.of_row(self.targets, chain.checkpoints, row, before, after)
        self.broken += invariants.of_actor(row, before, *self.acting.get(actor, (None, None)))
        self.broken += invariants.of_recovery(chain.checkpoints, row, before, self.alive.get(actor))
        self.broken += invariants.of_person(chain.rows, row)
        self.broken += invariants.of_attempt(chain.rows, row, after)
        self.broken += invariants.of_decision(self.targets, row, after, _last_decisions(chain))
        self.broken += invariants.of_staging_again(chain.rows, row)
        self.broken += invariants.of_giving_up(row, self.gone)
        self._watch_targets(row, after)
        self._watch_abort(row, after)

    def begins(self) -> None:
        """The actor at work begins, while these targets lack what was published to them: a step, if any may."""
        if not self.steady:
            self.steps.take("begins", self._note_lacking)

    def _note_lacking(self) -> frozenset[str]:
        known = self.checkpoints.values()
        lacking = {sink for sink, target in self.targets.items() if invariants.lacking(known, target, sink)}
        self.lacking[self.steps.actor] = frozenset(lacking)
        return frozenset(lacking)

    def replace_target(self, sink: str, other: Any) -> None:
        """What happens to a target behind everybody's back."""
        self.targets[sink].become(other)
        self.lacking = {actor: sinks - {sink} for actor, sinks in self.lacking.items()}
        self.doomed = {epoch: names - _of_sink(sink, names) for epoch, names in self.doomed.items()}

    def _watch_targets(self, row: Row, after: Checkpoint) -> None:
        if row.event in (Event.PLANNED, Event.CLAIMED, Event.COMMITTING):
            for sink in sorted(self.lacking.get(self.steps.actor, frozenset()) & set(after.sinks)):
                if invariants.lacking(self.checkpoints.values(), self.targets[sink], sink):
                    what = f"'{row.event.value}' of epoch {row.epoch} by {self.steps.actor}"
                    self.broken.append(f"{what}, which began when {sink} had lost rows already")

    def _watch_abort(self, row: Row, after: Checkpoint) -> None:
        """Aborted is what nothing is left of that was there when the abort began."""
        if row.event is Event.ABORTING:
            self.doomed[row.epoch] = invariants.still_there(self.targets, after)
        if row.event is Event.ABORTED:
            left = self.doomed.pop(row.epoch, frozenset()) & invariants.still_there(self.targets, after)
            self.broken += [f"epoch {row.epoch} is aborted, and {name} is still there" for name in sorted(left)]

    def watch(
        self, what: str, sink: str, name: str, decision: int | None = None, tx: str | None = None, by: str | None = None
    ) -> None:
        if what == "take from":
            self.broken += invariants.of_pool(self.checkpoints, sink, name, tx, by)
        else:
            txn = Transaction.parse(name)
            known = self.table.chain(txn.pipeline if txn else NAME).checkpoints
            self.broken += invariants.of_effect(known, self.targets[sink], what, sink, name, decision, tx)
        if what == "publish":
            self.broken += invariants.of_loss(self.table.chain(NAME).rows, sink)

    @contextmanager
    def deterministic(self) -> Iterator[None]:
        """Names are made by whoever is at work, in the order of their own steps."""
        named = mock.patch.object(uuid, "uuid4", lambda: Made(self.steps.fresh()))
        read, written = (
            mock.patch.object(Pipeline, "from_json", _read),
            mock.patch.object(Pipeline, "to_json", _written),
        )
        with named, read, written:
            yield


def _make_target(sink: Any) -> Any:
    if isinstance(sink, DeltaSink) and sink.replace:
        return targets.Days()
    return targets.Ledger() if getattr(sink, "path", "") == "ledger" else KINDS[type(sink)]()


def _last_decisions(chain: Chain) -> dict[str, int]:
    """By sink: the decision that its target was last recorded to show; without those whose target no longer exists."""
    last = {sink: publications[0] for sink, publications in chain.head.publications.items() if publications}
    return {sink: publication.decision for sink, publication in last.items() if not publication.absent}


def _of_sink(sink: str, names: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in names if (txn := Transaction.parse(name)) and txn.sink == sink)


class MemoryParts:
    """The live parts of a pipeline in a world."""

    live: ClassVar[Mapping[type, Any]] = {
        DeltaSink: sinks.LakeSink,
        FileSink: sinks.FolderSink,
        StateSink: sinks.StateSinkInMemory,
    }

    def __init__(self, world: World) -> None:
        self._world = world

    def sink(self, pipeline: Pipeline, name: str) -> sinks.MemorySink:
        config, world = pipeline.sink(name), self._world
        given = (name, world.targets[name], world.steps, world.watch, world.steady)
        if isinstance(config, KafkaSink):
            return sinks.TopicSink(*given, late=config.is_late(pipeline.mode), pool=config.ids == "pool")
        if getattr(config, "path", "") == "ledger":
            return sinks.TableSink(*given)
        if isinstance(config, DeltaSink) and config.replace:
            return sinks.DaysSink(*given)
        return self.live[type(config)](*given)

    def sources(self, pipeline: Pipeline) -> Mapping[str, Any]:
        return {source.topic: MemorySource(self._world, source.topic) for source in pipeline.sources}

    def inspector(self, pipeline: Pipeline) -> MemoryInspector:
        return MemoryInspector(self._world, pipeline)

    def produce(self, claimed: Checkpoint, before: Any = None) -> dict[str, Any]:
        """Every record of the ranges to every sink; to the state, beside the handle of what it was."""
        pipeline = claimed.definition.pipeline
        rows = [row for range_ in claimed.ranges for span in range_.partitions.values() for row in range(*span)]
        return {sink.name: (rows, before) if isinstance(sink, StateSink) else rows for sink in pipeline.sinks}


def before(world: World, epoch: int, pipeline: str = NAME) -> Any:
    """The handle of the state that a checkpoint goes on from, as the stage looks it up."""
    view = world.table.view(pipeline)
    return find_state_before(view, view.require(epoch))


class MemorySource:
    """A topic of one partition, in which records only ever come to the end."""

    def __init__(self, world: World, topic: str) -> None:
        self._world, self._topic = world, topic

    def check(self) -> list[str]:
        return []

    def log(self) -> TopicLog:
        return self._step("shows its ends", self._log)

    def _log(self) -> TopicLog:
        return TopicLog(self._topic, self._world.topic_id, {0: (0, len(self._world.records))})

    def offsets_at(
        self, time: datetime, latest: datetime | None = None, floor: Offsets = NO_OFFSETS
    ) -> Mapping[int, FirstRecord]:
        return self._step("looks for a time", lambda: {0: self._first(time, latest)})

    def _first(self, time: datetime, latest: datetime | None) -> FirstRecord:
        times = [NOON + timedelta(minutes=minute) for minute in self._world.records]
        return search(enumerate(times), time, latest, len(times))

    def add_mark(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        return range_

    def mark_left_out(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        return range_

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        self._step("verifies what is read", lambda: [offsets.require_in_log(range_, self._log()) for range_ in ranges])

    def report(self, pipeline: str, ranges: tuple[TopicRange, ...]) -> None:
        return

    def traces(self, pipeline: str) -> list[Any]:
        return []

    def diagnose(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> Exception:
        return error

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> Any:
        raise NotImplementedError

    def _step(self, what: str, effect: Any) -> Any:
        if self._world.still:
            return effect()
        return self._world.steps.take(f"the topic {what}", effect, (BEFORE,))


class MemoryInspector(Inspector):
    """Looks at what is staged, and finds what the world says that it finds next."""

    def __init__(self, world: World, pipeline: Pipeline) -> None:
        self._world, self._pipeline = world, pipeline

    def check(self) -> list[str]:
        return []

    def examine(self, checkpoint: Checkpoint) -> Findings:
        seen = {name: self._look(checkpoint, name) for name in checkpoint.handles}
        outcome = self._world.steps.take("the gate finds", self._find)
        check = {"what": "a check", "ok": outcome == "passed", "severity": "critical", "observed": str(seen)}
        return Findings({name: {"rows": 0, "path": "in process", "checks": [check]} for name in seen})

    def _look(self, checkpoint: Checkpoint, name: str) -> str:
        handle = checkpoint.handles[name]
        rows = self._world.parts.sink(self._pipeline, name).look(handle["txn"])
        if rows is None:
            raise FileNotFoundError(handle["txn"])
        return str(handle["txn"])

    def _find(self) -> str:
        world = self._world
        outcome = world.verdicts[min(world.looks, len(world.verdicts) - 1)]
        world.looks = min(world.looks + 1, len(world.verdicts) - 1)
        return outcome

    def forget(self, examined: Findings) -> None:
        return

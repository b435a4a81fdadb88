"""A person who looks at what is there now, and acts on it at once."""

from dataclasses import replace

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.forward import Forward
from onceonly.coordinator.manual import Seen
from onceonly.coordinator.skip import Skip
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.table import StateTable


def seen(state: StateTable, name: str, epoch: int | None = None) -> tuple[str, str]:
    """What the command line is given by a person who has looked at a checkpoint, or at the pipeline."""
    view = state.view(name)
    checkpoint = view.checkpoint(epoch) if epoch else None
    return ("--seen", str(checkpoint.changed_seq if checkpoint else view.head.changed))


class Person:
    """The manual actions of a coordinator; each names what is shown just before it."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def looks_at(self, name: str, epoch: int | None = None) -> Seen:
        """What is shown of a checkpoint, or of the whole pipeline."""
        view = self._coordinator.state_table.view(name)
        checkpoint = view.checkpoint(epoch) if epoch else None
        return Seen(checkpoint.changed_seq if checkpoint else view.head.changed)

    def approve(self, name: str, epoch: int, who: str, reason: str) -> Checkpoint:
        return self._coordinator.approve(name, epoch, who, reason, self.looks_at(name, epoch))

    def abort(self, name: str, epoch: int, reason: str, who: str, gone: tuple[str, ...] = ()) -> Checkpoint:
        seen = self.looks_at(name, epoch)
        return self._coordinator.abort(name, epoch, reason, who=who, gone=gone, seen=seen)

    def give_up(
        self, name: str, epoch: int, sink: str, who: str, reason: str, gone: bool = False, removed: bool = False
    ) -> Checkpoint:
        seen = self.looks_at(name, epoch)
        return self._coordinator.give_up(name, epoch, sink, who, reason, gone, removed, seen)

    def resolve_doubt(self, name: str, epoch: int, sink: str, committed: bool, who: str, reason: str) -> Checkpoint:
        seen = self.looks_at(name, epoch)
        return self._coordinator.resolve_doubt(name, epoch, sink, committed, who, reason, seen)

    def skip(self, name: str, interval: Interval, who: str, reason: str) -> Checkpoint:
        return self._coordinator.skip(name, interval, who, reason, self.looks_at(name))

    def skip_offsets(self, name: str, said: Skip) -> Checkpoint:
        return self._coordinator.skip_offsets(name, replace(said, seen=self.looks_at(name)))

    def rewind(self, name: str, epoch: int, who: str, reason: str) -> Checkpoint:
        return self._coordinator.rewind(name, epoch, who, reason, self.looks_at(name))

    def accept_loss(self, name: str, sink: str, said: Acceptance) -> list[Checkpoint]:
        return self._coordinator.accept_loss(name, sink, replace(said, seen=self.looks_at(name)))

    def forward(self, pipeline: Pipeline, said: Forward) -> Checkpoint:
        return self._coordinator.forward(pipeline, replace(said, seen=self.looks_at(pipeline.name)))

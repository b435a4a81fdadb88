"""What a pipeline has to know of a sink. Each kind answers for itself, so that nothing has to list the kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from onceonly.pipeline.gate import Gate
from onceonly.pipeline.names import check_name


@dataclass(frozen=True)
class SinkConfig(ABC):
    """Base of what users declare as a sink: a frozen dataclass of plain data, which is stored with every checkpoint.

    Its fields hold text, numbers, booleans, and lists and dicts of them; no secret. A field `connection` names the
    Airflow connection that the sink needs, which is then handed over to the processes that write.

    Args:
        name: how the transform's outputs, the gate and people refer to it; each once in a pipeline.
    """

    name: str

    kind: ClassVar[str]  # the name under which it is registered (pipeline/registry.py)
    writer: ClassVar[str]  # "package.module:name", imported when needed and called with (config, sinks.context.Context)
    keeps_state: ClassVar[bool] = False  # what it publishes is read by the next checkpoint; its writer `KeepsState`
    inspectable: ClassVar[bool] = False  # a gate can look at its staged rows; its writer is `Inspectable`

    def __post_init__(self) -> None:
        check_name("sink", self.name)

    @abstractmethod
    def targets(self) -> tuple[str, ...]:
        """What it writes to, for people, such as "topic 'late-flights'".

        A pipeline that was renamed is known by them: it would publish everything again, into the same targets. So two
        sinks have one in common exactly where they write to the same place.
        """

    def asset_uris(self) -> tuple[str, ...]:
        """The Airflow assets that a commit changes; none where there is nothing to be scheduled on."""
        return ()

    def check_mode(self, mode: str) -> None:
        """Raise InvalidPipeline where it does not go with a pipeline of that mode ('chained' or 'interval')."""
        return

    def check_gate(self, gate: Gate) -> None:
        """Raise InvalidPipeline where that gate cannot keep its rows back, or cannot look at them as it has to."""
        return

    def check_commits(self, within: float, mode: str) -> None:
        """Raise InvalidPipeline where what is staged would not last for a commit that comes `within` seconds later."""
        return

    def slots(self) -> int | None:
        """Attempts for which its pool of ids has room; None: it has no pool. With one, its writer is `PoolsIds`."""
        return None

    def clears_when_empty(self) -> bool:
        """Whether publishing a checkpoint without rows takes out rows that are there."""
        return False

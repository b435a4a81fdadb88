"""What a pipeline needs to know about a sink. Each kind implements it, so that no code has to list the kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from onceonly.names import check_name
from onceonly.pipeline.gate import Gate


@dataclass(frozen=True)
class SinkConfig(ABC):
    """Base class of what users declare as a sink: a frozen dataclass, stored with every checkpoint.

    Its fields contain text, numbers, booleans, and lists and dicts of them, but no secrets. A field `connection` names
    the Airflow connection that the sink needs; it is passed to the processes that write.

    Args:
        name: identifies the sink in the transform's outputs, the gate and messages; unique in a pipeline.
    """

    name: str

    kind: ClassVar[str]  # the name under which it is registered (pipeline/registry.py)
    writer: ClassVar[str]  # "package.module:name", imported when needed, called with (config, sinks.context.Context)
    keeps_state: ClassVar[bool] = False  # the next checkpoint reads what it publishes; the writer is a `StateBackend`
    takes_records: ClassVar[bool] = False  # rows are records of Kafka, so dead letters say the rest in headers
    inspectable: ClassVar[bool] = False  # a gate can read its staged rows; the writer has `InspectableRows`
    unstored_defaults: ClassVar[Mapping[str, Any]] = {}  # fields that are stored only if they differ from these

    def __post_init__(self) -> None:
        check_name("sink", self.name)

    @abstractmethod
    def targets(self) -> tuple[str, ...]:
        """Return what it writes to, for people, such as "topic 'late-flights'".

        A renamed pipeline is recognised by its targets: it would publish everything again into them. So two sinks must
        return the same text exactly if they write to the same place.
        """

    def asset_uris(self) -> tuple[str, ...]:
        """Return the Airflow assets that a commit changes; none if no DAG can be scheduled on its output."""
        return ()

    def written_topics(self) -> tuple[str, ...]:
        """Return the topics of Kafka that it may write to. A pipeline that reads one of them is refused."""
        return ()

    def merges_changes(self) -> bool:
        """Return whether rows are changes of keys, so that publishing them again adds nothing."""
        return False

    def check_mode(self, mode: str) -> None:
        """Raise InvalidPipeline if it does not support pipelines of that mode ('chained' or 'interval')."""
        return

    def check_gate(self, gate: Gate) -> None:
        """Raise InvalidPipeline if that gate could not hold back its rows, or could not check them."""
        return

    def check_dead_letters(self) -> None:
        """Raise InvalidPipeline if it cannot keep records that were not decoded (pipeline/dead_letters.py)."""
        return

    def check_commits(self, within: float, mode: str) -> None:
        """Raise InvalidPipeline if staged rows would expire before a commit that follows within `within` seconds."""
        return

    def slots(self) -> int | None:
        """Return the number of slots in its pool of ids; None if it has no pool.

        With a pool, the writer has a `TransactionalIdPool`.
        """
        return None

    def clears_when_empty(self) -> bool:
        """Return whether publishing a checkpoint without rows removes existing rows."""
        return False

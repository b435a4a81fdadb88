"""The one page of a chaos run: what was done, what was found, and how to do it again."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata

from onceonly.dev.chaos.schedule import Fault


@dataclass
class Report:
    """What is known of a run; complete when it has ended."""

    seed: int
    minutes: float
    command: str
    faults: list[tuple[Fault, str]] = field(default_factory=list)  # and what each did
    notes: list[str] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    verification: str = ""
    violations: list[str] = field(default_factory=list)
    injected: int = 0  # faults
    is_complete: bool = False
    began: str = ""
    ended: str = ""

    @property
    def verdict(self) -> str:
        if not self.is_complete:
            return "Broken off: nothing can be said."
        if not self.violations:
            return "No violation: every number that was sent is in every target once, and none was seen too early."
        return f"{len(self.violations)} violations." if len(self.violations) > 1 else "1 violation."

    def to_markdown(self) -> str:
        """Return the page."""
        parts = [
            f"# Chaos, seed {self.seed}: {self.verdict}",
            f"From {self.began} to {self.ended}, onceonly {metadata.version('onceonly')}, "
            f"Python {platform.python_version()}, {platform.platform()}.",
            f"The same faults once more:\n\n    {self.command}",
            "## Violations",
            *(_list(self.violations) or ["None."]),
            "## Figures",
            _table(("what", "how much"), self.figures.items()),
            "## Faults",
            _table(("second", "fault", "for s", "what happened"), map(_describe_fault, self.faults)),
            "## How processes ended",
            _table(("process", "times"), sorted(self.outcomes.items())),
            "## What `onceonly verify` says",
            self.verification,
            "## How this was checked",
            METHOD_TEXT,
        ]
        if self.notes:
            parts += ["## Notes", *_list(self.notes)]
        return "\n\n".join(parts) + "\n"


METHOD_TEXT = """\
A producer sent numbers, each once, and noted what the broker answered. A second one sent some in transactions,
and aborted every other one. Readers of the three targets looked all the time. After the last fault, runs went on until
nothing was left. Then `onceonly.testing.history` compared what was sent with all that was read, and named what is wrong
as Jepsen's workload for Kafka does. The history is in `history.jsonl`, and
`python -m onceonly.testing.history history.jsonl` checks it again. `onceonly verify --deep` compared the state table
with the topic and the targets, and knows nothing of that history."""


def _describe_fault(fault_and_effect: tuple[Fault, str]) -> Sequence[object]:
    fault, effect = fault_and_effect
    return (f"{fault.at:.1f}", fault.kind, f"{fault.seconds:.1f}", effect)


def _list(lines: Iterable[str]) -> list[str]:
    text = "\n".join(f"- {line}" for line in lines)
    return [text] if text else []


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
